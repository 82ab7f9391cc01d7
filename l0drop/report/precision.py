"""The table of rounding in a trained model's outputs."""

from l0drop.report.benchmark import Titled
from l0drop.runs.precision import Precision
from l0drop.runs.table import Table


def precision_table(result: Precision) -> Titled:
    """A row per type and memory: outputs as in the reference type, BLEU, and outputs that change with the batch."""
    ways = [name for name in result.batches if name != "own"]
    rows = [
        [
            f"{row.dtype}, {row.memory}",
            f"{row.same:.1%}",
            f"{row.score.value:.2f} ({row.difference:+.2f})",
            "-" if row.differing is None else f"{row.differing.value:.1f}",
            *(f"{row.changed[name]:.1%}" for name in ways),
        ]
        for row in result.rows
    ]
    head = [
        "",
        f"as in {result.reference}",
        "BLEU (difference)",
        "chrF where not",
        *(f"changed: {way}" for way in ways),
    ]
    title = f"{result.sentences} lines, {result.source_tokens / result.sentences:.0f} tokens on average"
    note = "".join(f"{name} is left out: {reason}. " for name, reason in result.left_out.items())
    return title, Table(head, rows, note)
