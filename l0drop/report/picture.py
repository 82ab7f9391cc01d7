"""Sentences with what was dropped greyed and struck out, as one SVG."""

from collections.abc import Sequence
from html import escape

SIZE, LINE, MARGIN, WIDTH = 19, 36, 16, 860
CHARACTERS = 84  # on a line: what fits in a sans-serif face of this size

Piece = tuple[str, bool, bool]
"""Text, whether it was dropped, whether a space stands before it."""


def sentences_svg(sentences: Sequence[Sequence[Piece]]) -> str:
    """One line per sentence, more where it is long."""
    lines = [line for sentence in sentences for line in _wrapped(sentence)]
    rows = []
    for number, line in enumerate(lines):
        spans = "".join(
            f'{" " if space and place else ""}<tspan class="{"dropped" if dropped else "kept"}">{escape(text)}</tspan>'
            for place, (text, dropped, space) in enumerate(line)
        )
        rows.append(f'<text x="{MARGIN}" y="{MARGIN + SIZE + number * LINE}" xml:space="preserve">{spans}</text>')
    height = len(lines) * LINE + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{SIZE}" role="img">\n'
        "<style>.kept{fill:#111}.dropped{fill:#b0b0b0;text-decoration:line-through}"
        "@media(prefers-color-scheme:dark){.kept{fill:#eee}.dropped{fill:#6a6a6a}}</style>\n"
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def _wrapped(sentence: Sequence[Piece]) -> list[list[Piece]]:
    lines: list[list[Piece]] = [[]]
    length = 0
    for piece in sentence:
        size = len(piece[0]) + piece[2]
        if length + size > CHARACTERS and piece[2]:
            lines.append([])
            length = 0
        lines[-1].append(piece)
        length += size
    return lines
