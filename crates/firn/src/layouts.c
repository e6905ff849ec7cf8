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
#include "utils/pgstat_internal.h"

#define AT(type, field, bytes) StaticAssertDecl(offsetof(type, field) == (bytes), #type "." #field " is elsewhere")

/* entry/customscan/joins.rs: Table, Entry */
AT(HashJoinTableData, nbuckets, 0);
AT(HashJoinTableData, log2_nbuckets, 4);
AT(HashJoinTableData, buckets, 24);
AT(HashJoinTableData, skewEnabled, 33);
AT(HashJoinTableData, nbatch, 64);
AT(HashJoinTableData, curbatch, 68);
AT(HashJoinTableData, totalTuples, 88);
AT(HashJoinTableData, area, 232);
AT(HashJoinTableData, parallel_state, 240);
StaticAssertDecl(sizeof(dsa_pointer_atomic) == sizeof(uintptr_t) && sizeof(dsa_pointer) == sizeof(uintptr_t), "links of a shared hash table are of another size");
AT(HashJoinTupleData, next, 0);
StaticAssertDecl(HJTUPLE_OVERHEAD == 16, "a row in a hash table is elsewhere");

/* pg/wal.rs: HeapLockUpdated, HeapFreezePage, FrozenTuple, BtreeReusePage */
AT(xl_heap_lock_updated, xmax, 0);
AT(xl_heap_lock_updated, offnum, 4);
AT(xl_heap_lock_updated, infobits_set, 6);
AT(xl_heap_lock_updated, flags, 7);
StaticAssertDecl(SizeOfHeapLockUpdated == 8 && XLOG_HEAP2_LOCK_UPDATED == 0x60, "the record of a lock has changed");
AT(xl_heap_freeze_page, cutoff_xid, 0);
AT(xl_heap_freeze_page, ntuples, 4);
AT(xl_heap_freeze_tuple, xmax, 0);
AT(xl_heap_freeze_tuple, offset, 4);
AT(xl_heap_freeze_tuple, t_infomask2, 6);
AT(xl_heap_freeze_tuple, t_infomask, 8);
AT(xl_heap_freeze_tuple, frzflags, 10);
StaticAssertDecl(sizeof(xl_heap_freeze_tuple) == 12, "the record of a frozen tuple has changed");
AT(xl_btree_reuse_page, node, 0);
AT(xl_btree_reuse_page, block, 12);
AT(xl_btree_reuse_page, latestRemovedFullXid, 16);
StaticAssertDecl(XLOG_BTREE_REUSE_PAGE == 0xD0, "the record of a page used again has changed");

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
