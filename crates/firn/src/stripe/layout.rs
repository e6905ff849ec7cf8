//! How a table's columns are stored, remembered per session until the table's definition changes.

use crate::directory::keys;
use crate::pg::datum::{ColumnType, Missing};
use crate::pg::rel::Attribute;
use crate::pg::slot::remembered_default;
use crate::pg::{error, ChunkKey, Kind, LockMode, Oid, Rel, Snap, Toast, TupleSlot};
use firn_format::hash::MixMap;
use std::cell::RefCell;
use std::rc::Rc;

/// A table's columns in attribute order; None for one that rows have no value of.
pub struct Layout {
    pub columns: Vec<Option<ColumnType>>,
    /// What stripes that lack a column have in it; None where that is none of the column's type: damaged, or of the type before,
    /// while the table is rewritten and nobody asks for it by this layout.
    missing: Vec<Option<Missing>>,
}

impl Layout {
    /// The value that rows written before column `i` was added have in it.
    pub fn missing(&self, i: usize) -> Missing {
        let Some(missing) = self.missing.get(i) else { return Missing::default() };
        missing.clone().unwrap_or_else(|| {
            let name = self.columns[i].as_ref().map_or("", |column| &column.attribute.name);
            let what = format!("the default kept of column \"{name}\" is none of its type");
            error(Kind::Corrupt, what).raise()
        })
    }
}

/// The default of a column that rows lack: the one that PostgreSQL remembers, or the one kept in the TOAST relation when
/// a rewrite made PostgreSQL forget it.
fn missing_of(table: Rel, attribute: &Attribute, remembered: Option<Vec<u8>>) -> Option<Missing> {
    if attribute.absent {
        return Some(Missing::default());
    }
    let kept = || {
        let toast = Toast::open(table, LockMode::AccessShare).filter(|t| !t.is_empty())?;
        let key = ChunkKey { id: keys::MISSING, seq: i32::from(attribute.number) };
        toast.find(key, Snap::self_snap()).map(|row| row.data)
    };
    match remembered.or_else(kept) {
        Some(bytes) => Missing::of(attribute, &bytes),
        None => Some(Missing::default()),
    }
}

thread_local! {
    static LAYOUTS: RefCell<MixMap<Oid, (u64, Rc<Layout>)>> = RefCell::default();
}

/// The layout of `table` as it is defined now.
pub fn layout(table: Rel) -> Rc<Layout> {
    let token = table.definition_token();
    let known = LAYOUTS.with_borrow(|map| {
        map.get(&table.oid()).filter(|(t, _)| *t == token).map(|(_, l)| l.clone())
    });
    if let Some(layout) = known {
        return layout;
    }
    let fresh = Rc::new(layout_of(table, &table.attributes(), |a| remembered_default(table, a)));
    LAYOUTS.with_borrow_mut(|map| {
        // Tables come and go; the map must not grow with all that ever were.
        if map.len() > 4_096 {
            map.clear();
        }
        map.insert(table.oid(), (token, fresh.clone()))
    });
    fresh
}

/// The layout of `table`'s stripes in the definition that `slot` has, with these columns.
pub fn layout_in(table: Rel, slot: TupleSlot, columns: &[Attribute]) -> Layout {
    layout_of(table, columns, |a| {
        // A slot's definition may be a copy without defaults.
        let same = |b: &&Attribute| b.number == a.number && b.type_oid == a.type_oid && !b.absent;
        let known = || remembered_default(table, table.attributes().iter().find(same)?);
        slot.remembered_default(a).or_else(known)
    })
}

fn layout_of(
    table: Rel,
    attributes: &[Attribute],
    remembered: impl Fn(&Attribute) -> Option<Vec<u8>>,
) -> Layout {
    let columns = attributes.iter().map(|a| (!a.absent).then(|| ColumnType::of(a))).collect();
    let missing = attributes.iter().map(|a| missing_of(table, a, remembered(a))).collect();
    Layout { columns, missing }
}
