"""Batches of a fixed token budget, the same for any number of processes and any accumulation.

The sentences of an optimizer step are chosen first, from lengths, seed and epoch alone, such that sentences × longest
side of the whole step stays within the budget. Then the step is split into processes × accumulation micro-batches. So
the sentences of a step do not depend on the number of machines.

A step of long sentences has few of them, but each micro-batch needs at least one. With M = budget // longest sentence,
a full step has at least M sentences. The last step of a pool shares sentences with the step before it, so that both
have at least (M + 1) // 2. Every sentence occurs exactly once in an epoch.

With `multiple`, batches have few shapes: lengths are rounded up to a multiple, both sides of a step are padded to the
same length, and steps are filled from the longest sentence down, so that the length of a step determines its size.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from l0drop.data.corpus import Example


@dataclass(frozen=True, eq=False)
class Step:
    """The sentences of one optimizer step, and its totals over all processes.

    `micro_batches[rank][i]` has the indices that process `rank` handles in its i-th micro-batch; `mine` is the list of
    this process. Token counts exclude padding. Both sides are padded to `length`; None pads each side to its longest
    sentence.
    """

    epoch: int
    position: int
    micro_batches: tuple[tuple[np.ndarray, ...], ...]
    mine: tuple[np.ndarray, ...]
    sentences: int
    source_tokens: int
    target_tokens: int
    length: int | None = None


class TokenBatches:
    """An endless, repeatable sequence of steps over a corpus, each of at most `budget` padded tokens.

    Each epoch shuffles the corpus, sorts pools of `pool` to 2·`pool` sentences by length (the longer side), fills
    steps from them, and shuffles the steps. `max_sentences` limits the size of a step. `multiple`: see above.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray | None,
        budget: int,
        *,
        seed: int,
        max_sentences: int | None = None,
        pool: int = 32_768,
        processes: int = 1,
        rank: int = 0,
        accumulation: int = 1,
        multiple: int | None = None,
    ) -> None:
        self._source = np.asarray(source_lengths, dtype=np.int64)
        self._target = np.zeros_like(self._source) if target_lengths is None else np.asarray(target_lengths, np.int64)
        if self._source.shape != self._target.shape:
            raise ValueError(f"{len(self._source)} source lengths but {len(self._target)} target lengths")
        if not 0 <= rank < processes:
            raise ValueError(f"rank={rank} is not one of {processes} processes")
        self._lengths, self._multiple = np.maximum(self._source, self._target), multiple
        if multiple is not None and len(self._lengths):
            # not beyond the longest sentence: the model may not have more positions
            self._lengths = np.minimum(-(-self._lengths // multiple) * multiple, self._lengths.max())
        self._budget, self._seed, self._pool = budget, seed, pool
        self._max_sentences = budget if max_sentences is None else max_sentences
        self._processes, self._rank, self._accumulation = processes, rank, accumulation
        self._check_every_micro_batch_gets_a_sentence()

    def steps(self, epoch: int) -> Iterator[Step]:
        """The steps of one epoch; every sentence is in exactly one of them."""
        return self._steps(epoch, self._plan(epoch), 0)

    def steps_from(self, global_step: int) -> Iterator[Step]:
        """All steps from the `global_step`-th (counted from 0) on, epoch after epoch, without end."""
        epoch, position = 0, global_step
        while position >= len(plan := self._plan(epoch)):
            position -= len(plan)
            epoch += 1
        while True:
            yield from self._steps(epoch, plan, position)
            epoch, position = epoch + 1, 0
            plan = self._plan(epoch)

    def _check_every_micro_batch_gets_a_sentence(self) -> None:
        parts = self._processes * self._accumulation
        split = f"{self._processes} processes × {self._accumulation} accumulation"
        if self._accumulation < 1:
            raise ValueError(f"accumulation={self._accumulation} must be at least 1")
        if len(self._lengths) < parts:
            raise ValueError(f"{len(self._lengths)} sentences are too few for {split}")
        if (self._source < 1).any():
            raise ValueError(f"sentence {int(self._source.argmin())} has no source token")
        fewest = 2 * parts - 1
        longest = int(self._lengths.argmax())
        if fewest * self._lengths[longest] > self._budget:
            raise ValueError(
                f"sentence {longest} has {self._lengths[longest]} tokens, but a budget of {self._budget} tokens per "
                f"step with {split} only allows sentences of up to {self._budget // fewest}: "
                "raise the budget, lower the accumulation, or truncate sentences"
            )
        if self._max_sentences < fewest:
            raise ValueError(f"max_sentences={self._max_sentences} is too few for {split}: at least {fewest}")
        if self._pool < parts:
            raise ValueError(f"pool={self._pool} is too small for {split}: at least {parts}")

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """The sentences of each step of an epoch, sorted by length within a step."""
        order = np.random.PCG64([self._seed, epoch])
        sentences = _shuffle(np.arange(len(self._lengths)), order)
        steps: list[np.ndarray] = []
        for pool in np.array_split(sentences, max(1, len(sentences) // self._pool)):
            pool = pool[np.argsort(self._lengths[pool], kind="stable")]
            steps += np.split(pool, self._cuts(self._lengths[pool]))
        return [steps[i] for i in _shuffle(np.arange(len(steps)), order)]

    def _cuts(self, lengths: np.ndarray) -> list[int]:
        """Where to cut ascending lengths so that each step is as full as possible and none is too small."""
        if self._multiple is not None:
            return self._cuts_from_the_longest(lengths)
        cuts = [0]
        while cuts[-1] < len(lengths):
            stop = min(len(lengths), cuts[-1] + self._max_sentences)
            cuts.append(_fill(lengths, cuts[-1], stop, self._budget))
        if len(cuts) > 2:
            shared = cuts[-1] - cuts[-3]
            last = min(self._budget // int(lengths[-1]), shared // 2)
            cuts[-2] = min(cuts[-2], cuts[-1] - last)
        return cuts[1:-1]

    def _cuts_from_the_longest(self, lengths: np.ndarray) -> list[int]:
        """The same for `multiple`: fill steps from the longest sentence down; the shortest ones fill the last step."""
        cuts = [len(lengths)]
        while cuts[-1] > 0:
            rows = min(self._max_sentences, self._budget // int(lengths[cuts[-1] - 1]))
            cuts.append(max(0, cuts[-1] - rows))
        cuts.reverse()
        if len(cuts) > 2 and cuts[1] < self._processes * self._accumulation:
            cuts[1] = cuts[2] // 2
        return cuts[1:-1]

    def _steps(self, epoch: int, plan: list[np.ndarray], start: int) -> Iterator[Step]:
        for position in range(start, len(plan)):
            sentences = plan[position]
            lengths = self._lengths[sentences]
            if self._multiple is not None:
                lengths = np.full_like(lengths, lengths[-1])
            parts = np.split(sentences, _balanced_cuts(lengths, self._processes * self._accumulation))
            # Processes wait for each other after every micro-batch, so they get sentences of similar lengths.
            micro_batches = tuple(tuple(parts[rank :: self._processes]) for rank in range(self._processes))
            yield Step(
                epoch=epoch,
                position=position,
                micro_batches=micro_batches,
                mine=micro_batches[self._rank],
                sentences=len(sentences),
                source_tokens=int(self._source[sentences].sum()),
                target_tokens=int(self._target[sentences].sum()),
                length=None if self._multiple is None else int(lengths[-1]),
            )


def collate(examples: Sequence[Example], pad_id: int, *, length: int | None = None) -> dict[str, Any]:
    """Pad examples into tensors: input_ids, attention_mask, labels (unless source-only), hints and index.

    Padding is -100 in labels and -1 in `hints`, a dict of [B, N] tensors. `index` [B] has the examples' indices in the
    corpus.
    `length`: pad both sides to this length (default: each side to its longest sentence).
    """
    sources = [example.source for example in examples]
    hints = {name: _padded([example.hints[name] for example in examples], -1, length) for name in examples[0].hints}
    batch: dict[str, Any] = {
        "input_ids": _padded(sources, pad_id, length),
        "attention_mask": _padded([np.ones_like(source) for source in sources], 0, length),
        "hints": hints,
        "index": torch.tensor([example.index for example in examples]),
    }
    targets = [example.target for example in examples if example.target is not None]
    if targets:
        assert len(targets) == len(examples), "either all examples have targets or none has"
        batch["labels"] = _padded(targets, -100, length)
    return batch


def _padded(rows: Sequence[np.ndarray], padding: int, length: int | None = None) -> torch.Tensor:
    padded = np.full((len(rows), max(map(len, rows)) if length is None else length), padding, dtype=np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(padded)


def _shuffle(items: np.ndarray, bits: np.random.PCG64) -> np.ndarray:
    """Items in random order. numpy guarantees that raw bits never change, which Generator.permutation may."""
    return items[np.argsort(bits.random_raw(len(items)), kind="stable")]


def _fill(lengths: np.ndarray, start: int, stop: int, area: int) -> int:
    """The largest end with (end - start) × lengths[end - 1] <= area; lengths ascend, so this area grows with end."""
    return start + bisect_right(range(start, stop), area, key=lambda last: (last - start + 1) * int(lengths[last]))


def _balanced_cuts(lengths: np.ndarray, parts: int) -> list[int]:
    """Where to cut ascending lengths into `parts` runs so that the largest padded area is as small as possible."""
    assert len(lengths) >= parts
    low, high = int(lengths[-1]), -(-len(lengths) // parts) * int(lengths[-1])
    while low < high:
        middle = (low + high) // 2
        if _runs(lengths, middle, parts) is None:
            low = middle + 1
        else:
            high = middle
    cuts = _runs(lengths, high, parts)
    assert cuts is not None, "parts of equal size always fit"
    return cuts


def _runs(lengths: np.ndarray, area: int, parts: int) -> list[int] | None:
    """The inner cuts of `parts` non-empty runs, each within `area`; None if there are no such cuts."""
    ends = [0]
    for runs_after in reversed(range(parts)):
        ends.append(_fill(lengths, ends[-1], len(lengths) - runs_after, area))
    return ends[1:-1] if ends[-1] == len(lengths) else None
