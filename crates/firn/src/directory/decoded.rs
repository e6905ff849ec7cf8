//! Tables that logical decoding reads.

use crate::pg::rel::Decoder;
use crate::pg::{error, Kind, Rel};

/// Logical decoding does not see what happens to stripe rows: rather no change than one that is missed.
pub fn refuse_decoded(table: Rel, what: &str) {
    let Some(decoder) = table.decoded_by() else { return };
    let (why, hint) = match decoder {
        Decoder::Publication => (
            "it is published".to_owned(),
            "Remove the table from its publications, or change its access method to heap."
                .to_owned(),
        ),
        Decoder::Slot(name) => (
            format!("replication slot \"{name}\" decodes it"),
            format!(
                "Drop replication slot \"{name}\", or change the table's access method to heap."
            ),
        ),
    };
    error(Kind::Unsupported, format!("cannot {what} table \"{}\" because {why}", table.name()))
        .detail("Logical decoding sees changes of rows in the row store only.")
        .hint(hint)
        .raise()
}
