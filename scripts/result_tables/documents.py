"""Tables of the study of documents: quality by length, scores with wrong sources, fewer beams."""

import statistics
from collections.abc import Mapping

from l0drop.runs.run import SPLITS
from l0drop.runs.study import BeamScores, LengthScore, LengthScores
from l0drop.runs.table import Table
from result_tables.labels import CONTINUED, SAME_WAY, SYSTEMS, label

LABELS = {**SYSTEMS, CONTINUED: SYSTEMS[SAME_WAY]}
"""In this study, all models are distilled in the same way, the continued baseline too."""


def lengths_table(found: LengthScores, labels: Mapping[str, str] = LABELS) -> Table:
    """Every system by length: scores on both texts, and the difference to the continued baseline on test text."""
    rows = []
    for one in _on(found, "test"):
        valid = found.row(one.system, "valid", one.length)
        row = [label(one.system, labels), f"{one.length:,}", "-" if one.sparsity is None else f"{one.sparsity:.1%}"]
        row += [f"{score.value:.2f}" for score in (valid.score, one.score)]
        against = one.difference
        row.append(
            "-" if against is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(against.difference, *against.interval)
        )
        rows.append(row)
    head = ["system, one seed", "longest source", "dropped", "BLEU, valid", "BLEU, test"]
    return Table([*head, f'test: difference to "{labels[CONTINUED]}"'], rows)


def controls_table(found: LengthScores, labels: Mapping[str, str] = LABELS) -> Table:
    """Scores on test text with the right source and with wrong ones, and the loss as a share of their gap."""
    rows = []
    for one in _on(found, "test"):
        wrong = [one.controls.get(name) for name in ("shuffled_source", "no_source")]
        row = [label(one.system, labels), f"{one.length:,}", f"{one.score.value:.2f}"]
        row += ["-" if score is None else f"{score.value:.2f}" for score in wrong]
        share = lost_share(found, one)
        row.append("-" if share is None else f"{share:.1%}")
        rows.append(row)
    head = ["system, one seed", "longest source", "BLEU, own source", "BLEU, shuffled sources", "BLEU, empty source"]
    return Table([*head, "lost share of the gap"], rows)


def lost_share(found: LengthScores, one: LengthScore) -> float | None:
    """The loss against the continued baseline, as a share of what the right source brings that baseline."""
    if one.difference is None or CONTINUED not in {row.system for row in found.rows}:
        return None
    dense = found.row(CONTINUED, one.split, one.length)
    gap = dense.score.value - dense.controls["shuffled_source"].value
    return -one.difference.difference / gap if gap > 0 else None


def examples_table(found: LengthScores) -> Table:
    """The numbers and the lengths of the scored examples."""
    rows = []
    system = found.rows[0].system
    for split in SPLITS:
        for one in _on(found, split):
            if one.system == system:
                mean = one.source_tokens / one.examples
                rows.append([split, f"{one.length:,}", f"{one.examples:,}", f"{mean:,.0f}"])
    return Table(["text", "longest source", "examples", "mean source, subwords"], rows)


def beams_table(found: BeamScores, labels: Mapping[str, str] = LABELS) -> Table:
    """Quality and time by the number of beams, and how much faster each system is than the first one."""
    rows = []
    for row in found.rows:
        first = next(one for one in found.rows if one.length == row.length)
        name = label(row.system.rpartition("-s")[0], labels) + (", full memory" if row.dense else "")
        difference = "-" if row.difference is None else f"{row.difference.difference:+.2f}"
        times = statistics.median(first.seconds) / statistics.median(row.seconds)
        rows.append([name, f"{row.length:,}", str(row.beams), f"{row.score.value:.2f}", difference, f"{times:.2f}"])
    head = ["system, one seed", "longest source", "beams", "BLEU, test", "difference to the first row of its length"]
    return Table([*head, "times as fast as the first row of its length"], rows)


def _on(found: LengthScores, split: str) -> list[LengthScore]:
    return [row for row in found.rows if row.split == split]
