"""What extensions written in C ask of a table's access method and no statement does: a library with functions for it."""
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def functions(cluster, c):
    """Make them in the database of this connection."""
    path = os.path.join(cluster.root, "calls.so")
    if not os.path.exists(path):
        include = subprocess.check_output([os.environ["PG_CONFIG"], "--includedir-server"], text=True).strip()
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-I", include, "-o", path, os.path.join(HERE, "calls.c")], check=True)
    for name, arguments in (("scan_by_keys", "regclass, text, int2, regprocedure, int4"),
                            ("scan_by_keys", "regclass, text, int2, regprocedure, text"),
                            ("scan_by_keys", "regclass, text, int2, regprocedure, tid"),
                            ("scan_by_keys", "regclass, text, int2, regprocedure, int4, int2, regprocedure, text"),
                            ("build_range", "regclass, int8, int8")):
        strict = "STRICT" if name == "build_range" else ""
        c.execute(f"CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS int4[] LANGUAGE c {strict} AS '{path}', '{name}'")
