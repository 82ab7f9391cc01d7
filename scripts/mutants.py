"""Write docs/reliability/mutants.json and its table in docs/exactness.md from the results of mutmut.

    make mutate

A mutant is the code with one small change; it is killed if a test fails. Survivors are listed with the reason why no
test fails. Reasons are written by hand into the JSON file, and taken over as long as function and change are the same.
"""

import argparse
import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from l0drop.data.whole import write_whole
from l0drop.runs.provenance import commit

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs/reliability/mutants.json"
PAGE = ROOT / "docs/exactness.md"
START, END = "<!-- mutants -->\n", "<!-- /mutants -->"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    reasons = {}
    if FILE.exists():
        reasons = {identity(one): one["reason"] for one in json.loads(FILE.read_text(encoding="utf-8"))["survivors"]}
    counts, survivors = measured()
    for one in survivors:
        one["reason"] = reasons.get(identity(one), "")
    found = {"tool": f"mutmut {version('mutmut')}", "commit": commit(), "files": counts}
    FILE.parent.mkdir(exist_ok=True)
    write_whole(FILE, json.dumps({**found, "survivors": survivors}, indent=1, ensure_ascii=False) + "\n")
    write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8"), counts))
    missing = [one for one in survivors if not one["reason"]]
    if missing:
        sys.exit(f"{FILE}: {len(missing)} survivors have no reason; kill them with a test, or write it down")


def identity(survivor: dict[str, Any]) -> tuple[str, ...]:
    return tuple(survivor[name] for name in ("file", "function", "before", "after"))


def measured() -> tuple[dict[str, dict[str, int]], list[dict[str, Any]]]:
    """The number of killed and of all mutants per file, and the survivors."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    counts, survivors = {}, []
    for meta in sorted(Path("mutants/l0drop").rglob("*.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        states = {name: status_by_exit_code[code] for name, code in codes.items()}
        if not states:
            continue
        file = meta.relative_to("mutants").with_suffix("").as_posix()
        number = Counter(states.values())
        if number["not checked"]:
            sys.exit(f"{file}: {number['not checked']} mutants are not checked yet; run mutmut to the end")
        counts[file] = {"mutants": len(states), "killed": number["killed"] + number["timeout"]}
        for name, state in states.items():
            if state not in ("killed", "timeout"):
                lines = get_diff_for_mutant(name).splitlines()[2:]
                survivors.append(
                    {
                        "file": file,
                        "function": name.rpartition(".")[2].partition("__mutmut")[0].removeprefix("x").strip("_ǁ"),
                        "before": "\n".join(line[1:].strip() for line in lines if line.startswith("-")),
                        "after": "\n".join(line[1:].strip() for line in lines if line.startswith("+")),
                    }
                )
    return counts, survivors


def table(counts: dict[str, dict[str, int]]) -> str:
    """Mutants and killed ones of every file and of all."""
    total = {name: sum(one[name] for one in counts.values()) for name in ("mutants", "killed")}
    rows = [*((f"`{file}`", one) for file, one in counts.items()), ("all", total)]
    lines = ["| file | mutants | killed | share |", "|---|---|---|---|"]
    lines += [f"| {name} | {one['mutants']:,} | {one['killed']:,} | {one['killed'] / one['mutants']:.1%} |"
              for name, one in rows]  # fmt: skip
    return "\n".join(lines) + "\n"


def filled(page: str, counts: dict[str, dict[str, int]]) -> str:
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{table(counts)}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    main()
