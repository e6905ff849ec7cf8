"""Print this machine's lists of Debian packages in the one-line form: debian_lists.py deb|deb-src [SUITE].

Those of its own suites, or, with SUITE, of another one from the same places. (Another suite stands beside the plain one, not beside its updates or
its security archive.)
"""
import glob
import re
import sys

OWN = "bookworm"
kind, suite = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""


def told(options, place, own):
    if not suite or own == OWN:
        print(f"{kind} {options}{place} {suite or own} main")


for path in glob.glob("/etc/apt/sources.list.d/*.sources"):
    with open(path) as f:
        blocks = re.split(r"\n\s*\n", f.read())
    for block in blocks:
        lines = [line.split(":", 1) for line in block.splitlines() if ":" in line and not line.startswith("#")]
        fields = {key.strip().lower(): value.split() for key, value in lines}
        signed = "".join(f"[signed-by={key}] " for key in fields.get("signed-by", [])[:1])
        for place in fields.get("uris", []):
            for own in fields.get("suites", []):
                if own.startswith(OWN):
                    told(signed, place, own)
for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list")]:
    try:
        with open(path) as f:
            for line in f:
                if found := re.match(rf"deb\s+(\[[^]]*\]\s+)?(\S+)\s+({OWN}\S*)\s", line):
                    told(found[1] or "", found[2], found[3])
    except FileNotFoundError:
        pass
