"""Twenty sentences to look at: dropped tokens, and the outputs of system, baseline and reference."""

import random
from collections.abc import Sequence

from l0drop.runs.evaluation import MarkedText
from l0drop.study.systems import SourcePiece

DRAWN, WORST = 14, 6
"""The number drawn at random, and the number that lost most against the baseline; without one, all are random."""


def chosen(lines: Sequence[int], worst: Sequence[int], seed: int) -> list[tuple[int, str]]:
    """Lines to show with the reason for each, in the order of the text."""
    lost = list(worst[:WORST])
    rest = [line for line in lines if line not in set(lost)]
    drawn = random.Random(seed).sample(rest, min(len(rest), DRAWN + WORST - len(lost)))
    return sorted([(line, "drawn at random") for line in drawn] + [(line, "lost most") for line in lost])


def segments(source: str, pieces: Sequence[SourcePiece]) -> list[MarkedText]:
    """The whole source, split wherever the state changes.

    Tokens that the tokenizer added before or after the text, such as EOS, are included, separated by spaces.
    """
    found: list[MarkedText] = []

    def add(text: str, state: str) -> None:
        if text and found and found[-1][1] == state:
            found[-1] = (found[-1][0] + text, state)
        elif text:
            found.append((text, state))

    def state_of(piece: SourcePiece) -> str:
        return "kept" if piece.kept else "dropped"

    in_text = [number for number, piece in enumerate(pieces) if piece.end > piece.start]
    first, last = (in_text[0], in_text[-1]) if in_text else (0, -1)
    for piece in pieces[:first]:
        add(piece.text, state_of(piece))
        add(" ", "")
    position = 0
    for piece in sorted((pieces[number] for number in in_text), key=lambda piece: piece.start):
        text = source[max(piece.start, position) : piece.end]
        word = text.lstrip()
        add(source[position : piece.start] + text[: len(text) - len(word)], "")
        add(word, state_of(piece))
        position = max(position, piece.end)
    add(source[position:], "cut" if source[position:].strip() else "")
    for piece in pieces[last + 1 :]:
        add(" ", "")
        add(piece.text, state_of(piece))
    return found
