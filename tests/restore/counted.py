"""How much was compared with how much: of all twins of a run, added up. It is told when the suite ends."""
import re

RULES = re.compile(r"(?<= )--disable-rule[= ](\S+)")
JOBS = re.compile(r"(?<= )(?:-j|--jobs)[= ]?(\d+)(?= |$)")


class Catalogs(dict):
    """Catalog to (its columns, its rows with how often each is there), of one database."""

    def __init__(self, version, objects):
        super().__init__()
        # How many of what these describe has an oid of its own and is none of initdb's.
        self.version, self.objects = version, objects


class Counts:
    """Comparisons with one version of the server."""

    def __init__(self):
        self.comparisons, self.different, self.rows, self.objects = 0, 0, 0, 0
        self.columns, self.jobs, self.rules = {}, {}, {}

    def add(self, got, run, different):
        self.comparisons += 1
        self.different += different
        self.objects += got.objects
        for catalog, (columns, rows) in got.items():
            self.rows += sum(rows.values())
            self.columns.setdefault(catalog, set()).update(columns)
        if run is not None:
            said = " ".join(run.args)
            jobs, rules = JOBS.findall(said), RULES.findall(said)
            # The last one counts.
            jobs = int(jobs[-1]) if jobs else 1
            self.jobs[jobs] = self.jobs.get(jobs, 0) + 1
            for rule in ",".join(rules).split(",") if rules else ["none"]:
                self.rules[rule] = self.rules.get(rule, 0) + 1

    def told(self, version):
        columns = sum(map(len, self.columns.values()))
        return (f"twins of {version}: {self.comparisons} comparisons of {len(self.columns)} catalogs with {columns} columns; "
                f"{self.objects} objects, {self.rows} rows; by jobs {listed(self.jobs)}; by rules switched off {listed(self.rules)}; "
                f"differences {self.different}")


def listed(counts):
    return ", ".join(f"{key}: {n}" for key, n in sorted(counts.items())) or "not told"


FOUND = {}


def add(got, run, different):
    """Two databases were compared: what the second has, and the restore that made it, if its flags are to be told."""
    FOUND.setdefault(got.version, Counts()).add(got, run, different)


def tell():
    for version, counts in sorted(FOUND.items()):
        print(f"     {counts.told(version)}", flush=True)
