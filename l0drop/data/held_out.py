"""Validation and test text taken from the training text, for recipes that name no other.

A line is held out if the hash of its source is among the smallest. So the choice depends on the text alone: not on the
order of its lines, the process or the seed. All copies of a held-out source leave the training text.
"""

import functools
import hashlib
import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from l0drop import recipe as r
from l0drop.data.sources import Prefixed, open_text
from l0drop.data.text import CorpusError, Pair, ParallelText
from l0drop.recipe.data import HELD_OUT

SHARE = 20
"""By default, at most one line in this number is held out for a split."""
FEWEST = 100
"""A text with fewer usable lines needs an explicit `data.held_out`."""


def open_split(data: r.Data, split: str, prefix: str = "") -> ParallelText:
    """The reader for a split of a recipe; `prefix` is put before every source that is not blank."""
    if split not in data.splits:
        raise CorpusError(f"data.{split}: is missing in the recipe")
    corpus, held_out = getattr(data, split), data.held_out_splits
    if split not in held_out and not (split == "train" and held_out):
        return open_text(corpus, prefix)
    text = CorpusPart(open_text(data.train), split, held_out, data.held_out)
    return Prefixed(text, prefix) if prefix else text


@dataclass(frozen=True)
class Choice:
    """The held-out lines of a text: hashes of their sources, and the number of lines with these sources."""

    splits: dict[str, frozenset[int]]
    removed: int

    @property
    def counts(self) -> dict[str, int]:
        """The number of lines held out for each split, and the number removed from training, copies included."""
        return {**{split: len(keys) for split, keys in self.splits.items()}, "removed_from_training": self.removed}


@dataclass(frozen=True)
class CorpusPart:
    """One part of a text: the lines held out for a split, each once, or all others."""

    text: ParallelText
    split: str
    held_out: tuple[str, ...]
    lines: int | None

    @property
    def source_only(self) -> bool:
        return self.text.source_only

    @property
    def choice(self) -> Choice:
        text: Any = self.text  # readers are frozen dataclasses, so they can be keys of the cache
        return _choose(text, json.dumps(text.inputs()), self.held_out, self.lines)

    def __iter__(self) -> Iterator[Pair]:
        choice = self.choice
        if self.split == "train":
            excluded = frozenset().union(*choice.splits.values())
            yield from (pair for pair in self.text if not _is_usable(pair) or _key(pair) not in excluded)
            return
        missing = set(choice.splits[self.split])
        for pair in self.text:
            if _is_usable(pair) and (key := _key(pair)) in missing:
                missing.remove(key)
                yield pair

    def inputs(self) -> list[dict[str, Any]]:
        return [*self.text.inputs(), {"part": self.split, "held_out": self.choice.counts}]


def held_out_counts(data: r.Data) -> dict[str, int]:
    """The counts of a recipe's held-out lines; empty if its text is all given."""
    text = open_split(data, "train")
    return text.choice.counts if isinstance(text, CorpusPart) else {}


def _is_usable(pair: Pair) -> bool:
    return not pair.is_blank and not pair.is_one_sided


def _key(pair: Pair) -> int:
    """A hash of the source, the same for sources that differ in white space only."""
    source = " ".join(pair.source.split()).encode()
    return int.from_bytes(hashlib.blake2b(source, digest_size=8, person=b"held out").digest())


@functools.lru_cache(maxsize=2)
def _choose(text: ParallelText, stamp: str, splits: tuple[str, ...], wanted: int | None) -> Choice:
    """Choose the lines in one pass over a text; `stamp` changes whenever the text does."""
    room = len(splits) * (wanted or HELD_OUT)
    largest_first: list[int] = []  # the smallest keys so far, negated
    copies: dict[int, int] = {}
    lines = 0
    for key in (_key(pair) for pair in text if _is_usable(pair)):
        lines += 1
        if key in copies:
            copies[key] += 1
        elif len(copies) < room:
            copies[key] = 1
            heapq.heappush(largest_first, -key)
        elif key < -largest_first[0]:
            copies[key] = 1
            del copies[-heapq.heapreplace(largest_first, -key)]
    each = wanted or min(HELD_OUT, lines // SHARE)
    names = " and ".join(splits)
    if wanted is None and lines < FEWEST:
        raise CorpusError(
            f"{_described(text)}: has {lines:,} usable lines, too few to hold some out for {names}: give at least "
            f"{FEWEST}, set data.held_out, or name the text in data.valid"
        )
    chosen = sorted(copies)[: each * len(splits)]
    removed = sum(copies[key] for key in chosen)
    if len(chosen) < each * len(splits) or 2 * removed > lines:
        raise CorpusError(
            f"{_described(text)}: to hold out {each:,} different lines for each of {names} would leave less than half "
            f"of its {lines:,} usable lines to train on: lower data.held_out, or name the text in data.valid"
        )
    return Choice({split: frozenset(chosen[n :: len(splits)]) for n, split in enumerate(splits)}, removed)


def _described(text: ParallelText) -> str:
    names = [str(item.get("path") or item.get("name") or "") for item in text.inputs()]
    return ", ".join(name for name in names if name) or "data.train"
