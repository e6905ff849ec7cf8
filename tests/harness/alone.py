"""Waiting for the others: what VACUUM and compaction take depends on whom snapshots are held by."""
import time


def alone(c):
    """Wait until nobody else has a snapshot or a transaction, which keep VACUUM from what they may see."""
    end = time.time() + 120
    others = ("SELECT pid, backend_type, state, query FROM pg_stat_activity "
              "WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)")
    while found := c.execute(others).fetchall():
        assert time.time() < end, found
        time.sleep(0.05)
