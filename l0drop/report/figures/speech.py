"""Spectrograms with dropped rows in grey, and word error rate against sparsity."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from l0drop.report.figures.drawing import BLUE, GREY, INK, RED, STYLE, Drawing, axes_of, in_percent, rendered
from l0drop.report.speech_tables import names
from l0drop.runs.escape import printable
from l0drop.runs.speech import ShownClip, SpeechAnalysis, SpeechEvaluation, TimedWord

PANEL_SECONDS = 4.0
"""The most audio that one line of a spectrogram shows."""
WIDTH, PANEL, WORD_LINE = 6.4, 1.0, 0.19
"""Inches: of the figure, of a spectrogram, of a line of words."""
WORD_SIZE, CHARACTER = 9, 0.62
"""Points, and the width of a character as a share of them."""
LINES = 3
"""Of words below a spectrogram, so that long ones do not overlap."""
COLOURS = np.array([[42, 10, 94], [216, 69, 107], [253, 243, 160]]) / 255
"""From quiet to loud, as on the page of the service."""
GREYS = np.array([119, 196]) / 255
STRIP = 3
"""Rows of pixels below a spectrogram that mark kept rows a second time, for readers who do not see colours."""


def spectrograms(analysis: SpeechAnalysis) -> Iterator[Drawing]:
    """One figure for each clip that the analysis stored."""
    for number, clip in enumerate(analysis.shown):
        yield _spectrogram(clip, analysis, "spectrogram" if number == 0 else f"spectrogram-{number + 1}")


def _spectrogram(clip: ShownClip, analysis: SpeechAnalysis, name: str) -> Drawing:
    panels = max(1, math.ceil(clip.seconds / PANEL_SECONDS))
    seconds = len(clip.kept) * clip.row_seconds / panels
    character = seconds / (WIDTH * 72) * WORD_SIZE * CHARACTER
    starts = [number * seconds for number in range(panels)]
    words = [
        placed([word for word in clip.words if start <= word.start < start + seconds], start + seconds, character)
        for start in starts
    ]
    lines = 1 + max((line for panel in words for _, line, _ in panel), default=-1)
    image = pixels(clip)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        ratios = [PANEL, WORD_LINE * max(1, lines)] * panels
        figure = Figure(figsize=(WIDTH, sum(ratios) + 0.3 * panels))
        grid = figure.subplots(2 * panels, 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
        for start, panel, axes, below in zip(starts, words, grid[::2], grid[1::2], strict=True):
            axes.imshow(image, interpolation="none", aspect="auto", extent=(0, len(clip.kept) * clip.row_seconds, 0, 1))
            axes.set(xlim=(start, start + seconds), yticks=[])
            axes.tick_params(labelsize=8, pad=1)
            below.set(xlim=(start, start + seconds), ylim=(max(1, lines), 0))
            below.axis("off")
            for at, line, text in panel:
                shown = below.text(at, line, printable(text), size=WORD_SIZE, va="top", color=INK)
                shown.set_in_layout(False)
    dropped = 1 - sum(clip.kept) / max(1, len(clip.kept))
    caption = (
        f"{clip.file}, {clip.seconds:.1f} seconds; time in seconds, low tones below. Grey: dropped, {dropped:.1%} of "
        "the rows that audio covers; the blue line marks kept rows."
    )
    if clip.words:
        caption += f" Words: those of {Path(str(analysis.dense)).name}, at the times of its attention."
    caption += f" Transcript of {Path(analysis.model).name}: {clip.text.strip() or '(empty)'}"
    return rendered(name, f"Dropped rows of {clip.file}", caption, figure)


def pixels(clip: ShownClip) -> NDArray[np.float64]:
    """[mels + STRIP, rows, 4], low tones at the bottom: kept rows in colour, dropped ones in grey."""
    level = np.array(clip.levels, dtype=np.float64).T / 99
    kept = np.array(clip.kept, dtype=bool)
    stops = np.linspace(0, 1, len(COLOURS))
    coloured = np.stack([np.interp(level, stops, COLOURS[:, part]) for part in range(3)], -1)
    grey = np.repeat(np.interp(level, (0, 1), GREYS)[..., None], 3, -1)
    shown = np.where(kept[None, :, None], coloured, grey)[::-1]
    image = np.ones((len(shown) + STRIP, len(kept), 4))
    image[: len(shown), :, :3] = shown
    image[len(shown) :, :, :3] = [int(BLUE[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    image[len(shown) :, :, 3] = kept
    image[len(shown), :, 3] = 0  # a gap between the spectrogram and the line
    return image


def placed(words: Sequence[TimedWord], end: float, character: float) -> list[tuple[float, int, str]]:
    """Where words stand, as (seconds, line, text): at their start, on the first line on which there is room.

    end: of the panel. character: the seconds that a character covers. A word that fits on no line follows the one that
    ends first.
    """
    free = [-math.inf] * LINES
    found = []
    for word in words:
        width = (len(word.text) + 1) * character
        at = min(word.start, end - width)
        line = next((line for line, start in enumerate(free) if start <= at), None)
        if line is None:
            line = free.index(min(free))
            at = free[line]
        free[line] = at + width
        found.append((at, line, word.text))
    return found


def can_be_drawn(evaluation: SpeechEvaluation) -> bool:
    """Whether there are two points of a curve: gated models, or settings of the dial."""
    return sum(one.sparsity is not None for one in evaluation.systems) + len(evaluation.curve) > 1


def error_curve(evaluation: SpeechEvaluation) -> Drawing:
    """The word error rate of gated models, and of the first one along the dial, with the baseline as a line."""
    named = names(evaluation)
    baseline = None if evaluation.baseline is None else evaluation.baseline.scores["wer"].value
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = axes_of()
        if evaluation.curve:
            rows = sorted(evaluation.curve, key=lambda row: row.sparsity)
            label = f"{printable(named[0])}, other shares kept"
            axes.plot([row.sparsity for row in rows], [row.score.value for row in rows], "o-", color=BLUE, label=label)
            for row in rows:
                axes.annotate(
                    f"{row.keep:g}", (row.sparsity, row.score.value), (0, 6), textcoords="offset points", size=8,
                    ha="center",
                )  # fmt: skip
        for name, one in zip(named, evaluation.systems, strict=False):
            if one.sparsity is None:
                continue
            value, found = one.scores["wer"].value, one.differences.get("wer")
            spread = None
            if found is not None:
                low, high = (found.baseline + bound for bound in found.interval)
                spread = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axes.errorbar([one.sparsity], [value], spread, fmt="D", color=RED, capsize=3)
            axes.annotate(printable(name), (one.sparsity, value), (6, -10), textcoords="offset points", size=8)
        if baseline is not None:
            axes.axhline(baseline, color=GREY, linestyle="--", label=printable(named[-1]))
            margin = evaluation.judging.margin
            axes.axhline(baseline + margin, color=GREY, linestyle=":", label=f"margin of {margin:g}")
        axes.set(xlabel="dropped rows, of those that audio covers", ylabel="WER")
        axes.margins(x=0.15, y=0.15)
        in_percent(axes.xaxis)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
    caption = f"Word error rate against sparsity, on {evaluation.clips:,} clips; lower is better."
    if baseline is not None:
        caption += " Bars: 95% intervals of the difference to the baseline."
    if evaluation.curve:
        caption += " Numbers: the share of rows to keep, set at run time."
    return rendered("error-curve", "Word error rate against sparsity", caption, figure)
