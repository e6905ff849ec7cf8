//! firn: a table access method whose tables are a row store (PostgreSQL's heap), compressed columnar
//! stripes in the table's own TOAST relation, and cold stripes as Parquet objects.
//!
//! Reading order: `pg` (the fence around PostgreSQL), `directory` (what is stored where), `write`
//! (how rows become stripes), `stripe` (how they are read), `am` (the callbacks), `plan` (the custom
//! scan), `mover`, `tier`, `sql`.

mod am;
mod directory;
mod mover;
mod pg;
mod plan;
mod sql;
mod stripe;
mod tier;
mod write;

pgrx::pg_module_magic!();

/// Called by PostgreSQL when it loads the library.
#[no_mangle]
pub extern "C-unwind" fn _PG_init() {
    // A server started with RUST_BACKTRACE would get a backtrace in the DETAIL of every error.
    std::env::set_var("RUST_LIB_BACKTRACE", "0");
    pg::init(|| {
        pg::guc::define();
        pg::hooks::install();
        pg::utility::install();
        pg::alter::install();
        pg::relation_info::install();
        write::init();
        plan::init();
    });
}
