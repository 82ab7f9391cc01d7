"""Figure 5: dropped tokens by group of words, by length and by position."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from l0drop.report.figures.drawing import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    INK,
    PURPLE,
    RED,
    STYLE,
    Drawing,
    axes_of,
    in_percent,
    rendered,
)
from l0drop.report.figures.reading import along, measured_on, why_omitted
from l0drop.runs.analysis import Analysis, Bin, SweepAnalysis

_GROUPS = {
    "punctuation": ("punctuation", GOLD, "s"),
    "function": ("function words", RED, "o"),
    "EOS": ("EOS", GREY, "x"),
    "BPEO": ("later pieces (BPEO)", PURPLE, "v"),
    "rest": ("other words", GREEN, "D"),
    "content": ("content words", BLUE, "^"),
    "BPEH": ("first pieces (BPEH)", "#5b6bd6", "P"),
}


def groups(analysis: Analysis | SweepAnalysis) -> Drawing:
    """Sparsity by group: bars for one run, curves against overall sparsity for a sweep."""
    if isinstance(analysis, Analysis):
        return _group_bars(analysis)
    points = along(analysis, "groups")
    if not points:
        raise ValueError(f"groups: none of the points has them ({why_omitted(analysis, 'groups')})")
    overall = [point.sparsity or 0.0 for point in points]
    measured = [point.groups.groups for point in points if point.groups is not None]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of(width=6.4, height=3.6)
        top = max(overall) * 1.05
        axes.plot([0, top], [0, top], color=INK, linewidth=0.8, alpha=0.5, linestyle=":", label="overall")
        for name, (label, colour, marker) in _GROUPS.items():
            rates = [rate[name].sparsity for rate in measured]
            if any(rate is not None for rate in rates):
                values = [np.nan if rate is None else rate for rate in rates]
                axes.plot(overall, values, marker=marker, color=colour, label=label)
        axes.set(xlabel="overall sparsity", ylabel="sparsity of the group", xlim=(0, top), ylim=(-0.02, 1.04))
        in_percent(axes.xaxis)
        in_percent(axes.yaxis)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    caption = (
        f"Sparsity of each group of source tokens against the overall sparsity, {len(points)} models of the sweep "
        f"{analysis.sweep}. Words that were not split are grouped by part of speech. "
    )
    return rendered("groups", "Dropped tokens by group of words", caption + measured_on(analysis), figure)


def _group_bars(analysis: Analysis) -> Drawing:
    assert analysis.groups is not None
    rates = analysis.groups.groups.items()
    found = {name: (rate.tokens, rate.sparsity) for name, rate in rates if rate.sparsity is not None}
    names = sorted(found, key=lambda name: found[name][1])
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of(height=0.32 * len(names) + 1.0)
        axes.barh(
            [f"{_GROUPS[name][0]}, {found[name][0]:,}" for name in names],
            [found[name][1] for name in names], color=[_GROUPS[name][1] for name in names], height=0.7,
        )  # fmt: skip
        axes.axvline(analysis.sparsity or 0.0, color=INK, linestyle="--", linewidth=1)
        for number, name in enumerate(names):
            axes.text(found[name][1] + 0.01, number, f"{found[name][1]:.0%}", va="center", fontsize=8)
        axes.set(xlabel="sparsity (dashed: of all tokens)", xlim=(0, 1.1))
        axes.set_xticks(np.linspace(0, 1, 6))
        axes.grid(axis="y", visible=False)
        in_percent(axes.xaxis)
    caption = (
        f"Sparsity of each group of source tokens, with its number of tokens; overall {analysis.sparsity:.1%}. "
        "Words that were not split are grouped by part of speech. "
    )
    return rendered("groups", "Dropped tokens by group of words", caption + measured_on(analysis), figure)


def positions(analysis: Analysis) -> Drawing:
    """Sparsity by sentence length, by position, and by tenth of the sentence."""
    assert analysis.places is not None
    found = analysis.places
    with matplotlib.rc_context(STYLE):
        figure, panels = axes_of(3, width=8.6, height=3.0, sharey=True)
        _steps(panels[0], found.by_length.bins, "source tokens of the sentence", BLUE)
        _steps(panels[1], found.by_position.bins, "position in the source", GREEN)
        tenths = found.by_relative_position.bins
        centres = [(entry.first + (entry.last or 1.0)) / 2 for entry in tenths]
        rates = [np.nan if entry.sparsity is None else entry.sparsity for entry in tenths]
        panels[2].plot(centres, rates, "s-", color=PURPLE)
        panels[2].set(xlabel="relative position in the source", xlim=(0, 1))
        in_percent(panels[2].xaxis)
        for axes in panels:
            axes.axhline(analysis.sparsity or 0.0, color=INK, linewidth=0.9, linestyle="--")
            axes.set_ylim(0, 1)
        panels[0].set_ylabel("sparsity (dashed: of all tokens)")
        in_percent(panels[0].yaxis)
    caption = (
        "Sparsity by source length (EOS counted), by position from the start, and by tenth of the source (both without "
        "EOS, so they may differ from the dashed line). "
    )
    return rendered("positions", "Dropped tokens by length and position", caption + measured_on(analysis), figure)


def _steps(axes: Axes, bins: Sequence[Bin], label: str, colour: str) -> None:
    names = [f"{entry.first}–{entry.last}" if entry.last is not None else f"{entry.first}+" for entry in bins]
    axes.bar(range(len(bins)), [entry.sparsity or 0.0 for entry in bins], color=colour, alpha=0.85)
    axes.set_xticks(range(len(bins)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7.5)
    axes.set_xlabel(label)
    axes.grid(axis="x", visible=False)
