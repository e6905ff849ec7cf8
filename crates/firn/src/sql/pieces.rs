//! The procedures: what the functions of like name do, with a commit after each piece (docs/decisions/0018-pieces.md).
//!
//! A piece begins with no lock and keeps none. So what others have done to a table meanwhile is looked for anew each
//! time, in the one way that all functions have: a table that is gone, or no firn table any more, is left out, one that
//! has become another owner's is, too, with a warning. That the one which was named is gone is said, as VACUUM says it.

use super::{open_target, relation, targets, usable_server, By, Doing};
use crate::mover::Part;
use crate::pg::fmgr::{Args, Out};
use crate::pg::procedure::Procedure;
use crate::pg::progress::Command;
use crate::pg::{catalog, error, guc, xact, Kind, LockMode, Oid, OpenRel, Progress, Rel};
use std::ffi::CStr;

/// A procedure.
struct Call {
    command: Command,
    name: &'static CStr,
    /// The function that does the same in one transaction.
    function: &'static str,
    doing: Doing,
}

/// The table that a call has named, as it was when the call began.
struct Named {
    oid: Oid,
    name: String,
    is_temporary: bool,
}

impl Named {
    fn of(table: Rel) -> Named {
        let is_temporary = table.is_temporary();
        Named { oid: table.oid(), name: table.name(), is_temporary }
    }

    /// Warn when it is not there any more.
    fn tell_if_gone(&self, function: &str) {
        if OpenRel::if_there(self.oid, LockMode::AccessShare).is_some() {
            return;
        }
        let what = format!("skipping \"{}\" --- relation no longer exists", self.name);
        let mut warning = error(Kind::UndefinedTable, what);
        if self.is_temporary {
            warning = warning
                .detail("A commit drops a temporary table that is ON COMMIT DROP.")
                .hint(format!("{function} does all of it in the transaction of its caller."));
        }
        warning.warn()
    }
}

/// How many stripes a piece is about; argument `n`.
fn stripes(args: Args, n: usize) -> u32 {
    match args.int4(n).map(u32::try_from) {
        Some(Ok(stripes)) if stripes > 0 => stripes,
        _ => error(Kind::Invalid, "piece_stripes must be at least 1").raise(),
    }
}

/// Work on one table after the other, with the rights of its owner, piece by piece. `look` is done first and with each
/// piece, as what it asks for may change as well; it has to be harmless.
fn in_pieces(
    call: Call,
    args: Args,
    stripes: u32,
    look: impl Fn(),
    mut work: impl FnMut(OpenRel, &mut Part, &Progress),
) -> Out {
    let Call { command, name, function, doing } = call;
    let procedure = Procedure::begin(args, &name.to_string_lossy(), function);
    xact::prevent_if_read_only(name);
    procedure.take_snapshot();
    let mut targets = targets(relation(args), doing, false);
    // Whose table it is comes before what else is wrong.
    let mut named = None;
    for target in targets.iter_mut().filter(|t| t.named) {
        named = open_target(*target, LockMode::AccessShare, doing).map(|t| Named::of(t.rel()));
        // It was there.
        target.named = false;
    }
    look();
    let count = targets.len();
    // This drops a temporary table that is ON COMMIT DROP.
    procedure.commit();
    for (done, target) in targets.into_iter().enumerate() {
        let (mut part, mut progress) = (Part::pieces(stripes), None);
        loop {
            xact::check_for_interrupts();
            // Without a snapshot, as that may mean to wait. PostgreSQL's look-ups in catalogs register their own.
            let table = open_target(target, LockMode::ShareUpdateExclusive, doing);
            if let Some(named) = named.as_ref().filter(|_| table.is_none()) {
                named.tell_if_gone(function);
            }
            if let Some(table) = table {
                procedure.take_snapshot();
                look();
                let owner = table.rel().owner();
                let progress = progress
                    .get_or_insert_with(|| Progress::begin(command, target.oid, done, count));
                catalog::as_owner(owner, || work(table, &mut part, progress));
            }
            procedure.commit();
            guc::crash_point("piece-committed");
            if !part.goes_on() {
                break;
            }
        }
    }
    Out::Void
}

/// `CALL firn.compact_in_pieces(regclass, integer)`.
pub fn compact(args: Args) -> Out {
    let call = Call {
        command: Command::Compact,
        name: c"firn.compact_in_pieces()",
        function: "firn.compact()",
        doing: Doing { what: "compact", by: By::Maintainer },
    };
    in_pieces(
        call,
        args,
        stripes(args, 1),
        || (),
        |table, part, progress| {
            let oid = table.rel().oid();
            drop(table);
            crate::mover::compact(oid, part, progress);
        },
    )
}

/// `CALL firn.offload_in_pieces(regclass, name, integer)`.
pub fn offload(args: Args) -> Out {
    let Some(server) = args.name(1) else {
        error(Kind::Invalid, "server must not be null").raise()
    };
    let call = Call {
        command: Command::Offload,
        name: c"firn.offload_in_pieces()",
        function: "firn.offload()",
        doing: Doing { what: "offload", by: By::Owner },
    };
    let look = || usable_server(&server);
    in_pieces(call, args, stripes(args, 2), look, |table, part, progress| {
        crate::tier::offload_table(table.rel(), &server, part, progress);
    })
}

/// `CALL firn.load_in_pieces(regclass, integer)`.
pub fn load(args: Args) -> Out {
    let call = Call {
        command: Command::Load,
        name: c"firn.load_in_pieces()",
        function: "firn.load()",
        doing: Doing { what: "load", by: By::Owner },
    };
    in_pieces(
        call,
        args,
        stripes(args, 1),
        || (),
        |table, part, progress| {
            crate::tier::load_table(table.rel(), part, progress);
        },
    )
}
