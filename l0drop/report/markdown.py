"""The report as Markdown, for pull requests: tables instead of figures."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from l0drop.report import words
from l0drop.report.findings import Findings
from l0drop.report.page import CONTROL, Table

EXAMPLES = 5


def markdown(findings: Findings) -> str:
    """Summary, tables, some examples, signatures."""
    best = findings.recommended
    marked = None if best is None else findings.rows.index(best)
    parts = [
        f"# {plain(findings.name)}",
        plain(" ".join(words.summary(findings))),
        table(words.points_table(findings), marked),
        plain(words.points_note(findings)),
    ]
    if findings.tail is not None:
        parts += ["## Tail risk", table(words.tail_table(findings.tail)), plain(words.tail_note(findings))]
    if findings.has_rules:
        parts += ["## Rules beside the learned gate", table(words.rules_table(findings))]
    for title, (content, note) in findings.measured.items():
        parts += [f"## {title}", table(content), *filter(None, [plain(note)])]
    if findings.examples:
        shown = findings.examples[:EXAMPLES]
        count = f"{len(shown)} of {len(findings.examples)}; what was dropped is in ⟦brackets⟧."
        parts += ["## Examples", " ".join(filter(None, [count, words.which_seed(findings)]))]
        parts += [_example(example) for example in shown]
    parts += ["## Signatures", "\n".join(f"- {plain(name)}: `{text}`" for name, text in findings.signatures.items())]
    if findings.missing:
        parts += ["## Not in this report", "\n".join(f"- {plain(note)}" for note in findings.missing)]
    return "\n\n".join(parts) + "\n"


def plain(value: str) -> str:
    """Text that stays text on a Markdown page, calls nobody and links nowhere."""
    shown = escape(CONTROL.sub("\ufffd", " ".join(value.split())), quote=False)
    shown = re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", shown)
    return shown.replace("@", "@\u200b").replace("://", ":\u200b//")


def table(content: Table, marked: int | None = None) -> str:
    """A table; the cells of one row may be bold."""
    head, rows = content
    lines: list[Sequence[str]] = [[plain(name) for name in head], ["---", *["---:"] * (len(head) - 1)]]
    for place, row in enumerate(rows):
        lines.append([f"**{plain(cell)}**" if place == marked and cell else plain(cell) for cell in row])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _example(example: dict[str, Any]) -> str:
    source = "".join(f"⟦{segment}⟧" if state == "dropped" else segment for segment, state in example["source"])
    sides = {"source": source, "reference": example["reference"], "baseline": example["baseline"]}
    lines = [
        f"{name:<10} {CONTROL.sub(chr(0xFFFD), ' '.join(side.split()))}"
        for name, side in {**sides, "ours": example["system"]}.items()
        if side is not None
    ]
    # a fence is closed by as many backticks as it has, so it has more than the text
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", "".join(lines)))]))
    return "\n".join([f"Line {example['line']:,}, {plain(example['why'])}:\n", f"{fence}text", *lines, fence])
