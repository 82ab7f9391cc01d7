"""Tokenized sources, and the batches that are made of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from l0drop.core.values import WrongKindError
from l0drop.data.corpus import Example
from l0drop.data.offsets import Span
from l0drop.decoding.corpus import length_batches

BATCH_TOKENS = 8192
"""Padded source tokens decoded at once, unless the caller says otherwise."""
GPU_BATCH_TOKENS = 131_072
"""The same on a GPU, where slots of finished sentences take the next ones of the batch."""
MAX_BATCH_TOKENS = 1 << 40
"""The largest number of them that a caller may set."""
MIN_CPU_TOKENS = 128
"""Batches on a CPU count a shorter source as this long: more than 64 sentences exceed the caches and gain nothing."""


@dataclass(frozen=True, eq=False)
class Source:
    """A tokenized text; `name` identifies it in messages. A blank text has no ids.

    dial: settings of the dial for this text alone: `keep`, `max_memory`, `shift`, `dense`.
    """

    name: str
    ids: Sequence[int] = ()
    spans: Sequence[Span | None] = ()
    hints: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cut: int = 0
    dial: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_blank(self) -> bool:
        return not self.ids


def examples(sources: Sequence[Source]) -> list[Example]:
    """The sources for `collate`."""
    return [
        Example(np.array(source.ids), None, {name: np.array(hint) for name, hint in source.hints.items()}, index)
        for index, source in enumerate(sources)
    ]


def batches(sources: Sequence[Source], batch_tokens: int, least: int = 1) -> list[list[int]]:
    """Indices of the sources that are not blank, in batches of at most `batch_tokens` padded tokens; the longest first.

    A source counts as at least `least` tokens.
    """
    filled = np.array([index for index, source in enumerate(sources) if not source.is_blank], dtype=np.int64)
    lengths = np.array([max(least, len(sources[index].ids)) for index in filled], dtype=np.int64)
    return [filled[chosen].tolist() for chosen in length_batches(lengths, batch_tokens)]


def dials(sources: Sequence[Source]) -> dict[str, list[Any]]:
    """The dials of the sources as lists, of the settings that at least one of them uses."""
    unset = {"keep": None, "max_memory": None, "shift": None, "dense": False}
    used = {name for source in sources for name in source.dial}
    return {name: [source.dial.get(name, unset[name]) for source in sources] for name in unset if name in used}


def check_text(text: Any, name: str) -> None:
    if not isinstance(text, str):
        raise WrongKindError(f"{name}: expected a text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name}: character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X}), which is "
            'not valid text; decode the bytes as UTF-8, or replace it: text.encode("utf-8", "replace").decode()'
        ) from None


def truncation(ids: Sequence[int], limit: int, special: frozenset[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that cuts a list with one value per token to the limit and keeps the closing special tokens."""
    closing = 0
    while closing < min(limit, len(ids)) and ids[-closing - 1] in special:
        closing += 1
    if len(ids) <= limit:
        return list
    return lambda values: [*values[: limit - closing], *values[len(ids) - closing :]]


def without_prefix(span: Span | None, prefix: int) -> Span | None:
    """A span relative to the text after the prefix; None for tokens of the prefix."""
    if span is None or span[1] <= prefix:
        return None
    return max(0, span[0] - prefix), span[1] - prefix
