"""Tables of the study of documents: quality by length, scores with wrong sources, fewer beams."""

import statistics
from collections.abc import Mapping

from l0drop.runs.run import SPLITS
from l0drop.runs.study import BeamScores, LengthScores
from l0drop.runs.table import Table
from result_tables.labels import CONTINUED, SAME_WAY, SYSTEMS, label
from result_tables.studies import count

LABELS = {**SYSTEMS, CONTINUED: SYSTEMS[SAME_WAY]}
"""In this study, all models are distilled in the same way, the continued baseline too."""


def lengths_table(found: LengthScores, labels: Mapping[str, str] = LABELS) -> Table:
    """Every system by length: mean scores on both texts, and the difference to the continued baseline on test text."""
    rows = []
    for name, length in _systems(found):
        valid, test = (found.of(name, split, length) for split in SPLITS)
        sparsities = [one.sparsity for one in test if one.sparsity is not None]
        row = [_title(found, name, labels), f"{length:,}", f"{statistics.mean(sparsities):.1%}" if sparsities else "-"]
        row += [f"{statistics.mean(one.score.value for one in runs):.2f}" for runs in (valid, test)]
        against = found.difference(name, "test", length)
        row.append(
            "-" if against is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(against.difference, *against.interval)
        )
        rows.append(row)
    head = ["system", "longest source", "dropped", "BLEU, valid", "BLEU, test"]
    return Table([*head, f'test: difference to "{labels[CONTINUED]}"'], rows)


def controls_table(found: LengthScores, labels: Mapping[str, str] = LABELS) -> Table:
    """Scores on test text with the right source and with wrong ones, and the loss as a share of their gap."""
    rows = []
    for name, length in _systems(found):
        runs = found.of(name, "test", length)
        row = [_title(found, name, labels), f"{length:,}", f"{statistics.mean(one.score.value for one in runs):.2f}"]
        for control in ("shuffled_source", "no_source"):
            wrong = [score.value for one in runs if (score := one.controls.get(control)) is not None]
            row.append(f"{statistics.mean(wrong):.2f}" if wrong else "-")
        share = lost_share(found, name, length)
        row.append("-" if share is None else f"{share:.1%}")
        rows.append(row)
    head = ["system", "longest source", "BLEU, own source", "BLEU, shuffled sources", "BLEU, empty source"]
    return Table([*head, "lost share of the gap"], rows)


def lost_share(found: LengthScores, system: str, length: int) -> float | None:
    """The loss against the continued baseline, as a share of what the right source brings that baseline."""
    dense, against = found.of(CONTINUED, "test", length), found.difference(system, "test", length)
    if against is None or not dense:
        return None
    gap = statistics.mean(one.score.value - one.controls["shuffled_source"].value for one in dense)
    return -against.difference / gap if gap > 0 else None


def examples_table(found: LengthScores) -> Table:
    """The numbers and the lengths of the scored examples."""
    rows = []
    first = found.rows[0]
    for split in SPLITS:
        for one in found.rows:
            if (one.system, one.seed, one.split) == (first.system, first.seed, split):
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


def _systems(found: LengthScores) -> list[tuple[str, int]]:
    """Every system at every length, by length."""
    return list(dict.fromkeys((one.system, one.length) for one in found.rows if one.split == "test"))


def _title(found: LengthScores, system: str, labels: Mapping[str, str]) -> str:
    seeds = {one.seed for one in found.rows if one.system == system}
    return f"{label(system, labels)}, {count(len(seeds), 'seed')}"
