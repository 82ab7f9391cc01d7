"""Sparsity by group of words, by word and its frequency, by sentence length and position, by layer.

All counts are per source token, so the rates of each table, weighted by its counts, give the overall sparsity.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from l0drop.core.groups import GROUPS
from l0drop.data.sparsity import SparsityMeter
from l0drop.runs.analysis import Bin, Bins, GateShares, GateValues, Groups, Places, Rate, WordBand, WordRate, Words
from l0drop.study.analysis.annotate import Marks
from l0drop.study.analysis.attention import Attention

BANDS = (10, 100, 1_000, 10_000)
"""The last frequency rank of each band of words; the paper's frequency rule drops the first hundred."""
LENGTHS = (10, 20, 30, 40, 60, 80, 120, 200, 400, 800, 1_600)
"""The longest sentence, or last position, of each bin."""
TENTHS = 10
SHOWN = 10
SEEN_AT_LEAST = 5
"""Rarer words are not listed."""


@dataclass
class Tally:
    """Tokens and dropped tokens in numbered bins."""

    seen: np.ndarray
    dropped: np.ndarray

    @classmethod
    def of(cls, bins: int) -> "Tally":
        return cls(np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64))

    def add(self, bins: np.ndarray, dropped: np.ndarray) -> None:
        self.seen += np.bincount(bins, minlength=len(self.seen))
        self.dropped += np.bincount(bins[dropped], minlength=len(self.seen))

    def rate(self, chosen: Any) -> Rate:
        """Tokens and sparsity of one or several bins."""
        seen, dropped = int(self.seen[chosen].sum()), int(self.dropped[chosen].sum())
        return Rate(seen, dropped / seen if seen else None)


@dataclass
class DroppedStudy:
    """Counts the tokens that a gated model drops; token ids are below `vocabulary`."""

    vocabulary: int
    overall: SparsityMeter = field(default_factory=SparsityMeter)
    layers: list[SparsityMeter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = Tally.of(len(GROUPS))
        self.words = Tally.of(self.vocabulary)
        self.lengths, self.positions, self.tenths = (
            Tally.of(len(LENGTHS) + 1),
            Tally.of(len(LENGTHS) + 1),
            Tally.of(TENTHS),
        )

    def add(self, attention: Attention, input_ids: Tensor, marks: Marks) -> None:
        """Add one batch."""
        gates, mask_BN = attention.gates, attention.mask
        assert gates is not None
        self.overall.add(gates.values, mask_BN, gates.open_probability)
        for number, layer in enumerate(attention.layer_gates or ()):
            if number == len(self.layers):
                self.layers.append(SparsityMeter())
            self.layers[number].add(layer.values, mask_BN)
        real = mask_BN.cpu().numpy()
        dropped = ((gates.values == 0) & mask_BN).cpu().numpy()
        ids, is_whole, is_special = (t.cpu().numpy() for t in (input_ids, marks.whole, marks.special))
        if marks.groups is not None:
            self.groups.add(marks.groups.cpu().numpy()[real], dropped[real])
        self.words.add(ids[real & is_whole], dropped[real & is_whole])
        length = np.broadcast_to(real.sum(1, keepdims=True), real.shape)
        self.lengths.add(np.searchsorted(LENGTHS, length[real]), dropped[real])
        inner = real & ~is_special
        position = real.cumsum(1)  # from 1
        self.positions.add(np.searchsorted(LENGTHS, position[inner]), dropped[inner])
        inner_length = np.broadcast_to(inner.sum(1, keepdims=True), real.shape)[inner]
        inner_position = (inner.cumsum(1) - 1)[inner]
        self.tenths.add(inner_position * TENTHS // inner_length, dropped[inner])

    @property
    def sparsity(self) -> float:
        return self.overall.sparsity

    def by_group(self) -> Groups:
        return Groups(
            what="sparsity by group: first (BPEH) and later (BPEO) pieces of split words; whole words by the tagger's "
            "part of speech; EOS",
            groups={name: self.groups.rate([number]) for number, name in enumerate(GROUPS)},
        )

    def gate_values(self) -> GateValues:
        overall, layers = _shares(self.overall), [_shares(layer) for layer in self.layers]
        return GateValues(**vars(overall), expected_open_rate=self.overall.expected_open_rate, layers=layers)

    def by_word(self, text_of: Callable[[int], str]) -> Words:
        """Whole words by their frequency in this text; `text_of` maps a token id to its word."""
        order = np.argsort(-self.words.seen, kind="stable")[: int((self.words.seen > 0).sum())]
        bands, first = [], 0
        for last in (*BANDS, None):
            ids = order[first:last]
            if ids.size:
                most, least = self._extremes(ids, text_of)
                ranks, rate = (first + 1, first + ids.size), self.words.rate(ids)
                bands.append(WordBand(**vars(rate), ranks=ranks, most_dropped=most, least_dropped=least))
            first = last or 0
        what = (
            f"words of one token, by frequency rank in this text; words that occur at least {SEEN_AT_LEAST} times are "
            "listed"
        )
        return Words(**vars(self.words.rate(order)), what=what, bands=bands)

    def _extremes(self, ids: np.ndarray, text_of: Callable[[int], str]) -> tuple[list[WordRate], list[WordRate]]:
        """The words that are dropped most, and least."""
        often = ids[self.words.seen[ids] >= SEEN_AT_LEAST]
        rate = self.words.dropped[often] / np.maximum(1, self.words.seen[often])

        def listed(indices: np.ndarray) -> list[WordRate]:
            return [WordRate(text_of(int(often[i])), float(rate[i]), int(self.words.seen[often[i]])) for i in indices]

        most = np.lexsort((-self.words.seen[often], -rate))
        least = np.lexsort((-self.words.seen[often], rate))
        half = len(often) // 2  # no word is in both lists
        shown = min(SHOWN, max(half, 1))
        return listed(most[:shown]), listed(least[: min(SHOWN, half)])

    def by_place(self) -> Places:
        tenths = [
            Bin(first=number / TENTHS, last=(number + 1) / TENTHS, **vars(self.tenths.rate([number])))
            for number in range(TENTHS)
        ]
        return Places(
            by_length=Bins("sparsity by the sentence's source tokens, EOS counted", _bins(self.lengths)),
            by_position=Bins(
                "sparsity by position in the source, from 1; without EOS and other added tokens", _bins(self.positions)
            ),
            by_relative_position=Bins("sparsity by tenth of the source; without EOS and other added tokens", tenths),
        )


def _shares(meter: SparsityMeter) -> GateShares:
    return GateShares(
        tokens=meter.tokens,
        sparsity=meter.sparsity,
        exactly_zero=meter.exactly_zero,
        exactly_one=meter.exactly_one,
        between=meter.between,
    )


def _bins(tally: Tally) -> list[Bin]:
    edges = (0, *LENGTHS, None)
    return [
        Bin(first=(low or 0) + 1, last=high, **vars(tally.rate([number])))
        for number, (low, high) in enumerate(itertools.pairwise(edges))
        if tally.seen[number]
    ]
