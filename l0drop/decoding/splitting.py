"""Long texts: split where they exceed the model's positions, and their results joined again."""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar, cast

from l0drop.decoding.results import Alternative, Result
from l0drop.decoding.sources import Source

PREFERRED = (
    re.compile(r"\n\s*"),
    re.compile(r"(?<=[.!?…。！？؟।])[\"'”’»)\]]*\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
"""Where to split, best first: at the end of a paragraph, of a sentence, of a word."""

Piece = tuple[int, int]
"""The characters `text[start:end]`."""
Encode = Callable[[Sequence[str]], list[Source]]
T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that can be interrupted between its steps, and its result."""


def split_text(text: str, fits: Callable[[str], bool]) -> list[Piece]:
    """The text in as few halvings as it takes until each piece fits; one piece if the text fits.

    A piece begins and ends without white space, except a text that is one piece. Raises ValueError if not even one
    character fits.
    """
    return _result(_split_in_steps(text, fits))


def encode_pieces(text: str, encode: Encode) -> tuple[list[Piece], list[Source]]:
    """The pieces of a text that fit the model, and their sources; `encode` is `TextModel.encode` with its settings."""
    return _result(encode_in_steps(text, encode))


def encode_in_steps(text: str, encode: Encode) -> Steps[tuple[list[Piece], list[Source]]]:
    """`encode_pieces`, which may take long, in steps: each encodes one part of the text."""
    encoded: dict[str, Source] = {}

    def fits(part: str) -> bool:
        (encoded[part],) = encode([part])
        return not encoded[part].cut

    pieces = yield from _split_in_steps(text, fits)
    return pieces, [encoded[text[start:end]] for start, end in pieces]


def check_room(text: str, fits: Callable[[str], bool]) -> None:
    """Raise ValueError if not even the first character of a text fits, so that splitting could not help."""
    first = text.strip()[:1]
    if first and not fits(first):
        raise ValueError(f"`prefix`: it leaves no room for the text, not even for its first character {first!r}")


def _split_in_steps(text: str, fits: Callable[[str], bool]) -> Steps[list[Piece]]:
    """`split_text`, pausing after every part that was tried."""
    if fits(text):
        return [(0, len(text))]
    yield
    check_room(text, fits)
    pieces: list[Piece] = []
    todo = [_stripped(text, 0, len(text))]
    while todo:
        yield
        start, end = todo.pop()
        if fits(text[start:end]) or end - start < 2:
            pieces.append((start, end))
            continue
        middle = start + _boundary(text[start:end])
        todo += [_stripped(text, middle, end), _stripped(text, start, middle)]
    return pieces


def _result(steps: Steps[T]) -> T:
    """The result of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


def join_results(text: str, pieces: Sequence[Piece], results: Sequence[Result]) -> Result:
    """The result of a text from those of its pieces.

    Outputs are joined by the white space between the pieces. The score is the mean over the pieces, weighted by their
    output tokens. Offsets of kept tokens are those in the whole text.
    """
    if len(results) == 1:
        return results[0]
    gaps = ["", *(text[before[1] : after[0]] for before, after in pairwise(pieces))]

    def joined(outputs: Sequence[str]) -> str:
        return "".join(gap + output for gap, output in zip(gaps, outputs, strict=True))

    weights = [result.output_tokens for result in results]

    def mean(scores: Sequence[float | None]) -> float:
        total = sum(weight * (score or 0.0) for weight, score in zip(weights, scores, strict=True))
        return total / max(1, sum(weights))

    kept = (
        replace(
            token,
            start=None if token.start is None else token.start + start,
            end=None if token.end is None else token.end + start,
        )
        for (start, _), result in zip(pieces, results, strict=True)
        for token in result.kept
    )
    ranks = zip(*(result.alternatives for result in results), strict=False)
    return Result(
        text=joined([result.text for result in results]),
        score=mean([result.score for result in results]),
        kept=tuple(kept),
        source_tokens=sum(result.source_tokens for result in results),
        output_tokens=sum(weights),
        cut=sum(result.cut for result in results),
        alternatives=tuple(
            Alternative(joined([other.text for other in rank]), mean([other.score for other in rank])) for rank in ranks
        ),
    )


def _boundary(text: str) -> int:
    """The best position to split at: the boundary of the best kind that is nearest to the middle."""
    middle = len(text) / 2
    for kind in PREFERRED:
        ends = [match.end() for match in kind.finditer(text) if 0 < match.end() < len(text)]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    return len(text) // 2


def _stripped(text: str, start: int, end: int) -> Piece:
    """The span without white space at its ends."""
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip()) if inner.strip() else end
