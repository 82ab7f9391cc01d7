"""Figures as SVG, from the JSON files of sweeps, analyses and benchmarks alone: files in, files out.

Text and axes have the colour of the page they are put into (`currentColor`), the background is transparent, and the
colours of data stand off from white and from black alike, so the same file serves light pages, dark pages and print.
Colours are told apart by the colour-blind, and shapes or dashes say the same again.
"""

import io
import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l0drop.core import hard_concrete
from l0drop.data.text import read_json
from l0drop.data.whole import locked, whole_folder

INK = "#010203"  # stands for the page's colour of text until the file is written
BLUE, RED, GREEN, PURPLE, GOLD, GREY = "#2f7fc1", "#d55e00", "#009e73", "#a95aa1", "#a8820b", "#808080"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "text.parse_math": False,
    "svg.fonttype": "none",  # text stays text: it can be searched, and has the page's letters
    "figure.constrained_layout.use": True,
}
# A file that is opened or linked by itself has no page to take its colour from; inside a page, :root is not the figure.
OWN_PAGE = "@media(prefers-color-scheme:dark){svg:root{color:#ddd;background:#1b1b1b}}"
INDEX = "figures.json"
LEARNED = ("lambda", "target")
"""Kinds of a sweep's points whose gate is learned; the others are rules."""


@dataclass(frozen=True)
class Drawing:
    """A figure: its name (also of its file), what it shows, and what was measured on what."""

    name: str
    title: str
    caption: str
    svg: str


def rendered(name: str, title: str, caption: str, figure: Figure) -> Drawing:
    """The figure as SVG that takes its colour of text from the page, with its title and caption inside."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # several figures share one page, so their names must differ
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    head = f"<title>{escape(title)}</title><desc>{escape(caption)}</desc><style>{OWN_PAGE}</style>"
    start = '<svg class="l0drop-figure" role="img" style="max-width:100%;height:auto"'
    svg = re.sub(r"<svg\b([^>]*)>", lambda found: f"{start}{found[1]}>{head}", svg, count=1)
    return Drawing(name, title, caption, svg)


def _axes(columns: int = 1, width: float = 5.6, height: float = 3.2, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, columns, squeeze=False, **options)[0]


def _percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")


# --- figure 3: the distribution ---------------------------------------------------------------------------------------


def density(alpha: float = 0.0, beta: float = 2 / 3, epsilon: float = 0.1) -> Drawing:
    """The hard-concrete distribution at one log α: density between 0 and 1, mass at the ends."""
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes()
        s = np.linspace(1e-4, 1 - 1e-4, 2000)
        plain = binary_concrete_density(s, alpha, beta)
        stretched = s * (1 + 2 * epsilon) - epsilon
        thinner = plain / (1 + 2 * epsilon)
        axes.plot(s, plain, color=BLUE, linestyle="--", label="binary concrete")
        axes.plot(stretched, thinner, color=BLUE, label=f"stretched to (-{epsilon:g}, {1 + epsilon:g})")
        inside = (stretched >= 0) & (stretched <= 1)
        axes.plot(stretched[inside], thinner[inside], color=RED, linewidth=2.4, label="hard concrete")
        for outside in (stretched <= 0, stretched >= 1):
            axes.fill_between(stretched[outside], thinner[outside], color=BLUE, alpha=0.25, linewidth=0)
        closed = 1 - float(hard_concrete.open_probability(torch.tensor(alpha), beta, epsilon))
        one = 1 - float(hard_concrete.open_probability(torch.tensor(-alpha), beta, epsilon))
        for place, mass in ((0, closed), (1, one)):
            axes.plot([place, place], [0, mass], color=RED, linewidth=2.4)
            axes.plot([place], [mass], "o", color=RED, markersize=7)
            side = -1 if place == 0 else 1
            axes.annotate(
                f"P(g = {place}) = {mass:.2f}", (place, mass), xytext=(side * 8, 0), textcoords="offset points",
                ha="right" if place == 0 else "left", va="center",
            )  # fmt: skip
        axes.set(xlabel="gate g", ylabel="density, and mass at 0 and 1", xlim=(-0.55, 1.55), ylim=(0, 3))
        axes.legend(loc="upper center")
    caption = (
        f"Hard-concrete distribution at log α = {alpha:g}, β = {beta:.3g}, ε = {epsilon:g}. What the stretched density "
        "has below 0 and above 1 (shaded) becomes mass at exactly 0, a closed gate, and at exactly 1. Computed, not "
        "measured."
    )
    return rendered("hard-concrete", "Hard-concrete distribution", caption, figure)


def binary_concrete_density(s: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Of s = σ((logit u + log α) / β) with u uniform, at log α = `alpha`."""
    logit = beta * (np.log(s) - np.log1p(-s)) - alpha
    uniform = 1 / (1 + np.exp(-logit))
    return beta * uniform * (1 - uniform) / (s * (1 - s))


# --- figure 4: quality against sparsity -------------------------------------------------------------------------------


def quality(sweep: Mapping[str, Any]) -> Drawing:
    """Score against sparsity of a sweep's points, beside the baseline and the baseline trained on."""
    split, points = _scored(sweep)
    if not points:
        raise ValueError("sweep.json: none of its points has a score")
    score = points[0][split]["score"]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes()
        learned = [point for point in points if point["kind"] in LEARNED]
        rules = [point for point in points if point not in learned]
        for shown, style, colour, label in ((learned, "o-", BLUE, "learned gate"), (rules, "D", GOLD, "gate by rule")):
            if shown:
                scores = [point[split]["score"]["value"] for point in shown]
                axes.plot([point["sparsity"] for point in shown], scores, style, color=colour, label=label)
        for name, colour, dashes, label in (
            ("reference", RED, "--", "baseline, trained on as long"),
            ("baseline", GREY, ":", "baseline"),
        ):
            if split in sweep[name]:
                axes.axhline(sweep[name][split]["score"]["value"], color=colour, linestyle=dashes, label=label)
        sign = {"lambda": "λ", "target": "target"}
        for point in [*(learned if len(learned) <= 8 else learned[:: -(-len(learned) // 8)]), *rules]:
            value = "" if point["value"] is None else f" {point['value']:g}"
            axes.annotate(
                f"{sign.get(point['kind'], point['kind'])}{value}",
                (point["sparsity"], point[split]["score"]["value"]),
                xytext=(6, -3) if point in rules else (-5, -11),
                textcoords="offset points",
                ha="left" if point in rules else "right",
                fontsize=7.5,
            )
        axes.set(xlabel="sparsity", ylabel=score["name"])
        axes.margins(x=0.16, y=0.18)
        _percent(axes.xaxis)
        axes.legend(loc="best")
    references = points[0][split].get("references")
    against = f" (against {references})" if references else ""
    caption = (
        f"{score['name']} against sparsity on the {split} text of {sweep['name']}, {points[0][split]['sentences']} "
        f"sentences{against}, gating {sweep['gating']}; each point is one fine-tuned model, one seed. "
        f"{score['signature']}"
    )
    return rendered("quality", "Quality against sparsity", caption, figure)


def _scored(sweep: Mapping[str, Any]) -> tuple[str, list[Mapping[str, Any]]]:
    """The text that a sweep is judged on, and the points that have a score on it, by sparsity."""
    split = "test" if "test" in sweep["reference"] else "valid"
    return split, sorted((point for point in sweep["points"] if split in point), key=lambda point: point["sparsity"])


_GATINGS = {"zero": ("o", BLUE), "mask": ("s", RED), "weight": ("^", GREEN)}
_MARKS = (("s", GREY), ("o", BLUE), ("^", GREEN), ("D", RED))
RULES = ("pos", "freq", "inv_freq", "group")
"""The rules of the paper, as their gates are called."""


def seeds_and_sparsity(found: Mapping[str, Any], name: str) -> Drawing:
    """Differences to the baseline trained on against sparsity, by gating, as `study.seeds` gathers them.

    Systems are called GATING-TARGET, or after a rule; others are not drawn. One seed has a hollow mark and no interval.
    """
    ons = {run["seed"]: run["test"]["score"]["value"] for run in found["systems"]["on"]["runs"]}
    margins = {system["against_on"]["margin"] for system in found["systems"].values() if "against_on" in system}
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes()
        gatings = {gating: [name for name in found["systems"] if _is_of(name, gating)] for gating in _GATINGS}
        gatings = {gating: systems for gating, systems in gatings.items() if systems}
        for place, (gating, systems) in enumerate(gatings.items()):
            mark, colour = _GATINGS[gating]
            label: str | None = gating
            for content in (found["systems"][system] for system in systems):
                runs = content["runs"]
                aside = 0.006 * (place - (len(gatings) - 1) / 2)
                sparsity = sum(run["test"]["sparsity"] for run in runs) / len(runs) + aside
                if "against_on" in content:
                    middle, (low, high) = content["against_on"]["difference"], content["against_on"]["interval"]
                    spread = [[middle - low], [high - middle]]
                    axes.errorbar([sparsity], [middle], spread, fmt=mark, color=colour, capsize=2.5, label=label)
                elif runs[0]["seed"] in ons:
                    change = runs[0]["test"]["score"]["value"] - ons[runs[0]["seed"]]
                    axes.plot([sparsity], [change], mark, color=colour, markerfacecolor="none", label=label)
                else:
                    continue
                label = None
        ruled = [(rule, found["systems"][rule]["runs"][0]) for rule in RULES if rule in found["systems"]]
        for place, (rule, run) in enumerate((rule, run) for rule, run in ruled if run["seed"] in ons):
            point = run["test"]["sparsity"], run["test"]["score"]["value"] - ons[run["seed"]]
            axes.plot(*point, "x", color=GOLD)
            axes.annotate(f"rule {rule}", point, (5, -12 if place % 2 else 4), textcoords="offset points", size=8)
        axes.axhline(0, color=GREY, linestyle="--", label="baseline trained on")
        for margin in margins:
            axes.axhline(-margin, color=GREY, linestyle=":", label=f"a loss of {margin:g}")
        axes.set(xlabel="sparsity", ylabel="difference in BLEU")
        axes.margins(x=0.12)
        _percent(axes.xaxis)
        axes.legend(loc="best")
    caption = (
        f"{found['what']}: difference to the baseline trained on, test text. Bars: 95% intervals over seeds and "
        "sentences; hollow: one seed. Gatings stand a little beside each other, to be told apart."
    )
    return rendered(name, "Quality against sparsity over seeds", caption, figure)


def _is_of(system: str, gating: str) -> bool:
    return re.fullmatch(rf"{gating}-[0-9.]+", system) is not None


def quality_and_time(found: Mapping[str, Any], name: str) -> Drawing:
    """Quality against the time of a sentence, of systems at several beams.

    Rows have `system`, `beams`, `score`, `cpu_seconds` of every round, and `sentences` that were timed.
    """
    metric = found["rows"][0]["score"]["name"]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes()
        systems = list(dict.fromkeys(row["system"] for row in found["rows"]))
        for place, (system, (mark, colour)) in enumerate(zip(systems, itertools.cycle(_MARKS))):
            rows = sorted((row for row in found["rows"] if row["system"] == system), key=lambda row: row["beams"])
            beside = (4, -11) if place % 2 else (-9, 5)  # neighbours are often close
            times = [1000 * statistics.median(row["cpu_seconds"]) / row["sentences"] for row in rows]
            scores = [row["score"]["value"] for row in rows]
            axes.plot(times, scores, f"{mark}-", color=colour, label=system)
            for point, row in zip(zip(times, scores, strict=True), rows, strict=True):
                axes.annotate(f"{row['beams']}", point, beside, textcoords="offset points", size=8, color=colour)
        axes.set(xlabel="CPU time of a sentence, ms", ylabel=metric)
        axes.margins(0.1)
        axes.set_xlim(left=0)
        axes.legend(loc="best")
    caption = (
        f"{found['what']}, of all test text; time of one thread ({found['device']}), median of "
        f"{len(found['rows'][0]['cpu_seconds'])} rounds, on {found['rows'][0]['sentences']} sentences. Numbers: beams."
    )
    return rendered(name, "Quality against time", caption, figure)


# --- figures 1 and 6: attention mass ----------------------------------------------------------------------------------

_MASS = {
    "baseline": ("baseline, every word", GREY),
    "baseline_renormalised": ("baseline, on the words that are kept", GOLD),
    "sparse": ("sparse, words that are kept", BLUE),
    "entmax": ("sparse attention, every word", PURPLE),
}


def attention_mass(analysis: Mapping[str, Any]) -> Drawing:
    """How much attention source words get, one panel per system."""
    systems = analysis["mass"]["systems"]
    names = [name for name in _MASS if name in systems]
    with matplotlib.rc_context(STYLE):
        figure, panels = _axes(len(names), width=max(4.2, 2.9 * len(names)), height=3.0, sharey=True)
        for axes, name in zip(panels, names, strict=True):
            label, colour = _MASS[name]
            found = systems[name]
            shares = np.array(found["histogram"]["counts"]) / max(1, found["words"])
            width = found["histogram"]["bin_width"]
            edges = width * np.arange(len(shares))
            axes.bar(edges, shares, width=width, align="edge", color=colour, alpha=0.85)
            axes.axvline(0.6, color=INK, linewidth=0.9, linestyle="--")
            axes.axvline(found["mean"], color=INK, linewidth=1.2)
            axes.set_title(label.replace(", ", ",\n"))
            axes.set(xlabel="attention mass", xlim=(0, min(5.0, width * len(shares))))
            axes.text(
                0.97, 0.95,
                f"mean {found['mean']:.2f}\n{100 * found['share_under_0.6']:.1f}% under 0.6\n"
                f"{100 * found['share_under_0.6_of_mean']:.1f}% under\n0.6 of the mean",
                transform=axes.transAxes, ha="right", va="top", fontsize=8,
            )  # fmt: skip
            _percent(axes.yaxis)
        panels[0].set_ylabel("share of source tokens")
    on_dropped = analysis["mass"]["share_on_dropped"]
    dropped = (
        f" The sparse model leaves {on_dropped['sparse']:.1%} of its attention on what it dropped (with gating zero, "
        f"the zero row); the baseline {on_dropped['baseline']:.1%} on the same words."
        if "sparse" in on_dropped and "baseline" in on_dropped
        else ""
    )
    caption = (
        "Cross-attention that a source token gets, averaged over heads and layers and summed over the target; solid "
        "line: the mean, which rises by itself when there are fewer words to share it; dashed line: 0.6." + dropped
    )
    return rendered("attention-mass", "Attention mass per source word", caption + " " + _measured_on(analysis), figure)


# --- figure 2: attention maps -----------------------------------------------------------------------------------------

_MAPS = {"baseline": "baseline", "entmax": "sparse attention", "sparse": "L0Drop"}


def attention_maps(analysis: Mapping[str, Any], number: int = 0) -> Drawing:
    """One sentence's cross-attention in every system; what was dropped is crossed."""
    sentence = analysis["maps"][number]
    source, target = (_readable(sentence[side]) for side in ("source", "target"))
    names = [name for name in _MAPS if name in sentence["systems"]]
    with matplotlib.rc_context({**STYLE, "axes.grid": False, "font.size": 8}):
        cell = 0.2
        width = len(names) * (cell * len(source) + 0.25) + 1.3
        figure, panels = _axes(len(names), width=width, height=cell * len(target) + 1.9, sharey=True)
        red, green, blue = (int(BLUE[i : i + 2], 16) / 255 for i in (1, 3, 5))
        for axes, name in zip(panels, names, strict=True):
            weights = np.array(sentence["systems"][name]["weights"])
            image = np.empty((*weights.shape, 4))
            image[..., :3] = (red, green, blue)
            image[..., 3] = np.clip(weights, 0, 1) ** 0.6  # so that small weights can be told from 0
            axes.imshow(image, interpolation="none", aspect="auto")
            axes.set_title(_MAPS[name])
            crossed = name == "sparse"
            labels = [
                f"✕ {token}" if crossed and not kept else token
                for token, kept in zip(source, sentence["kept"], strict=True)
            ]
            axes.set_xticks(range(len(source)), labels, rotation=90, fontsize=7.5)
            if crossed:
                for label, kept in zip(axes.get_xticklabels(), sentence["kept"], strict=True):
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
    left = sentence["systems"].get("sparse", {}).get("on_dropped")
    zero = f" What was dropped gets {np.mean(left):.1%} of the attention, which is not drawn." if left else ""
    caption = (
        f"Cross-attention of sentence {sentence['sentence']} (source across, target down), averaged over heads and "
        f"layers; full colour is weight 1, none is exactly 0. Crossed and coloured: dropped.{zero} "
    )
    name = "attention-maps" if number == 0 else f"attention-maps-{number + 1}"
    return rendered(name, "Attention maps", caption + _measured_on(analysis), figure)


def _readable(tokens: Sequence[str]) -> list[str]:
    """Tokens without the sign that begins a word; where there is one, pieces inside of words begin with a dot."""
    signs = ("▁", "Ġ")
    signed = any(token.startswith(signs) for token in tokens)
    shown = []
    for token in tokens:
        text = "".join(c if c.isprintable() else "\ufffd" for c in token)
        inside = signed and text.isalnum() and not text.startswith(signs)
        shown.append(f"·{text}" if inside else text[1:] or "␣" if text.startswith(signs) else text)
    return shown


# --- figure 5: groups of words ----------------------------------------------------------------------------------------

_GROUPS = {
    "punctuation": ("punctuation", GOLD, "s"),
    "function": ("function words", RED, "o"),
    "EOS": ("EOS", GREY, "x"),
    "BPEO": ("later pieces (BPEO)", PURPLE, "v"),
    "rest": ("the rest", GREEN, "D"),
    "content": ("content words", BLUE, "^"),
    "BPEH": ("first pieces (BPEH)", "#5b6bd6", "P"),
}


def groups(analysis: Mapping[str, Any]) -> Drawing:
    """Sparsity by group: as bars for one run, against the overall sparsity for a sweep."""
    if "points" not in analysis:
        return _group_bars(analysis)
    points = _along(analysis, "groups")
    if not points:
        raise ValueError(f"groups: none of the points has them ({_why_left_out(analysis, 'groups')})")
    overall = [point["sparsity"] for point in points]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes(width=6.4, height=3.6)
        top = max(overall) * 1.05
        axes.plot([0, top], [0, top], color=INK, linewidth=0.8, alpha=0.5, linestyle=":", label="overall")
        for name, (label, colour, marker) in _GROUPS.items():
            rates = [point["groups"]["groups"][name]["sparsity"] for point in points]
            if any(rate is not None for rate in rates):
                values = [np.nan if rate is None else rate for rate in rates]
                axes.plot(overall, values, marker=marker, color=colour, label=label)
        axes.set(xlabel="overall sparsity", ylabel="sparsity of the group", xlim=(0, top), ylim=(-0.02, 1.04))
        _percent(axes.xaxis)
        _percent(axes.yaxis)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    caption = (
        f"Sparsity of each group of source tokens against the overall sparsity, {len(points)} models of the sweep "
        f"{analysis['sweep']}. Words that were not split are grouped by part of speech. "
    )
    return rendered("groups", "What is dropped, by group of words", caption + _measured_on(analysis), figure)


def _group_bars(analysis: Mapping[str, Any]) -> Drawing:
    found = {name: rate for name, rate in analysis["groups"]["groups"].items() if rate["tokens"]}
    names = sorted(found, key=lambda name: found[name]["sparsity"])
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes(height=0.32 * len(names) + 1.0)
        axes.barh(
            [f"{_GROUPS[name][0]}, {found[name]['tokens']:,}" for name in names],
            [found[name]["sparsity"] for name in names], color=[_GROUPS[name][1] for name in names], height=0.7,
        )  # fmt: skip
        axes.axvline(analysis["sparsity"], color=INK, linestyle="--", linewidth=1)
        for place, name in enumerate(names):
            axes.text(found[name]["sparsity"] + 0.01, place, f"{found[name]['sparsity']:.0%}", va="center", fontsize=8)
        axes.set(xlabel="sparsity (dashed: of all tokens)", xlim=(0, 1.1))
        axes.set_xticks(np.linspace(0, 1, 6))
        axes.grid(axis="y", visible=False)
        _percent(axes.xaxis)
    caption = (
        f"Sparsity of each group of source tokens, with its number of tokens; overall {analysis['sparsity']:.1%}. "
        "Words that were not split are grouped by part of speech. "
    )
    return rendered("groups", "What is dropped, by group of words", caption + _measured_on(analysis), figure)


# --- figure 7: entropy ------------------------------------------------------------------------------------------------


def entropy(analysis: Mapping[str, Any]) -> Drawing:
    """Entropy of the encoder's last self-attention at kept and dropped positions, against sparsity for a sweep."""
    points = _along(analysis, "entropy") if "points" in analysis else [analysis]
    if not points:
        raise ValueError(f"entropy: none of the points has it ({_why_left_out(analysis, 'entropy')})")
    series = {"sparse": (BLUE, "o-"), "baseline": (RED, "s--"), "uniform": (GREY, ":")}
    with matplotlib.rc_context(STYLE):
        figure, panels = _axes(2, width=6.6, height=3.0, sharey=True)
        for axes, kind in zip(panels, ("kept", "dropped"), strict=True):
            for place, (name, (colour, shape)) in enumerate(series.items()):
                found = [(p["sparsity"], p["entropy"][name][kind]) for p in points if name in p["entropy"]]
                found = [(sparsity, value) for sparsity, value in found if value is not None]
                if found and len(points) == 1:
                    axes.bar(place, found[0][1], color=colour)
                    axes.text(place, found[0][1], f"{found[0][1]:.2f}", ha="center", va="bottom", fontsize=8)
                elif found:
                    axes.plot(*zip(*found, strict=True), shape, color=colour, label=name)
            axes.set_title(f"{kind} positions")
            if len(points) == 1:
                axes.set_xticks(range(len(series)), list(series))
                axes.grid(axis="x", visible=False)
            else:
                axes.set_xlabel("sparsity")
                _percent(axes.xaxis)
            axes.margins(x=0.1, y=0.12)
        panels[0].set_ylabel("entropy, nats")
        if len(points) > 1:
            panels[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    caption = (
        "Entropy of the encoder's last self-attention, averaged over heads and positions. The baseline's positions are "
        "divided by the same gates; uniform is what attending to every position alike would have. "
    )
    return rendered("entropy", "Entropy of self-attention", caption + _measured_on(analysis), figure)


# --- decoding speed ---------------------------------------------------------------------------------------------------

_SYSTEMS = {
    "engine-short": "our engine, short memory",
    "engine-dense": "our engine, dense memory",
    "engine-int8-short": "our engine, int8, short memory",
    "engine-int8-dense": "our engine, int8, dense memory",
    "hf-short": "Hugging Face, short",
    "hf-dense": "Hugging Face, dense",
    "ct2-float32": "CTranslate2, float32",
    "ct2-int8": "CTranslate2, int8",
}


def speed(bench: Mapping[str, Any]) -> Drawing:
    """CPU seconds of encoding and decoding by system, from the decoding benchmark."""
    names = _timed(bench)[::-1]
    if not names:
        raise ValueError(f"bench.json: none of its systems is one of {', '.join(_SYSTEMS)}")
    medians = [bench["systems"][name]["median"] for name in names]
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = _axes(width=6.2, height=0.36 * len(names) + 1.3)
        encode, decode = ([median[phase]["cpu"] for median in medians] for phase in ("encode", "decode"))
        labels = [_SYSTEMS[name] for name in names]
        axes.barh(labels, encode, color=GREY, height=0.68, label="encode")
        axes.barh(labels, decode, left=encode, color=BLUE, height=0.68, label="decode")
        largest = max(a + b for a, b in zip(encode, decode, strict=True))
        for place, (name, a, b) in enumerate(zip(names, encode, decode, strict=True)):
            times = bench["systems"][name].get("times_engine_short")
            ratio = f"  ({times['end_to_end']:.2f}×)" if times else ""
            axes.text(a + b + 0.01 * largest, place, f"{a + b:.3g} s{ratio}", va="center", fontsize=8)
        axes.set(xlabel=f"CPU seconds, {bench['sentences']} sentences", xlim=(0, 1.25 * largest))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.0), bbox_transform=figure.transFigure, ncols=2)
        axes.set_title(" ", pad=10)
    compared = any(bench["systems"][name].get("times_engine_short") for name in names)
    brackets = "; in brackets, end to end by our engine's on the short memory" if compared else ""
    gates = bench["gates"]  # None where no system that knows them was timed
    read = (
        f", {gates['source_tokens']:,} source tokens (longest {gates['longest_source']:,}), {gates['sparsity']:.1%} "
        "dropped"
        if gates is not None
        else ""
    )
    caption = (
        f"CPU time of encoding and decoding, medians over interleaved rounds{brackets}. "
        f"{bench['what'][0].upper()}{bench['what'][1:]}: {bench['sentences']} sentences{read}; {bench['device']}, "
        f"{bench['threads']} thread(s), beam {bench['generation']['num_beams']}."
    )
    return rendered("speed", "Decoding time", caption, figure)


def _timed(bench: Mapping[str, Any]) -> list[str]:
    """The systems of a benchmark that can be drawn: none of several shapes, nor of other benchmarks."""
    return [name for name in _SYSTEMS if name in bench.get("systems", {})]


# --- length and position ----------------------------------------------------------------------------------------------


def places(analysis: Mapping[str, Any]) -> Drawing:
    """Sparsity by sentence length, by position, and by tenth of the sentence."""
    found = analysis["places"]
    with matplotlib.rc_context(STYLE):
        figure, panels = _axes(3, width=8.6, height=3.0, sharey=True)
        _steps(panels[0], found["by_length"]["bins"], "source tokens of the sentence", BLUE)
        _steps(panels[1], found["by_position"]["bins"], "position in the source", GREEN)
        tenths = found["by_relative_position"]["bins"]
        centres = [(entry["from"] + entry["to"]) / 2 for entry in tenths]
        rates = [np.nan if entry["sparsity"] is None else entry["sparsity"] for entry in tenths]
        panels[2].plot(centres, rates, "s-", color=PURPLE)
        panels[2].set(xlabel="place in the source, in tenths", xlim=(0, 1))
        _percent(panels[2].xaxis)
        for axes in panels:
            axes.axhline(analysis["sparsity"], color=INK, linewidth=0.9, linestyle="--")
            axes.set_ylim(0, 1)
        panels[0].set_ylabel("sparsity (dashed: of all tokens)")
        _percent(panels[0].yaxis)
    caption = (
        "Sparsity by the length of the source (EOS counted), by position from its start, and by tenth of it (both "
        "without EOS, which is why they may stand off from the dashed line). "
    )
    return rendered("places", "What is dropped, by length and position", caption + _measured_on(analysis), figure)


def _steps(axes: Axes, bins: Sequence[Mapping[str, Any]], label: str, colour: str) -> None:
    names = [f"{entry['from']}–{entry['to']}" if entry["to"] is not None else f"{entry['from']}+" for entry in bins]
    axes.bar(range(len(bins)), [entry["sparsity"] for entry in bins], color=colour, alpha=0.85)
    axes.set_xticks(range(len(bins)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7.5)
    axes.set_xlabel(label)
    axes.grid(axis="x", visible=False)


# --- files ------------------------------------------------------------------------------------------------------------


def _measured_on(analysis: Mapping[str, Any]) -> str:
    text = analysis["text"]
    models = analysis.get("models", {})
    named = "; ".join(f"{role}: {name}" for role, name in models.items())
    sparsity = f", sparsity {analysis['sparsity']:.1%}" if "sparsity" in analysis else ""
    return (
        f"Measured on {text['name']}, {text['sentences']:,} sentences, {text['source_tokens']:,} source and "
        f"{text['target_tokens']:,} target tokens, target: {text['target']}{sparsity}"
        + (f" ({named})." if named else ".")
    )


def _along(analysis: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """The points of a sweep that have this part, by sparsity: of learned gates, which differ in it alone. Rules drop
    each something else, and are no curve; they are drawn where there is nothing but rules."""
    points = sorted((p for p in analysis["points"] if part in p), key=lambda point: point["sparsity"])
    return [point for point in points if point["kind"] in LEARNED] or points


def _why_left_out(analysis: Mapping[str, Any], part: str) -> str:
    reasons = {point.get("left_out", {}).get(part, "it was not asked for") for point in analysis["points"]}
    return "; ".join(sorted(reasons))


def drawings(folder: Path) -> Iterator[Drawing]:
    """The figures that can be made from the JSON files in a run or sweep folder; files without any are passed over."""
    yield density()
    for file, parts in _FILES.items():
        if not (folder / file).is_file():
            continue
        content = read_json(folder / file)
        try:
            for part, draw in parts:
                holders = [content, *content.get("points", ())]
                if part is None or any(part in holder for holder in holders):
                    yield from draw(content)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{folder / file}: not as this version writes it ({error!r})") from error


def _all_maps(analysis: Mapping[str, Any]) -> Iterator[Drawing]:
    return (attention_maps(analysis, number) for number in range(len(analysis["maps"])))


def _one(draw: Callable[[Mapping[str, Any]], Drawing]) -> Callable[[Mapping[str, Any]], Iterator[Drawing]]:
    return lambda content: iter([draw(content)])


_FILES: dict[str, tuple[tuple[str | None, Callable[[Mapping[str, Any]], Iterator[Drawing]]], ...]] = {
    "sweep.json": ((None, lambda content: iter([quality(content)] if _scored(content)[1] else [])),),
    "analysis.json": (
        ("mass", lambda content: iter([attention_mass(content)]) if "mass" in content else iter(())),
        ("maps", _all_maps),
        ("groups", _one(groups)),
        ("entropy", _one(entropy)),
        ("places", _one(places)),
    ),
    "bench.json": ((None, lambda content: iter([speed(content)] if _timed(content) else [])),),
}


def draw_all(folder: Path) -> list[Drawing]:
    """Make `figures/` anew from a folder's JSON files, with an index of titles and captions."""
    made = list(drawings(folder))
    index = [{"file": f"{d.name}.svg", "title": d.title, "caption": d.caption} for d in made]
    with locked(folder / "figures"), whole_folder(folder / "figures") as partial:
        for drawing in made:
            (partial / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
        (partial / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return made
