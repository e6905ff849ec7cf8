/*
 * Structures of PostgreSQL that this library repeats, as pgrx has no bindings of their headers: what is believed of them is
 * compared with the headers of the server that the library is built for. build.rs compiles this file; nothing of it is linked.
 *
 * Who repeats another structure adds it here.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam_xlog.h"
#include "access/hio.h"
#include "access/nbtree.h"
#include "access/nbtxlog.h"
#include "catalog/pg_depend.h"
#include "executor/hashjoin.h"
#if PG_VERSION_NUM >= 180000
#include "utils/pg_locale.h"
#endif
#include "utils/pgstat_internal.h"

#define AT(type, field, bytes) StaticAssertDecl(offsetof(type, field) == (bytes), #type "." #field " is elsewhere")

/* pg/compat/: HashTable; entry/customscan/joins.rs: Entry */
AT(HashJoinTableData, nbuckets, 0);
AT(HashJoinTableData, log2_nbuckets, 4);
AT(HashJoinTableData, buckets, 24);
AT(HashJoinTableData, skewEnabled, PG_VERSION_NUM < 180000 ? 33 : 32);
AT(HashJoinTableData, nbatch, 64);
AT(HashJoinTableData, curbatch, 68);
AT(HashJoinTableData, totalTuples, 88);
AT(HashJoinTableData, area, PG_VERSION_NUM < 160000 ? 232 : PG_VERSION_NUM < 180000 ? 240 : 208);
AT(HashJoinTableData, parallel_state, PG_VERSION_NUM < 160000 ? 240 : PG_VERSION_NUM < 180000 ? 248 : 216);
StaticAssertDecl(sizeof(dsa_pointer_atomic) == sizeof(uintptr_t) && sizeof(dsa_pointer) == sizeof(uintptr_t), "links of a shared hash table are of another size");
AT(HashJoinTupleData, next, 0);
StaticAssertDecl(HJTUPLE_OVERHEAD == 16, "a row in a hash table is elsewhere");

/* pg/wal.rs: HeapLockUpdated */
AT(xl_heap_lock_updated, xmax, 0);
AT(xl_heap_lock_updated, offnum, 4);
AT(xl_heap_lock_updated, infobits_set, 6);
AT(xl_heap_lock_updated, flags, 7);
StaticAssertDecl(SizeOfHeapLockUpdated == 8 && XLOG_HEAP2_LOCK_UPDATED == 0x60, "the record of a lock has changed");

/* pg/compat/: HeapFreezePage, FrozenTuple, FreezePlan. From 17 on PostgreSQL's own function makes that record. */
#if PG_VERSION_NUM < 160000
AT(xl_heap_freeze_page, cutoff_xid, 0);
AT(xl_heap_freeze_page, ntuples, 4);
AT(xl_heap_freeze_tuple, xmax, 0);
AT(xl_heap_freeze_tuple, offset, 4);
AT(xl_heap_freeze_tuple, t_infomask2, 6);
AT(xl_heap_freeze_tuple, t_infomask, 8);
AT(xl_heap_freeze_tuple, frzflags, 10);
StaticAssertDecl(sizeof(xl_heap_freeze_tuple) == 12, "the record of a frozen tuple has changed");
#elif PG_VERSION_NUM < 170000
AT(xl_heap_freeze_page, snapshotConflictHorizon, 0);
AT(xl_heap_freeze_page, nplans, 4);
AT(xl_heap_freeze_page, isCatalogRel, 6);
StaticAssertDecl(SizeOfHeapFreezePage == 7, "the record of a frozen page has changed");
AT(xl_heap_freeze_plan, xmax, 0);
AT(xl_heap_freeze_plan, t_infomask2, 4);
AT(xl_heap_freeze_plan, t_infomask, 6);
AT(xl_heap_freeze_plan, frzflags, 8);
AT(xl_heap_freeze_plan, ntuples, 10);
StaticAssertDecl(sizeof(xl_heap_freeze_plan) == 12, "the record of a frozen tuple has changed");
#endif

/* pg/compat/: HeapInplace */
AT(xl_heap_inplace, offnum, 0);
#if PG_VERSION_NUM < 180000
StaticAssertDecl(SizeOfHeapInplace == 2, "the record of an overwritten row has changed");
#else
AT(xl_heap_inplace, dbId, 4);
AT(xl_heap_inplace, tsId, 8);
AT(xl_heap_inplace, relcacheInitFileInval, 12);
AT(xl_heap_inplace, nmsgs, 16);
StaticAssertDecl(MinSizeOfHeapInplace == 20, "the record of an overwritten row has changed");
#endif
StaticAssertDecl(XLOG_HEAP_INPLACE == 0x70, "the record of an overwritten row has another number");

/* pg/compat/: BtreeReusePage */
#if PG_VERSION_NUM < 160000
AT(xl_btree_reuse_page, node, 0);
AT(xl_btree_reuse_page, block, 12);
AT(xl_btree_reuse_page, latestRemovedFullXid, 16);
#else
AT(xl_btree_reuse_page, locator, 0);
AT(xl_btree_reuse_page, block, 12);
AT(xl_btree_reuse_page, snapshotConflictHorizon, 16);
AT(xl_btree_reuse_page, isCatalogRel, 24);
StaticAssertDecl(SizeOfBtreeReusePage == 25, "the record of a page used again has changed");
#endif
StaticAssertDecl(XLOG_BTREE_REUSE_PAGE == 0xD0, "the record of a page used again has another number");

/* pg/compat/: Locale */
#if PG_VERSION_NUM >= 180000
AT(struct pg_locale_struct, collate_is_c, 2);
#endif

/* pg/btree.rs: Options */
AT(BTOptions, fillfactor, 4);
AT(BTOptions, vacuum_cleanup_index_scale_factor, 8);
AT(BTOptions, deduplicate_items, 16);

/* pg/ext.rs: PgStatEntryRef, PgStatSharedTable */
AT(PgStat_EntryRef, shared_stats, 8);
AT(PgStatShared_Common, lock, 4);
AT(PgStatShared_Relation, stats, 24);

/* pg/catalog.rs: DependRow */
AT(FormData_pg_depend, classid, 0);
AT(FormData_pg_depend, objid, 4);
AT(FormData_pg_depend, objsubid, 8);
AT(FormData_pg_depend, refclassid, 12);
AT(FormData_pg_depend, refobjid, 16);

/* pg/relocate.rs: BulkInsertHead */
AT(BulkInsertStateData, strategy, 0);
AT(BulkInsertStateData, current_buf, 8);
