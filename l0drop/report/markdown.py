"""The report as Markdown, for pull requests: tables instead of figures."""

import re

from l0drop.report import evaluation
from l0drop.report.findings import Findings
from l0drop.report.summary import summary
from l0drop.runs import escape
from l0drop.runs.evaluation import ExampleSentence
from l0drop.runs.table import as_markdown
from l0drop.study.source_need import QUESTION

EXAMPLES = 5


def markdown(findings: Findings) -> str:
    """Summary, tables, some examples, signatures."""
    parts = [
        f"# {escape.markdown(findings.name)}",
        *([] if findings.warning is None else [f"**{escape.markdown(findings.warning)}**"]),
        escape.markdown(" ".join(summary(findings))),
        as_markdown(evaluation.points_table(findings)),
    ]
    tables = {
        "Tail risk": evaluation.tail_overview(findings),
        "Rules and the learned gate": evaluation.rules_table(findings) if findings.has_rules else None,
        QUESTION: evaluation.controls_table(findings),
        **findings.measured,
    }
    if findings.examples:
        shown = findings.examples[:EXAMPLES]
        count = f"{len(shown)} of {len(findings.examples)}; dropped source tokens are in ⟦brackets⟧."
        parts += ["## Examples", " ".join(filter(None, [count, evaluation.which_seed(findings)]))]
        parts += [_example(example) for example in shown]
    for title, table in tables.items():
        if table is not None:
            parts += [f"## {escape.markdown(title)}", as_markdown(table)]
    signatures = (f"- {escape.markdown(name)}: {escape.code(text)}" for name, text in findings.signatures.items())
    parts += ["## Signatures", "\n".join(signatures)]
    if findings.missing:
        parts += ["## Not in this report", "\n".join(f"- {escape.markdown(note)}" for note in findings.missing)]
    return "\n\n".join(parts) + "\n"


def _example(example: ExampleSentence) -> str:
    source = "".join(f"⟦{segment}⟧" if state == "dropped" else segment for segment, state in example.source)
    sides = {"source": source, "human": example.reference, "dense": example.baseline, "gated": example.system}
    lines = [
        f"{name:<7} {escape.printable(' '.join(side.split()))}" for name, side in sides.items() if side is not None
    ]
    # As many backticks as a fence has would close it, so it gets more than any run of them in the text.
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", "".join(lines)))]))
    return "\n".join([f"Line {example.line:,}, {escape.markdown(example.why)}:\n", f"{fence}text", *lines, fence])
