"""Sentences with their dropped words greyed and struck out, as one SVG."""

from collections.abc import Sequence
from html import escape

SIZE, LINE, MARGIN, WIDTH = 18, 34, 16, 860
ADVANCE = 0.56  # of the font size: a mean character of a sans-serif face


def sentences_svg(sentences: Sequence[Sequence[tuple[str, bool, bool]]]) -> str:
    """One line per sentence, wrapped; each word is (text, dropped, space before it)."""
    lines: list[list[tuple[float, str, bool]]] = []
    for sentence in sentences:
        x: float = MARGIN
        lines.append([])
        for text, dropped, space in sentence:
            width = len(text) * SIZE * ADVANCE
            x += SIZE * 0.3 if space else 0
            if x + width > WIDTH - MARGIN:
                x = MARGIN + 2 * SIZE
                lines.append([])
            lines[-1].append((x, text, dropped))
            x += width
    height = len(lines) * LINE + MARGIN
    rows = []
    for number, line in enumerate(lines):
        y = MARGIN + SIZE + number * LINE
        for x, text, dropped in line:
            width = len(text) * SIZE * ADVANCE
            style = 'class="dropped"' if dropped else 'class="kept"'
            rows.append(f'<text x="{x:.1f}" y="{y}" textLength="{width:.1f}" {style}>{escape(text)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{SIZE}" role="img">\n'
        "<style>.kept{fill:#111}.dropped{fill:#b5b5b5;text-decoration:line-through}"
        "@media(prefers-color-scheme:dark){.kept{fill:#eee}.dropped{fill:#6a6a6a}}</style>\n"
        + "\n".join(rows)
        + "\n</svg>\n"
    )
