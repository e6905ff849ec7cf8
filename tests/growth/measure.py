"""What a session and its database hold at a moment: memory by context, Rust's heap, locks, files, catalog rows, sizes."""
import os
import re

KB, MB = 1024, 1 << 20

# A session tells its own contexts only. What a context has handed out, not what it holds in reserve.
CONTEXTS = "SELECT name, sum(used_bytes)::bigint FROM pg_backend_memory_contexts GROUP BY 1"
CATALOGS = ("pg_class", "pg_attribute", "pg_depend", "pg_type", "pg_index", "pg_shdepend", "pg_statistic", "pg_proc")
SIZES = """SELECT CASE c.relkind WHEN 'i' THEN CASE WHEN o.relkind = 't' THEN 'TOAST indexes' ELSE 'index ' || c.relname END
             WHEN 't' THEN 'TOAST' ELSE 'row store' END,
       sum(pg_relation_size(c.oid))::bigint
FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_class o ON o.oid = i.indrelid
WHERE (c.relkind IN ('r', 'm') AND c.relnamespace = 'public'::regnamespace)
   OR (c.relkind = 't' AND EXISTS (SELECT FROM pg_class t WHERE t.reltoastrelid = c.oid AND t.relnamespace = 'public'::regnamespace))
   OR (c.relkind = 'i' AND (o.relnamespace = 'public'::regnamespace
        OR EXISTS (SELECT FROM pg_class t WHERE t.reltoastrelid = o.oid AND t.relnamespace = 'public'::regnamespace)))
GROUP BY 1"""


def resident(pid, field="RssAnon"):
    """Memory of its own that a process has: what PostgreSQL's contexts and Rust's heap took of the system."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field + ":")) * 1024


def files_below(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


class Watch:
    """Measures of one session, taken from it and from another one."""

    def __init__(self, cluster, session, other):
        self.cluster, self.session, self.other = cluster, session, other
        self.pid = session.info.backend_pid
        database = other.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()[0]
        self.folder = os.path.join(cluster.data, "base", str(database))

    def take(self):
        """Measures by name; files of dropped tables go with a checkpoint, so there is one before."""
        self.other.execute("CHECKPOINT")
        found = {"files": files_below(self.folder), "open files": len(os.listdir(f"/proc/{self.pid}/fd"))}
        temporary = os.path.join(self.cluster.data, "base", "pgsql_tmp")
        found["temporary files"] = files_below(temporary)
        for name in ("store", "firn_cache"):
            root = self.cluster.root if name == "store" else self.cluster.data
            found[name] = files_below(os.path.join(root, name))
        found["locks"] = self.other.execute("SELECT count(*) FROM pg_locks WHERE pid = %s", [self.pid]).fetchone()[0]
        for name in CATALOGS:
            found[f"rows of {name}"] = self.other.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        for name, size in self.other.execute(SIZES).fetchall():
            # A name that a rebuild gives for a while is that of no index.
            found[re.sub(r"_ccnew\d*$", "", name)] = int(size)
        contexts = {name: int(used) for name, used in self.session.execute(CONTEXTS).fetchall()}
        found["contexts"] = sum(contexts.values())
        found["resident"] = resident(self.pid)
        return found, contexts


def peak(pid):
    """The most memory of its own that a process had since `reset_peak`. The system counts shared memory in, which a
    session comes to touch all of and keeps."""
    return resident(pid, "VmHWM") - resident(pid, "RssShmem") - resident(pid, "RssFile")


def reset_peak(pid):
    """From now on `peak` counts anew."""
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")


def short(measure, value):
    """A number as the table shows it."""
    if measure in ("contexts", "resident", "row store", "TOAST", "TOAST indexes") or measure.startswith("index "):
        return f"{value / MB:.1f}M" if abs(value) >= MB else f"{value / KB:.0f}k"
    return str(value)
