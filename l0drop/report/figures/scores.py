"""Figure 4: quality against sparsity, over seeds, and against time."""

import itertools
import re
import statistics

import matplotlib

from l0drop.report.figures.drawing import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    PURPLE,
    RED,
    STYLE,
    Drawing,
    axes_of,
    in_percent,
    rendered,
)
from l0drop.report.findings import Findings
from l0drop.runs.provenance import Provenance
from l0drop.runs.study import Rivals, StudyResults
from l0drop.runs.sweep import Sweep, SweepPoint
from l0drop.study.sweep import RULES


def quality(sweep: Sweep) -> Drawing:
    """Score against sparsity of a sweep's points, with the scores of the dense models as lines."""
    points, scores = scored(sweep), sweep.scores
    if not points:
        raise ValueError("sweep.json: none of its points has a score")
    first = scores[points[0].run]
    score = first.score
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of()
        learned = [point for point in points if point.is_learned]
        rules = [point for point in points if point not in learned]
        for shown, style, colour, label in ((learned, "o-", BLUE, "learned gate"), (rules, "D", GOLD, "gate by rule")):
            if shown:
                values = [scores[point.run].score.value for point in shown]
                axes.plot([point.sparsity or 0.0 for point in shown], values, style, color=colour, label=label)
        for dense, colour, dashes, label in (
            (sweep.continued, RED, "--", "dense, continued"),
            (sweep.baseline, GREY, ":", "dense, start"),
        ):
            if dense.run in scores:
                axes.axhline(scores[dense.run].score.value, color=colour, linestyle=dashes, label=label)
        sign = {"lambda": "λ", "target": "target"}
        for point in [*(learned if len(learned) <= 8 else learned[:: -(-len(learned) // 8)]), *rules]:
            value = "" if point.value is None else f" {point.value:g}"
            axes.annotate(
                f"{sign.get(point.kind, point.kind)}{value}",
                (point.sparsity or 0.0, scores[point.run].score.value),
                xytext=(6, -3) if point in rules else (-5, -11),
                textcoords="offset points",
                ha="left" if point in rules else "right",
                fontsize=7.5,
            )
        axes.set(xlabel="sparsity", ylabel=score.name)
        axes.margins(x=0.16, y=0.18)
        in_percent(axes.xaxis)
        axes.legend(loc="best")
    against = f" (against {first.references})" if first.references else ""
    caption = (
        f"{score.name} against sparsity on the {sweep.split} text of {sweep.name}, {first.sentences} "
        f"sentences{against}, gating {sweep.gating}; each point is one fine-tuned model, one seed. {score.signature}"
    )
    return rendered("quality", "Quality against sparsity", caption, figure)


def scored(sweep: Sweep) -> list[SweepPoint]:
    """The points with a score, by sparsity."""
    return sorted((point for point in sweep.points if point.run in sweep.scores), key=lambda point: point.sparsity or 0)


def difference_curve(findings: Findings) -> Drawing:
    """The difference to the dense model against sparsity, with 95% intervals and the margin."""
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of()
        for role, mark, colour, label in (("sparse", "o-", BLUE, "learned gate"), ("rule", "D", GOLD, "rule")):
            rows = [row for row in findings.judged if row.role == role]
            if not rows:
                continue
            intervals = [row.compared.interval for row in rows if row.compared is not None]
            middle = [row.difference or 0.0 for row in rows]
            below = [difference - low for difference, (low, _) in zip(middle, intervals, strict=True)]
            above = [high - difference for difference, (_, high) in zip(middle, intervals, strict=True)]
            shares = [row.sparsity or 0.0 for row in rows]
            axes.errorbar(shares, middle, [below, above], fmt=mark, color=colour, capsize=3, label=label)
        axes.axhline(0, color=RED, linestyle="--", label=findings.compared_with)
        axes.axhline(-findings.margin, color=GREY, linestyle=":", label=f"margin of {findings.margin:g}")
        axes.set(xlabel="encodings dropped", ylabel=f"difference in {findings.metric}")
        axes.margins(x=0.12, y=0.15)
        in_percent(axes.xaxis)
        axes.legend(loc="best")
    caption = (
        f"Difference in {findings.metric} to {findings.compared_with}, on {findings.text}. Bars: two-sided 95% "
        "intervals. A model is non-inferior if its one-sided bound is above the margin."
    )
    return rendered("difference", "Difference to the dense model against sparsity", caption, figure)


_GATINGS = {"zero": ("o", BLUE), "mask": ("s", RED), "weight": ("^", GREEN), "mean": ("D", PURPLE)}
_MARKS = (("s", GREY), ("o", BLUE), ("^", GREEN), ("D", RED))


def seeds_and_sparsity(found: StudyResults, name: str) -> Drawing:
    """Differences to the continued baseline against sparsity, by gating, as `study.seeds` gathers them.

    Systems are named GATING-TARGET, or after a rule; others are not drawn. A single seed has a hollow mark and no
    interval.
    """
    ons = {run.seed: run.value() for run in found.systems["on"].runs}
    margins = {system.against_on.margin for system in found.systems.values() if system.against_on is not None}
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of()
        gatings = {gating: [name for name in found.systems if _is_of(name, gating)] for gating in _GATINGS}
        gatings = {gating: systems for gating, systems in gatings.items() if systems}
        for number, (gating, systems) in enumerate(gatings.items()):
            mark, colour = _GATINGS[gating]
            label: str | None = gating
            for content in (found.systems[system] for system in systems):
                runs, against = content.runs, content.against_on
                aside = 0.006 * (number - (len(gatings) - 1) / 2)
                sparsity = sum(run.sparsity or 0.0 for run in runs) / len(runs) + aside
                if against is not None:
                    middle, (low, high) = against.difference, against.interval
                    spread = [[middle - low], [high - middle]]
                    axes.errorbar([sparsity], [middle], spread, fmt=mark, color=colour, capsize=2.5, label=label)
                elif runs[0].seed in ons:
                    change = runs[0].value() - ons[runs[0].seed]
                    axes.plot([sparsity], [change], mark, color=colour, markerfacecolor="none", label=label)
                else:
                    continue
                label = None
        ruled = [(rule, found.systems[rule].runs[0]) for rule in RULES if rule in found.systems]
        for number, (rule, run) in enumerate((rule, run) for rule, run in ruled if run.seed in ons):
            at = run.sparsity or 0.0, run.value() - ons[run.seed]
            axes.plot(*at, "x", color=GOLD)
            axes.annotate(f"rule {rule}", at, (5, -12 if number % 2 else 4), textcoords="offset points", size=8)
        axes.axhline(0, color=GREY, linestyle="--", label="dense, continued")
        for margin in margins:
            axes.axhline(-margin, color=GREY, linestyle=":", label=f"margin of {margin:g}")
        axes.set(xlabel="sparsity", ylabel=f"difference in {found.metric}")
        axes.margins(x=0.12)
        in_percent(axes.xaxis)
        axes.legend(loc="best")
    caption = (
        f"{found.what}: difference to the continued baseline, test text. Bars: 95% intervals over seeds and "
        "sentences; hollow: one seed. Gatings are shifted slightly so that their marks do not overlap."
    )
    return rendered(name, "Quality against sparsity over seeds", caption, figure)


def _is_of(system: str, gating: str) -> bool:
    return re.fullmatch(rf"{gating}-[0-9.]+", system) is not None


def quality_and_time(found: Rivals, name: str) -> Drawing:
    """Quality against time per sentence, for systems at several beam sizes."""
    first = found.rows[0]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of()
        systems = list(dict.fromkeys(row.system for row in found.rows))
        for number, (system, (mark, colour)) in enumerate(zip(systems, itertools.cycle(_MARKS))):
            rows = sorted((row for row in found.rows if row.system == system), key=lambda row: row.beams)
            offset = (4, -11) if number % 2 else (-9, 5)  # neighbouring points are often close
            times = [1000 * statistics.median(row.cpu_seconds) / (row.sentences or 1) for row in rows]
            scores = [row.score.value for row in rows]
            axes.plot(times, scores, f"{mark}-", color=colour, label=system)
            for point, row in zip(zip(times, scores, strict=True), rows, strict=True):
                axes.annotate(f"{row.beams}", point, offset, textcoords="offset points", size=8, color=colour)
        axes.set(xlabel="CPU time per sentence, ms", ylabel=first.score.name)
        axes.margins(0.1)
        axes.set_xlim(left=0)
        axes.legend(loc="best")
    made_by = found.made_by or Provenance()
    caption = (
        f"{found.what}, on the whole test text; time on one thread ({made_by.device}), median of "
        f"{len(first.cpu_seconds)} rounds on {first.sentences} sentences. Numbers: beams."
    )
    return rendered(name, "Quality against time", caption, figure)
