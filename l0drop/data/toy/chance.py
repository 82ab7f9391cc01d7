"""Seeds, and lists that turn a uniform draw into a weighted one."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

T = TypeVar("T")
ToySplit = Literal["train", "valid", "test"]


def mixed(seed: int, index: int) -> int:
    """Mix a seed and an index into an unrelated seed."""
    state = (seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & (1 << 64) - 1
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return state ^ (state >> 31)


def split_seed(split: ToySplit, seed: int) -> int:
    """Derive the seed of a split."""
    if split not in ("train", "valid", "test"):
        raise ValueError(f"split must be 'train', 'valid' or 'test', not {split!r}")
    return mixed(seed, zlib.crc32(split.encode()))


def zipf(items: Sequence[T], size: int = 512) -> list[T]:
    """Repeat items by rank, so that a uniform draw from the list is Zipf-like."""
    weights = [1 / (rank + 3) for rank in range(len(items))]
    scale = size / sum(weights)
    return [item for item, weight in zip(items, weights, strict=True) for _ in range(max(1, round(weight * scale)))]


def weighted(weights: Mapping[T, int]) -> list[T]:
    """Repeat items by weight, so that a uniform draw from the list is weighted."""
    return [item for item, weight in weights.items() for _ in range(weight)]
