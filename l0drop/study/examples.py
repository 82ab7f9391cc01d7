"""Twenty sentences to look at: what was dropped, and what came out, beside the baseline and the reference."""

import random
from collections.abc import Sequence

from l0drop.study.systems import SourcePiece

DRAWN, WORST = 14, 6
"""So many at random, and so many that lost most against the baseline; all at random where there is none."""

Segment = tuple[str, str]
"""Text, and what became of it: kept, dropped, cut (beyond the longest source), or nothing for space between tokens."""


def chosen(lines: Sequence[int], worst: Sequence[int], seed: int) -> list[tuple[int, str]]:
    """Lines to show, and why each is there; in the order of the text."""
    lost = list(worst[:WORST])
    rest = [line for line in lines if line not in set(lost)]
    drawn = random.Random(seed).sample(rest, min(len(rest), DRAWN + WORST - len(lost)))
    return sorted([(line, "drawn at random") for line in drawn] + [(line, "lost most") for line in lost])


def segments(source: str, pieces: Sequence[SourcePiece]) -> list[Segment]:
    """The source from its first to its last sign, cut where something else became of it.

    Tokens that were added before or behind the text, such as EOS, stand there, set off by spaces.
    """
    found: list[Segment] = []

    def add(text: str, state: str) -> None:
        if text and found and found[-1][1] == state:
            found[-1] = (found[-1][0] + text, state)
        elif text:
            found.append((text, state))

    def became(piece: SourcePiece) -> str:
        return "kept" if piece.kept else "dropped"

    in_text = [number for number, piece in enumerate(pieces) if piece.end > piece.start]
    first, last = (in_text[0], in_text[-1]) if in_text else (0, -1)
    for piece in pieces[:first]:
        add(piece.text, became(piece))
        add(" ", "")
    place = 0
    for piece in sorted((pieces[number] for number in in_text), key=lambda piece: piece.start):
        text = source[max(piece.start, place) : piece.end]
        word = text.lstrip()
        add(source[place : piece.start] + text[: len(text) - len(word)], "")
        add(word, became(piece))
        place = max(place, piece.end)
    add(source[place:], "cut" if source[place:].strip() else "")
    for piece in pieces[last + 1 :]:
        add(" ", "")
        add(piece.text, became(piece))
    return found
