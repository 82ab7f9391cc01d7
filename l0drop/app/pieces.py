"""Source text with its dropped pieces marked: struck out and dimmed in colour, ~~like this~~ in plain text."""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from l0drop.decoding.results import SourceToken

MarkedPiece = tuple[str, bool]
"""A piece of text, and whether it was dropped."""


def is_styled(console: Console) -> bool:
    """Whether struck-out text is visible on this console."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def mark_dropped(pieces: Iterable[MarkedPiece], styled: bool) -> Text:
    """The pieces as one text. Dropped neighbours, and the white space between them, are marked together."""
    pieces = list(pieces)
    marks = [dropped and bool(piece.strip()) for piece, dropped in pieces]
    for i in range(1, len(pieces) - 1):
        if not pieces[i][0].strip():
            marks[i] = marks[i - 1] and marks[i + 1]
    text = Text()
    for dropped, run in groupby(zip(marks, pieces, strict=True), key=lambda pair: pair[0]):
        joined = "".join(piece for _, (piece, _) in run)
        if styled:
            text.append(joined, "strike dim" if dropped else "bold")
        else:
            text.append(f"~~{joined}~~" if dropped else joined)
    return text


def source_pieces(text: str, tokens: Sequence["SourceToken"], kept: Collection[int]) -> list[MarkedPiece]:
    """The text in kept and dropped pieces; special tokens that the tokenizer added come before or after it.

    A character is dropped if all its tokens are. White space and characters without a token are not marked.
    """
    dropped: list[bool | None] = [None] * len(text)
    added: tuple[list[MarkedPiece], list[MarkedPiece]] = ([], [])
    for i, token in enumerate(tokens):
        if token.start is None or token.end is None:
            after = any(known is not None for known in dropped)
            added[after].extend(
                [(" ", False), (token.text, i not in kept)] if after else [(token.text, i not in kept), (" ", False)]
            )
            continue
        for c in range(token.start, token.end):
            dropped[c] = None if text[c].isspace() else dropped[c] is not False and i not in kept
    runs = groupby(zip(text, dropped, strict=True), key=lambda pair: pair[1])
    inner = [("".join(character for character, _ in run), bool(state)) for state, run in runs]
    return [*added[0], *inner, *added[1]]
