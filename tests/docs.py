"""The documents say what is true: their examples run, their outputs are the server's, their links lead somewhere.

A fenced block is marked after its language: `sql runnable` is run by psql and must not fail; `sql fails=42501` must
end with an error of that SQLSTATE; `text output` right behind one of them is what psql prints for it (runs of
spaces, and of the dashes below a heading, count as one). The blocks of a file run in order in one session, which
begins in a new, empty database. `/tmp/firn-tour` and `/var/lib/firn-cold` stand for folders of the test's own.
"""
import glob
import os
import re

from harness.cluster import Cluster

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = re.compile(r"^```(\S+) (runnable|fails=\w{5}|output)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
PLACES = {"/tmp/firn-tour": "tour", "/var/lib/firn-cold": "store"}
MARK = "-- block --"


def documents():
    """Files that may have examples."""
    return [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs/guide/*.md"))),
            *sorted(glob.glob(os.path.join(ROOT, "docs/internals/*.md")))]


def has_examples(path):
    with open(path, encoding="utf-8") as f:
        return bool(blocks(f.read()))


def blocks(text):
    """Marked blocks: line number, mark, text."""
    return [(text.count("\n", 0, m.start()) + 2, m[2], m[3]) for m in BLOCK.finditer(text)]


def script(name, found):
    """One psql script of a file's SQL blocks. Each starts with a line that separates its output."""
    lines = [r"\pset pager off", r"\pset footer on"]
    for line, mark, sql in found:
        if mark == "output":
            continue
        place = f"{name}:{line}"
        lines += [rf"\echo {MARK}", rf"\set ON_ERROR_STOP {'on' if mark == 'runnable' else 'off'}", sql.rstrip("\n")]
        if mark != "runnable":
            state = mark.split("=")[1]
            lines += [r"\set ON_ERROR_STOP on", rf"SELECT :'SQLSTATE' <> '{state}' AS other \gset", r"\if :other",
                      rf"\warn {place}: SQLSTATE :SQLSTATE, documented is {state}",
                      "DO $$BEGIN RAISE 'not the documented error'; END$$;", r"\endif"]
    return "\n".join(lines) + "\n"


def plain(text):
    """Output without what differs by width alone."""
    text = re.sub(r"[-+]*--[-+]*", "--", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def run_examples(cluster, path, number):
    name = os.path.relpath(path, ROOT)
    with open(path, encoding="utf-8") as f:
        found = blocks(f.read())
    text = script(name, found)
    for place, folder in PLACES.items():
        text = text.replace(place, os.path.join(cluster.root, folder))
    cluster.run("createdb", "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres", f"docs{number}")
    result = cluster.run("psql", "-X", "-q", "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres",
                         "-d", f"docs{number}", check=False, input=text, env=dict(os.environ, PGTZ="UTC"))
    assert result.returncode == 0, result.stdout[-3000:]
    outputs = result.stdout.split(MARK + "\n")
    at = 0
    for line, mark, text in found:
        if mark != "output":
            at += 1
        else:
            assert plain(text) == plain(outputs[at]), f"{name}:{line}: psql prints\n{outputs[at]}"
    assert at > 0 or name != "README.md", "README.md has no example that runs"


def anchors(path):
    """Names of the headings of a file, as links spell them."""
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"^```.*?^```$", "", f.read(), flags=re.M | re.S)
    heads = re.findall(r"^#+ +(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def check_links():
    """Every relative link of every document leads to a file, and to a heading in it."""
    broken = []
    for path in glob.glob(os.path.join(ROOT, "**/*.md"), recursive=True):
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"^```.*?^```$", "", f.read(), flags=re.M | re.S)
        for target, anchor in LINK.findall(text):
            goal = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if not os.path.exists(goal) or (anchor and anchor not in anchors(goal)):
                broken.append(f"{os.path.relpath(path, ROOT)}: {target}#{anchor}")
    assert not broken, broken


def check_complete(cluster):
    """The guide names every setting with its default, every function and every view."""
    guide = "".join(open(p, encoding="utf-8").read() for p in documents())
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION firn")
        settings = c.execute("SELECT name, current_setting(name) FROM pg_settings WHERE name LIKE 'firn.%'").fetchall()
        names = c.execute("SELECT 'firn.' || proname FROM pg_proc WHERE pronamespace = 'firn'::regnamespace UNION ALL "
                          "SELECT 'firn.' || relname FROM pg_class WHERE relnamespace = 'firn'::regnamespace "
                          "AND relkind = 'v'").fetchall()
    missing = [n for n, value in settings if not re.search(rf"\| `{n}` \| `?{re.escape(value or '(empty)')}`? \|", guide)]
    missing += [n for (n,) in names if f"`{n}" not in guide]
    assert not missing, missing


def run(tally, pattern):
    tally.case("docs links", check_links)
    cluster = Cluster("docs").create()
    try:
        for folder in ("store",):
            os.mkdir(os.path.join(cluster.root, folder))
            os.chmod(os.path.join(cluster.root, folder), 0o777)
        tally.case("docs name all settings and functions", lambda: check_complete(cluster))
        for number, path in enumerate(documents()):
            name = os.path.relpath(path, ROOT)
            if pattern in name and (name == "README.md" or has_examples(path)):
                tally.case(f"docs examples of {name}", lambda: run_examples(cluster, path, number))
        tally.case("docs server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms("."), cluster.alarms(".")
