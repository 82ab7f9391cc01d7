"""The style of figures, and their rendering as SVG."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l0drop.runs.escape import html, printable

INK = "#010203"  # replaced by the page's text colour when the file is written
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
    "svg.fonttype": "none",  # text stays text: searchable, in the page's font
    "figure.constrained_layout.use": True,
}
# A file opened on its own has no page to take its colour from; inside a page, :root is not the figure.
OWN_PAGE = "@media(prefers-color-scheme:dark){svg:root{color:#ddd;background:#1b1b1b}}"


@dataclass(frozen=True)
class Drawing:
    """A figure: its name (also of its file), title, caption, and SVG."""

    name: str
    title: str
    caption: str
    svg: str


def rendered(name: str, title: str, caption: str, figure: Figure) -> Drawing:
    """The figure as SVG that takes its text colour from the page, with title and caption inside."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = printable(buffer.getvalue())
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # several figures share one page, so their ids must differ
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    head = f"<title>{html(title)}</title><desc>{html(caption)}</desc><style>{OWN_PAGE}</style>"
    start = '<svg class="l0drop-figure" role="img" style="max-width:100%;height:auto"'
    svg = re.sub(r"<svg\b([^>]*)>", lambda found: f"{start}{found[1]}>{head}", svg, count=1)
    return Drawing(name, title, caption, svg)


def axes_of(columns: int = 1, width: float = 5.6, height: float = 3.2, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, columns, squeeze=False, **options)[0]


def in_percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
