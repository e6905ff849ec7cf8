"""The table of docs/internals/growth.md from the measures of two runs: `python table.py BEFORE AFTER` (FIRN_GROWTH_OUT of each)."""
import json
import sys

KB, MB = 1024, 1 << 20


def read(path):
    with open(path) as f:
        return {r["name"]: r for r in map(json.loads, f)}


def size(b):
    if abs(b) < 1000:
        return f"{b}"
    return f"{b / KB:.0f} kB" if abs(b) < MB else f"{b / MB:.1f} MB"


def is_size(measure):
    return measure in ("contexts", "resident", "row store", "TOAST", "TOAST indexes") or measure.startswith("index ")


def told(result):
    """What a run had at 10, 50 and 100 per cent: memory always, of the rest what grew in its second half."""
    if not result:
        return "not run"
    if not result["taken"] or result["lost"]:
        return f"session lost ({result['lost']})"
    marks = [result["taken"][m] for m in ("10 %", "50 %", "100 %")]
    cells = [f"{result['n']}×"]
    for m in ("contexts", "resident"):
        values = [size(x[m]) for x in marks]
        cells.append(("" if m == "contexts" else "RSS ") + (values[0] if len(set(values)) == 1 else " → ".join(values)))
    for m in sorted(set(marks[1]) | set(marks[2])):
        was, now = marks[1].get(m, 0), marks[2].get(m, 0)
        if m not in ("contexts", "resident") and now > was:
            cells.append(f"{m} {size(was) if is_size(m) else was} → {size(now) if is_size(m) else now}")
    cells += [f"{text} ({count})" for text, count in result["surprises"].items()]
    return ", ".join(cells)


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
                cells.append("not run" if not r else "failed" if r["few"] is None else f"{size(r['few'])}, {size(r['many'])}")
            print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
