"""The table of docs/internals/growth.md from the measures of two runs: `python table.py BEFORE AFTER` (FIRN_GROWTH_OUT of each)."""
import json
import sys

KB, MB = 1024, 1 << 20


def read(path):
    """Results by name. A file may have several of a name, the later of which counts if it was measured as often as the rule asks."""
    found = {}
    with open(path) as f:
        for r in map(json.loads, f):
            if r["name"] not in found or len(set(r.get("marks", {1: 1, 2: 2, 3: 3}).values())) == 3:
                found[r["name"]] = r
    return found


def size(b):
    if abs(b) < 1000:
        return f"{b}"
    return f"{b / KB:.0f}k" if abs(b) < MB else f"{b / MB:.1f}M"


def is_size(measure):
    return measure in ("contexts", "resident", "row store", "TOAST", "TOAST indexes") or measure.startswith("index ")


# Growth from 10 to 100 per cent that is not worth a word.
LITTLE = {"contexts": 16 * KB, "resident": 300 * KB}
SHORT = {"contexts": "contexts", "resident": "heap"}


def told(result):
    """What a run had at 10, 50 and 100 per cent, as far as it was not the same."""
    if not result:
        return "not run"
    if not result["taken"] or result["lost"]:
        return f"session lost ({result['lost']})"
    marks = [result["taken"][m] for m in ("10 %", "50 %", "100 %")]
    cells = []
    for m in sorted(set(marks[1]) | set(marks[2])):
        values = [x.get(m, 0) for x in marks]
        if max(values) - values[0] > LITTLE.get(m, 0):
            cells.append(f"{SHORT.get(m, m)} " + " → ".join(size(v) if is_size(m) else str(v) for v in values))
    if len(set(result["marks"].values())) < 3:
        cells.append("measured less than three times")
    cells += [f"{text} ({count})" for text, count in result["surprises"].items()]
    return f"{result['n']}: " + ("; ".join(cells) or "flat")


def main():
    before, after = read(sys.argv[1]), read(sys.argv[2])
    print("| operation | before | after |\n|---|---|---|")
    for name, result in after.items():
        if "taken" in result:
            print(f"| {name} | {told(before.get(name))} | {told(result)} |".replace("\n", " "))
    print("\n| what | before: few, many | after: few, many |\n|---|---|---|")
    for name, result in after.items():
        if "few" in result:
            cells = []
            for r in (before.get(name), result):
                scale = str if "open files" in name else size
                cells.append("not run" if not r else "failed" if r["few"] is None else f"{scale(r['few'])}, {scale(r['many'])}")
            print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
