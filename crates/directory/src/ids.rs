//! Transactions, commands and places of rows: types of their own, as a number is soon taken for another.

/// A transaction's number. It has no order of its own, as numbers come round: [`crate::ChunkStore::precedes`] compares them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Xid(pub u32);

impl Xid {
    /// No transaction.
    pub const NONE: Xid = Xid(0);
    /// What wrote a row that everybody sees: FrozenTransactionId.
    pub const FROZEN: Xid = Xid(2);
}

/// A command's number within its transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cid(pub u32);

impl Cid {
    /// No command: InvalidCommandId.
    pub const NONE: Cid = Cid(u32::MAX);
}

/// Where a row of the store is: not to be taken for a [`firn_format::Tid`], by which a table's rows are named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub block: u32,
    /// From 1.
    pub offset: u16,
}
