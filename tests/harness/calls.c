/* What extensions written in C ask of a table's access method and no statement does: see calls.py. */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(scan_by_keys);
PG_FUNCTION_INFO_V1(build_range);

typedef struct Found
{
	Datum	   *values;
	int			count;
} Found;

static void
note(Found *found, Datum value)
{
	if (found->count % 1024 == 0)
	{
		Size		size = sizeof(Datum) * (found->count + 1024);

		found->values = found->values ? repalloc(found->values, size) : palloc(size);
	}
	found->values[found->count++] = value;
}

static Datum
array_of(Found *found)
{
	return PointerGetDatum(construct_array(found->values, found->count, INT4OID, 4, true, TYPALIGN_INT));
}

static void
read_all(Relation rel, TableScanDesc scan, ScanDirection direction, Found *found)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	while (table_scan_getnextslot(scan, direction, slot))
	{
		bool		isnull;

		note(found, slot_getattr(slot, 1, &isnull));
	}
	ExecDropSingleTupleTableSlot(slot);
}

/* scan_by_keys(table, how, column, function, value [, column, function, value]): the first column of the rows for which the functions are true */
Datum
scan_by_keys(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	char	   *how = text_to_cstring(PG_GETARG_TEXT_PP(1));
	int			nkeys = PG_NARGS() / 3;
	ScanKeyData keys[2];
	Found		found = {0};
	TableScanDesc scan;

	for (int i = 0; i < nkeys; i++)
	{
		int			at = 2 + i * 3;

		ScanKeyEntryInitialize(&keys[i], PG_ARGISNULL(at + 2) ? SK_ISNULL : 0, PG_GETARG_INT16(at), InvalidStrategy, InvalidOid,
							   DEFAULT_COLLATION_OID, PG_GETARG_OID(at + 1), PG_ARGISNULL(at + 2) ? 0 : PG_GETARG_DATUM(at + 2));
	}
	if (strcmp(how, "catalog") == 0)
	{
		SysScanDesc sys = systable_beginscan(rel, InvalidOid, false, GetActiveSnapshot(), nkeys, keys);
		HeapTuple	tuple;

		while (HeapTupleIsValid(tuple = systable_getnext(sys)))
		{
			bool		isnull;

			note(&found, heap_getattr(tuple, 1, RelationGetDescr(rel), &isnull));
		}
		systable_endscan(sys);
		table_close(rel, AccessShareLock);
		PG_RETURN_DATUM(array_of(&found));
	}
	scan = table_beginscan(rel, GetActiveSnapshot(), nkeys, keys);
	if (strcmp(how, "again") == 0)
	{
		/* No row, then those asked for. */
		ScanKeyData none[2];

		memcpy(none, keys, sizeof(keys));
		none[0].sk_flags |= SK_ISNULL;
		table_rescan(scan, none);
		read_all(rel, scan, ForwardScanDirection, &found);
		table_rescan(scan, keys);
	}
	read_all(rel, scan, strcmp(how, "backward") == 0 ? BackwardScanDirection : ForwardScanDirection, &found);
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	PG_RETURN_DATUM(array_of(&found));
}

static void
sampled(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool alive, void *state)
{
	note(state, values[0]);
}

/* build_range(index, start, count): the first column of what a build would get of these blocks, as the samples of index builds ask for it */
Datum
build_range(PG_FUNCTION_ARGS)
{
	Relation	index = index_open(PG_GETARG_OID(0), AccessShareLock);
	Relation	table = table_open(index->rd_index->indrelid, AccessShareLock);
	Found		found = {0};

	table_index_build_range_scan(table, index, BuildIndexInfo(index), false, true, false,
								 (BlockNumber) PG_GETARG_INT64(1), (BlockNumber) PG_GETARG_INT64(2), sampled, &found, NULL);
	table_close(table, AccessShareLock);
	index_close(index, AccessShareLock);
	PG_RETURN_DATUM(array_of(&found));
}
