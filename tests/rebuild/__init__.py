"""Indexes that a compaction has left half empty are built anew after VACUUM: by the command, by a background process after
autovacuum; others are not kept waiting, nothing is left over, and it is never VACUUM that fails."""
from harness.cluster import Cluster
from rebuild.beside import databases_can_be_dropped, long_readers_are_not_waited_for, sessions_write_meanwhile, upserts_meanwhile, whoever_wants_the_lock_gets_it
from rebuild.failures import altered_while_it_is_made, crashes_leave_nothing, cancelled_rebuilds_are_not_forgotten, errors_are_warnings, left_overs_are_not_attached, left_overs_are_not_cloned, left_overs_go, who_is_at_work_elsewhere_is_not_waited_for
from rebuild.how_large import all_kinds, autovacuum_does_it_too, old_entries_are_waited_for, other_kinds, sizes_are_right
from rebuild.standby import standby_snapshots
from rebuild.tables import other_tables, several_at_once

CASES = [all_kinds, sizes_are_right, autovacuum_does_it_too, long_readers_are_not_waited_for,
         old_entries_are_waited_for, sessions_write_meanwhile, errors_are_warnings, crashes_leave_nothing,
         whoever_wants_the_lock_gets_it, databases_can_be_dropped, other_tables, several_at_once,
         upserts_meanwhile, left_overs_go, standby_snapshots, other_kinds,
         cancelled_rebuilds_are_not_forgotten, left_overs_are_not_attached, left_overs_are_not_cloned, altered_while_it_is_made, who_is_at_work_elsewhere_is_not_waited_for]


def run(tally, pattern):
    cluster = Cluster("rebuild", ["fsync=off", "autovacuum=off", "autovacuum_naptime=1s", "restart_after_crash=on"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect")
        for case in CASES:
            name = case.__name__.replace("_", " ")
            if pattern in name:
                tally.case(f"rebuild: {name}", lambda: case(cluster))
        tally.case("rebuild server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    # The crash points end sessions by a signal.
    said = [line for line in cluster.alarms('could not rebuild index "f_trap"') if "terminated by signal 9" not in line]
    assert not said, said
