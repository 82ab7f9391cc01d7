"""The table of a sweep that was trained, before it is evaluated."""

from l0drop.runs.run import Scored
from l0drop.runs.sweep import Outcome, Sweep, SweepPoint
from l0drop.runs.table import Table


def summary_table(sweep: Sweep) -> tuple[Table, list[str]]:
    """Sparsity and quality of every point, on the test text if there is one; and notes to print below."""
    scored: Scored | None = sweep.continued.scored(sweep.split)
    name = "score" if scored is None else scored.score.name
    entries: list[tuple[str, Outcome]] = [("dense, start", sweep.baseline), ("dense, continued", sweep.continued)]
    entries += [(point.run, point) for point in sweep.points]
    rows = [[label, *_cells(entry, sweep)] for label, entry in entries]
    notes = [
        f"dense, start: {sweep.baseline.run}",
        "difference: compared with dense, continued, which got the same number of extra steps without a gate",
    ]
    if scored is not None:
        if scored.references:
            notes.append(f"{name} is measured against {scored.references}: agreement with that model, not quality")
        notes.append(scored.score.signature)
    return Table(["model", "sparsity", name, "difference"], rows), notes


def _cells(entry: Outcome, sweep: Sweep) -> list[str]:
    scored = entry.scored(sweep.split)
    change = entry.differences.get(sweep.split) if isinstance(entry, SweepPoint) else None
    return [
        "" if entry.sparsity is None else f"{entry.sparsity:.1%}",
        "" if scored is None else f"{scored.score.value:.2f}",
        "" if change is None else f"{change:+.2f}",
    ]
