//! How a table's columns are stored, remembered per session until the table's definition changes.

use crate::pg::datum::ColumnType;
use crate::pg::Rel;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A table's columns in attribute order; None for a dropped one.
pub struct Layout {
    pub columns: Vec<Option<ColumnType>>,
}

thread_local! {
    static LAYOUTS: RefCell<HashMap<u32, (u64, Rc<Layout>)>> = RefCell::new(HashMap::new());
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
    let fresh = Rc::new(layout_of(&table.attributes()));
    LAYOUTS.with_borrow_mut(|map| {
        // Tables come and go; the map must not grow with all that ever were.
        if map.len() > 4_096 {
            map.clear();
        }
        map.insert(table.oid(), (token, fresh.clone()))
    });
    fresh
}

/// The layout of these columns.
pub fn layout_of(attributes: &[crate::pg::rel::Attribute]) -> Layout {
    let columns = attributes.iter().map(|a| (!a.dropped).then(|| ColumnType::of(a))).collect();
    Layout { columns }
}
