"""Sentences with their dropped pieces greyed and struck out, and the model's outputs below them, as one SVG."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, MARGIN, SIZE, LINE = 860, 24, 22, 32
LABEL_SIZE, LABEL_LINE, GAP = 15, 24, 18
CHARACTER = 12
"""Width of a character of this size: the mean of a wide sans-serif face, such as DejaVu Sans, and some room."""
CHARACTERS = (WIDTH - 2 * MARGIN) // CHARACTER
"""That fit on a line."""

MarkedWord = tuple[str, bool, bool]
"""Text, whether it was dropped, whether a space stands before it."""

STYLE = (
    ".card{fill:#fff;stroke:#d0d7de}.kept{fill:#1f2328}.dropped{fill:#9aa1a9;text-decoration:line-through}"
    ".label{fill:#59636e}.rule{stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){.card{fill:#161b22;stroke:#3d444d}.kept{fill:#f0f6fc}.dropped{fill:#767e88}"
    ".label{fill:#9198a1}.rule{stroke:#3d444d}}"
)


@dataclass(frozen=True)
class PicturedSentence:
    """A source sentence, and outputs by their labels."""

    source: Sequence[MarkedWord]
    outputs: Mapping[str, str] = field(default_factory=dict)
    label: str = "source, dropped encodings struck out"


def sentences_svg(examples: Sequence[PicturedSentence]) -> str:
    """The examples, one below the other, on a card that is legible on light and on dark pages."""
    parts: list[str] = []
    y, width = MARGIN, _width(examples)
    for number, example in enumerate(examples):
        if number:
            y += GAP
            parts.append(f'<line class="rule" x1="{MARGIN}" x2="{width - MARGIN}" y1="{y}" y2="{y}"/>')
            y += GAP
        for index, (label, pieces) in enumerate(_labelled(example).items()):
            y += GAP * bool(index)
            parts.append(_text(y + LABEL_SIZE, f'<tspan class="label">{escape(label)}</tspan>', LABEL_SIZE))
            y += LABEL_LINE
            for line in _wrapped(pieces):
                parts.append(_text(y + SIZE, _spans(line), SIZE))
                y += LINE
    height = y + MARGIN - (LINE - SIZE) // 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" role="img">\n<style>{STYLE}</style>\n'
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _labelled(example: PicturedSentence) -> dict[str, list[MarkedWord]]:
    """The source and the outputs by their labels, from top to bottom."""
    return {example.label: list(example.source)} | {label: _words(text) for label, text in example.outputs.items()}


def _width(examples: Sequence[PicturedSentence]) -> int:
    """The card is as wide as its longest line, so that its text stays large on a small screen."""
    lengths = [0.0]
    for label, pieces in (pair for example in examples for pair in _labelled(example).items()):
        lengths.append(len(label) * LABEL_SIZE / SIZE)
        lengths += [sum(len(text) + space for text, _, space in line) for line in _wrapped(pieces)]
    return min(WIDTH, 2 * MARGIN + math.ceil(max(lengths) * CHARACTER))


def _text(y: int, content: str, size: int) -> str:
    return f'<text x="{MARGIN}" y="{y}" font-size="{size}" xml:space="preserve">{content}</text>'


def _spans(line: Sequence[MarkedWord]) -> str:
    return "".join(
        f'{" " if space and index else ""}<tspan class="{"dropped" if dropped else "kept"}">{escape(text)}</tspan>'
        for index, (text, dropped, space) in enumerate(line)
    )


def _words(text: str) -> list[MarkedWord]:
    return [(word, False, True) for word in text.split()]


def _wrapped(sentence: Sequence[MarkedWord]) -> list[list[MarkedWord]]:
    """Lines of at most `CHARACTERS` characters, broken before words."""
    lines: list[list[MarkedWord]] = [[]]
    length = 0
    for piece in sentence:
        size = len(piece[0]) + piece[2]
        if length + size > CHARACTERS and piece[2]:
            lines.append([])
            length = 0
        lines[-1].append(piece)
        length += size
    return lines
