//! Which columns of a table are wanted of a stripe, where each comes from, and what they are as datums: the one place that knows
//! of columns that a stripe lacks because they came later.

use super::handle::StripeHandle;
use super::layout::Layout;
use crate::pg::datum::{column_datums, Conversion, Datums, Missing, Rows};
use crate::pg::jsonb::Fields;
use crate::pg::{error, Kind};
use firn_format::{Column, ColumnSpec, StripeMeta};
use firn_scan::DecodedBatch;
use std::rc::Rc;

/// Where the values of a table's column come from.
#[derive(Clone)]
pub enum Source {
    /// All rows have this value.
    Constant(Missing),
    /// The stripe's column `stored`.
    Stored { stored: usize, conversion: Conversion },
}

/// Columns of a table, as a stripe has them.
pub struct Projection {
    /// The table's column and where its values come from, in the order asked for.
    columns: Vec<(usize, Source)>,
    /// Of documents in a column of the table, the fields that are looked at.
    fields: Rc<Vec<(usize, Fields)>>,
}

impl Projection {
    /// The columns `wanted` of the table; one that rows have no value of is NULL.
    pub fn new(
        layout: &Layout,
        meta: &StripeMeta,
        wanted: impl Iterator<Item = usize>,
    ) -> Projection {
        let columns = wanted.map(|i| (i, source(layout, meta.columns(), i))).collect();
        Projection { columns, fields: Rc::default() }
    }

    /// Of documents in these columns, only these fields are looked at.
    pub fn with_fields(self, fields: &Rc<Vec<(usize, Fields)>>) -> Projection {
        Projection { fields: fields.clone(), ..self }
    }

    /// The stripe's columns among them, in their order.
    pub fn stored(&self) -> Vec<usize> {
        let stored = self.columns.iter().filter_map(|(_, source)| match source {
            Source::Stored { stored, .. } => Some(*stored),
            Source::Constant(_) => None,
        });
        stored.collect()
    }

    /// The rows `rows` of a batch that a scan of [`Projection::stored`] has decoded: the table's column and its values.
    pub fn datums(
        &self,
        handle: &StripeHandle,
        batch: &DecodedBatch,
        rows: Rows<'_>,
    ) -> Vec<(usize, Datums)> {
        let mut decoded = batch.columns.iter();
        let of = |(i, source): &(usize, Source)| {
            let count = rows.len(batch.batch.rows.len());
            let datums = match source {
                Source::Constant(value) => Datums::constant(value, count),
                Source::Stored { stored, conversion } => match decoded.next() {
                    Some(column) => {
                        let fields = self.fields.iter().find(|(column, _)| column == i);
                        let how = (*conversion, fields.map(|(_, fields)| fields));
                        of_column(handle, column, *stored, how, rows)
                    }
                    None => Datums::constant(&Missing::default(), count),
                },
            };
            (*i, datums)
        };
        self.columns.iter().map(of).collect()
    }
}

/// Where column `i` of the table comes from, in a stripe of these columns.
pub fn source(layout: &Layout, columns: &[ColumnSpec], i: usize) -> Source {
    let Some(column) = layout.columns.get(i).and_then(Option::as_ref) else {
        return Source::Constant(Missing::default());
    };
    let number = i32::from(column.attribute.number);
    match columns.iter().enumerate().find(|(_, spec)| spec.field_id == number) {
        Some((stored, ColumnSpec { kind, .. })) => {
            let Some(conversion) = column.conversion_from(*kind) else {
                let (name, own) = (&column.attribute.name, &column.type_name);
                let what = format!("a stripe has column \"{name}\", of type {own}, as {kind:?}");
                error(Kind::Corrupt, what).raise()
            };
            Source::Stored { stored, conversion }
        }
        None => Source::Constant(layout.missing(i)),
    }
}

/// Datums of a decoded column of the stripe.
pub fn of_column(
    handle: &StripeHandle,
    column: &Column,
    stored: usize,
    how: (Conversion, Option<&Fields>),
    rows: Rows<'_>,
) -> Datums {
    column_datums(column, how, rows, |d| handle.dictionary_datums(stored, how.0, d))
}
