/* An extension's hook on the server: it refuses utility statements that begin with a text, or passes over them without a word. */
#include "postgres.h"

#include "fmgr.h"
#include "tcop/utility.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

void _PG_init(void);

static char *refused, *swallowed;
static ProcessUtility_hook_type others;

static bool begins(PlannedStmt *statement, const char *text, const char *with)
{
	const char *at = text + Max(statement->stmt_location, 0);

	while (*at == ' ' || *at == '\n')
		at++;
	return with && *with && pg_strncasecmp(at, with, strlen(with)) == 0;
}

static void hook(PlannedStmt *statement, const char *text, bool read_only, ProcessUtilityContext context, ParamListInfo params,
				 QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	if (begins(statement, text, refused))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("the hook refuses %s", refused)));
	if (begins(statement, text, swallowed))
		return;
	if (others)
		others(statement, text, read_only, context, params, environment, receiver, completion);
	else
		standard_ProcessUtility(statement, text, read_only, context, params, environment, receiver, completion);
}

void _PG_init(void)
{
	DefineCustomStringVariable("hooks.refused", "Statements that fail.", NULL, &refused, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("hooks.swallowed", "Statements that do nothing.", NULL, &swallowed, "", PGC_USERSET, 0, NULL, NULL, NULL);
	others = ProcessUtility_hook;
	ProcessUtility_hook = hook;
}
