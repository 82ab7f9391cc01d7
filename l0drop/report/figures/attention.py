"""Figures 1, 2, 6 and 7: attention mass per word, attention maps, and entropy."""

from collections.abc import Sequence

import matplotlib
import numpy as np

from l0drop.report.figures.drawing import (
    BLUE,
    GOLD,
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
from l0drop.runs.analysis import Analysis, ModelAnalysis, SweepAnalysis

_MASS = {
    "baseline": ("dense, all words", GREY),
    "baseline_renormalised": ("dense, kept words only", GOLD),
    "sparse": ("sparse, kept words", BLUE),
    "sparse_zero_row": ("sparse with untrained zero row, kept words", BLUE),
    "entmax": ("sparse attention, all words", PURPLE),
}


def attention_mass(analysis: Analysis) -> Drawing:
    """The attention mass of source words, one panel per system."""
    assert analysis.mass is not None
    systems, on_dropped = analysis.mass.systems, analysis.mass.share_on_dropped
    names = [name for name in _MASS if name in systems]
    with matplotlib.rc_context(STYLE):
        figure, panels = axes_of(len(names), width=max(4.2, 2.9 * len(names)), height=3.0, sharey=True)
        for axes, name in zip(panels, names, strict=True):
            label, colour = _MASS[name]
            found = systems[name]
            shares = np.array(found.histogram.counts) / max(1, found.words)
            width = found.histogram.bin_width
            edges = width * np.arange(len(shares))
            axes.bar(edges, shares, width=width, align="edge", color=colour, alpha=0.85)
            axes.axvline(0.6, color=INK, linewidth=0.9, linestyle="--")
            axes.axvline(found.mean, color=INK, linewidth=1.2)
            axes.set_title(label.replace(", ", ",\n"))
            axes.set(xlabel="attention mass", xlim=(0, min(5.0, width * len(shares))))
            axes.text(
                0.97, 0.95,
                f"mean {found.mean:.2f}\n{100 * found.share_under:.1f}% under 0.6\n"
                f"{100 * found.share_under_of_mean:.1f}% under\n0.6 of the mean",
                transform=axes.transAxes, ha="right", va="top", fontsize=8,
            )  # fmt: skip
            in_percent(axes.yaxis)
        panels[0].set_ylabel("share of source tokens")
    dropped = (
        f" The sparse model puts {on_dropped['sparse']:.1%} of its attention on dropped words (with gating zero or "
        f"mean, on the row that represents them); the dense model {on_dropped['baseline']:.1%} on the same words."
        if "sparse" in on_dropped and "baseline" in on_dropped
        else ""
    )
    caption = (
        "Cross-attention on a source token, averaged over heads and layers and summed over the target. Solid line: the "
        "mean, which rises when fewer words share the attention; dashed line: 0.6." + dropped
    )
    return rendered("attention-mass", "Attention mass per source word", caption + " " + measured_on(analysis), figure)


_MAPS = {"baseline": "dense", "entmax": "sparse attention", "sparse": "L0Drop"}


def attention_maps(analysis: Analysis, number: int = 0) -> Drawing:
    """The cross-attention of one sentence in every system; dropped tokens are crossed out."""
    assert analysis.maps is not None
    sentence = analysis.maps[number]
    source, target = _readable(sentence.source), _readable(sentence.target)
    names = [name for name in _MAPS if name in sentence.systems]
    with matplotlib.rc_context({**STYLE, "axes.grid": False, "font.size": 8}):
        cell = 0.2
        width = len(names) * (cell * len(source) + 0.25) + 1.3
        figure, panels = axes_of(len(names), width=width, height=cell * len(target) + 1.9, sharey=True)
        red, green, blue = (int(BLUE[i : i + 2], 16) / 255 for i in (1, 3, 5))
        for axes, name in zip(panels, names, strict=True):
            weights = np.array(sentence.systems[name].weights)
            image = np.empty((*weights.shape, 4))
            image[..., :3] = (red, green, blue)
            image[..., 3] = np.clip(weights, 0, 1) ** 0.6  # makes small weights visible
            axes.imshow(image, interpolation="none", aspect="auto")
            axes.set_title(_MAPS[name])
            crossed = name == "sparse"
            labels = [
                f"✕ {token}" if crossed and not kept else token
                for token, kept in zip(source, sentence.kept, strict=True)
            ]
            axes.set_xticks(range(len(source)), labels, rotation=90, fontsize=7.5)
            if crossed:
                for label, kept in zip(axes.get_xticklabels(), sentence.kept, strict=True):
                    label.set_color(INK if kept else RED)
            axes.tick_params(length=0)
            axes.set_xticks(np.arange(len(source) + 1) - 0.5, minor=True)
            axes.set_yticks(np.arange(len(target) + 1) - 0.5, minor=True)
            axes.grid(which="minor", color=INK, alpha=0.12, linewidth=0.4)
            axes.tick_params(which="minor", length=0)
            for side in ("top", "right", "bottom", "left"):
                axes.spines[side].set_visible(False)
            axes.set_xlabel("source")
        panels[0].set_yticks(range(len(target)), target, fontsize=7.5)
        panels[0].set_ylabel("target")
    left = sentence.systems["sparse"].on_dropped if "sparse" in sentence.systems else None
    zero = f" Dropped tokens get {np.mean(left):.1%} of the attention, which is not drawn." if left else ""
    caption = (
        f"Cross-attention of sentence {sentence.sentence} (source across, target down), averaged over heads and "
        f"layers; full colour is weight 1, no colour exactly 0. Crossed out: dropped.{zero} "
    )
    name = "attention-maps" if number == 0 else f"attention-maps-{number + 1}"
    return rendered(name, "Attention maps", caption + measured_on(analysis), figure)


def _readable(tokens: Sequence[str]) -> list[str]:
    """Tokens without the marker of a word start; if the tokenizer has one, later pieces of words start with a dot."""
    markers = ("▁", "Ġ")
    marked = any(token.startswith(markers) for token in tokens)
    shown = []
    for token in tokens:
        text = "".join(c if c.isprintable() else "\ufffd" for c in token)
        inside = marked and text.isalnum() and not text.startswith(markers)
        shown.append(f"·{text}" if inside else text[1:] or "␣" if text.startswith(markers) else text)
    return shown


def entropy(analysis: Analysis | SweepAnalysis) -> Drawing:
    """Entropy of the last encoder self-attention at kept and dropped positions; for a sweep, against sparsity."""
    points: Sequence[ModelAnalysis] = [analysis] if isinstance(analysis, Analysis) else along(analysis, "entropy")
    if isinstance(analysis, SweepAnalysis) and not points:
        raise ValueError(f"entropy: none of the points has it ({why_omitted(analysis, 'entropy')})")
    series = {
        "sparse": ("sparse", BLUE, "o-"), "baseline": ("dense", RED, "s--"), "uniform": ("uniform", GREY, ":"),
    }  # fmt: skip
    with matplotlib.rc_context(STYLE):
        figure, panels = axes_of(2, width=6.6, height=3.0, sharey=True)
        for axes, kind in zip(panels, ("kept", "dropped"), strict=True):
            for number, (name, (label, colour, shape)) in enumerate(series.items()):
                measured = [(point.sparsity, getattr(point.entropy, name)) for point in points]
                values = [(sparsity, getattr(one, kind)) for sparsity, one in measured if one is not None]
                found = [(sparsity, value) for sparsity, value in values if value is not None]
                if found and len(points) == 1:
                    axes.bar(number, found[0][1], color=colour)
                    axes.text(number, found[0][1], f"{found[0][1]:.2f}", ha="center", va="bottom", fontsize=8)
                elif found:
                    axes.plot(*zip(*found, strict=True), shape, color=colour, label=label)
            axes.set_title(f"{kind} positions")
            if len(points) == 1:
                axes.set_xticks(range(len(series)), [label for label, _, _ in series.values()])
                axes.grid(axis="x", visible=False)
            else:
                axes.set_xlabel("sparsity")
                in_percent(axes.xaxis)
            axes.margins(x=0.1, y=0.12)
        panels[0].set_ylabel("entropy, nats")
        if len(points) > 1:
            panels[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    caption = (
        "Entropy of the last encoder self-attention, averaged over heads and positions. The dense model's positions "
        "are split by the sparse model's gates; uniform: equal attention to all positions. "
    )
    return rendered("entropy", "Entropy of self-attention", caption + measured_on(analysis), figure)
