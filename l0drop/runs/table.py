"""A table of text, and its three renderings: HTML, Markdown and the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from l0drop.runs import escape

_COLOURS = {"good": "green", "bad": "red"}
"""In the terminal, by CSS class."""


@dataclass(frozen=True)
class Table:
    """Column heads, rows of cells, and a note that explains them.

    The first column names the row. marked: the index of a row to highlight. prose: the heads of columns that hold words
    rather than numbers. styles: a CSS class for cells with this exact text. titles: the indices of rows that only head
    the rows below them.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    marked: int | None = None
    prose: frozenset[str] = frozenset()
    styles: dict[str, str] = field(default_factory=dict)
    titles: frozenset[int] = frozenset()

    def without_empty_columns(self) -> "Table":
        """The same table without columns whose cells are all empty; the first column stays."""
        kept = [i for i in range(len(self.head)) if not i or any(row[i] for row in self.rows)]
        return replace(self, head=[self.head[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows])


def percent(value: float | None) -> str:
    """A share as the text of a cell; empty for None."""
    return "" if value is None else f"{value:.1%}"


def as_html(table: Table) -> str:
    """A table that scrolls on a narrow screen, followed by its note."""
    kinds = [' class="words"' if name in table.prose else "" for name in table.head]
    heads = (f'<th scope="col"{kind}>{escape.html(name)}</th>' for name, kind in zip(table.head, kinds, strict=True))
    lines = []
    for number, (first, *rest) in enumerate(table.rows):
        cells = (f"<td{kind}>{_cell(table, cell)}</td>" for cell, kind in zip(rest, kinds[1:], strict=True))
        mark = ' class="marked"' if number == table.marked else ""
        lines.append(f'<tr{mark}><th scope="row">{escape.html(first)}</th>{"".join(cells)}</tr>')
    body = "\n".join(lines)
    note = f'<p class="note">{escape.html(table.note)}</p>' if table.note else ""
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return f'<div class="scroll"><table>\n{head}\n<tbody>\n{body}\n</tbody></table></div>{note}'


def _cell(table: Table, cell: str) -> str:
    shown = escape.html(cell)
    return f'<span class="{table.styles[cell]}">{shown}</span>' if cell in table.styles else shown


def as_markdown(table: Table) -> str:
    """A table of text from data, whose marked row is bold, followed by its note."""
    aligned = ["---" if name in table.prose else "---:" for name in table.head[1:]]
    lines: list[Sequence[str]] = [[escape.markdown(name) for name in table.head], ["---", *aligned]]
    for number, row in enumerate(table.rows):
        cells = [escape.markdown(cell) for cell in row]
        lines.append([f"**{cell}**" if number == table.marked and cell else cell for cell in cells])
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{shown}\n\n{escape.markdown(table.note)}" if table.note else shown


def in_markdown(table: Table) -> str:
    """A table whose cells are Markdown already, followed by its note."""
    lines = [f"| {' | '.join(table.head)} |", "|---" * len(table.head) + "|"]
    shown = "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table.rows)])
    return f"{shown}\n\n{table.note}" if table.note else shown


def for_terminal(table: Table, title: str | None = None, compact: bool = False) -> RichTable:
    """A table in which long names wrap and are never cut; compact: without vertical lines, and no name wraps."""
    shown = RichTable(title_justify="left", caption_justify="left")
    shown.title = Text(title, "table.title") if title else None
    shown.caption = Text(table.note, "table.caption") if table.note else None
    if compact:
        shown.box, shown.pad_edge, shown.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    for number, name in enumerate(table.head):
        words = not number or name in table.prose
        no_wrap = compact and not number
        shown.add_column(Text(name), justify="left" if words else "right", overflow="fold", no_wrap=no_wrap)
    for number, (first, *rest) in enumerate(table.rows):
        is_bold = number == table.marked or number in table.titles
        indented = f"  {first}" if table.titles and number not in table.titles else first
        cells = (Text(cell, _COLOURS.get(table.styles.get(cell, ""), "")) for cell in rest)
        shown.add_row(Text(indented), *cells, style="bold" if is_bold else None)
    return shown
