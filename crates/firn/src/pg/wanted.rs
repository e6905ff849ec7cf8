//! Which columns an index or bitmap scan needs of the rows that it fetches. The table access method
//! is not told: it gets a slot to fill. So the slots of scans are marked when the
//! executor starts, and who fills a marked slot finds the scan's expressions through it.
//!
//! The mark is a bit of the slot that PostgreSQL does not use and clears when it makes a slot, so an
//! address that is remembered here from a query that has ended is never taken for a new slot's.

use super::ext::callback;
use super::first_conditions::FirstConditions;
use super::nodes::marks_of;
use super::slot::Slot;
use firn_format::hash::MixMap;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::rc::Rc;

const MARK: u16 = 1 << 14;

/// Remembered scans, at most; a scan that is forgotten reads all columns.
const MOST: usize = 4_096;

thread_local! {
    static SCANS: RefCell<MixMap<usize, Scan>> = RefCell::default();
}

/// The node whose slot it is. It lives as long as the slot.
#[derive(Clone, Copy)]
struct Scan(*mut pg_sys::ScanState);

/// Note a scan node. Nobody but its own plan looks at the columns of its rows: who changes or locks a row has a slot of
/// its own for it, and fetches the row anew.
///
/// # Safety
/// A planstate node of a query that has been started.
pub(crate) unsafe fn note(state: *mut pg_sys::PlanState) {
    // SAFETY: a node of the type that its tag says; its slot lives as long as it.
    unsafe {
        use pg_sys::NodeTag as T;
        let scan = state as *mut pg_sys::ScanState;
        let slot = match (*state).type_ {
            T::T_IndexScanState | T::T_BitmapHeapScanState => (*scan).ss_ScanTupleSlot,
            // It looks at the row's visibility alone.
            T::T_IndexOnlyScanState => (*(state as *mut pg_sys::IndexOnlyScanState)).ioss_TableSlot,
            _ => return,
        };
        let rel = (*scan).ss_currentRelation;
        if slot.is_null() || rel.is_null() || !super::Rel::of(rel).is_firn() {
            return;
        }
        (*slot).tts_flags |= MARK;
        callback(|| {
            SCANS.with_borrow_mut(|scans| {
                if scans.len() >= MOST {
                    scans.clear();
                }
                scans.insert(slot as usize, Scan(scan));
            })
        })
    }
}

unsafe fn is_btree(index: pg_sys::Relation) -> bool {
    // SAFETY: an open index, or null.
    unsafe { !index.is_null() && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID }
}

/// What is needed of the rows in a slot.
pub struct Needed {
    /// By the table's columns.
    pub columns: Vec<bool>,
    /// There is one.
    pub some: bool,
    /// Nobody looks into the slot: it is asked whether there is a row.
    pub only_whether: bool,
    /// No system columns but those that a slot has itself, without a tuple: TID and table.
    pub plain: bool,
    /// Conditions of the node that are asked before the other columns are read.
    pub first: Option<FirstConditions>,
    /// The same of rows whose conditions need not be checked again, where that is less.
    pub unchecked: Option<Rc<Needed>>,
}

impl Needed {
    fn of(columns: Vec<bool>, plain: bool) -> Needed {
        let some = columns.contains(&true);
        Needed { columns, some, only_whether: false, plain, first: None, unchecked: None }
    }
}

impl Slot {
    /// Whether the columns needed in this slot may be fewer than all.
    pub fn is_marked(self) -> bool {
        // SAFETY: a live slot.
        unsafe { (*self.0).tts_flags & MARK != 0 }
    }

    /// What is needed in this slot; None when that is a whole row.
    pub fn wanted(self) -> Option<Rc<Needed>> {
        if !self.is_marked() {
            return None;
        }
        let Scan(scan) = SCANS.with_borrow(|scans| scans.get(&(self.0 as usize)).copied())?;
        // SAFETY: the slot is marked, so the node that owns it is alive, and so is its plan.
        unsafe {
            let columns = super::Rel::of((*scan).ss_currentRelation).column_count();
            if (*scan).ps.type_ == pg_sys::NodeTag::T_IndexOnlyScanState {
                let none = Needed::of(vec![false; columns], true);
                // IndexOnlyNext() clears it at once.
                return Some(Rc::new(Needed { only_whether: true, ..none }));
            }
            let plan = (*scan).ps.plan;
            let rechecked = match (*plan).type_ {
                pg_sys::NodeTag::T_IndexScan => {
                    let index = plan as *mut pg_sys::IndexScan;
                    // What a B-tree finds is not checked again.
                    match is_btree((*(scan as *mut pg_sys::IndexScanState)).iss_RelationDesc) {
                        true => [std::ptr::null_mut(), std::ptr::null_mut()],
                        false => [(*index).indexqualorig, (*index).indexorderbyorig],
                    }
                }
                pg_sys::NodeTag::T_BitmapHeapScan => {
                    let bitmap = plan as *mut pg_sys::BitmapHeapScan;
                    [(*bitmap).bitmapqualorig, std::ptr::null_mut()]
                }
                _ => return None,
            };
            let relid = (*(plan as *mut pg_sys::Scan)).scanrelid;
            let needed = |nodes: &[*mut pg_sys::Node]| {
                let (wanted, plain) = marks_of(nodes, relid, columns);
                Needed::of(wanted, plain)
            };
            let nodes = [
                (*plan).targetlist.cast(),
                (*plan).qual.cast(),
                rechecked[0].cast(),
                rechecked[1].cast(),
            ];
            let mut all = needed(&nodes);
            if (*plan).type_ == pg_sys::NodeTag::T_BitmapHeapScan {
                // A bitmap's own conditions come first where they are checked again.
                let mut unchecked = needed(&nodes[..2]);
                unchecked.first = FirstConditions::of(scan, &unchecked);
                let is_less = unchecked.columns != all.columns || unchecked.first.is_some();
                all.unchecked = is_less.then(|| Rc::new(unchecked));
            } else if rechecked.iter().all(|list| list.is_null()) {
                all.first = FirstConditions::of(scan, &all);
            }
            Some(Rc::new(all))
        }
    }
}
