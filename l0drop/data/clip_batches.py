"""Steps of a fixed number of clips, some of them joined, the same for any number of processes and any accumulation.

Each epoch is a permutation of the corpus, and steps take clips from one epoch after the other. Which clips are joined,
and which examples have times, is a function of seed, step and position alone, so a resumed run sees the examples of an
uninterrupted one.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MOST_DRAWS = 16
"""Clips that are tried for one joined clip."""

JOIN, TIMES = 0x6A6F696E, 0x74696D65
"""Streams of random bits."""


class ClipExample(NamedTuple):
    """The clips that one example consists of, joined if there are several; timed: with times in its target."""

    parts: tuple[int, ...]
    timed: bool = False


@dataclass(frozen=True)
class TimedExamples:
    """Which examples have times in their targets.

    share: of all examples. cut: the share of joined examples with times that go on until the end of the window, where
    their last clip is cut. lengths: tokens of each clip with times, 0 where they are not known; such clips have none.
    tokens: the number of tokens of joined clips, of which the last one may be cut.
    """

    share: float
    cut: float
    lengths: np.ndarray
    tokens: Callable[[tuple[int, ...]], int]


@dataclass(frozen=True)
class ClipStep:
    """One optimizer step. mine: the micro-batches of this process. target_tokens, with EOS: over all processes."""

    mine: tuple[tuple[ClipExample, ...], ...]
    sentences: int
    target_tokens: int
    length: None = None


class ClipBatches:
    """An endless, repeatable sequence of steps of `clips` examples.

    frames, tokens: of each clip. join: the share of examples that are joined, to at most `window` frames and
    `max_tokens` tokens. join_steps: all examples of a step are joined, or none; then no step pads short clips to the
    length of joined ones. timed: examples with times; None for none.
    """

    def __init__(
        self,
        frames: np.ndarray,
        tokens: np.ndarray,
        clips: int,
        *,
        seed: int,
        join: float = 0.0,
        join_steps: bool = False,
        window: int = 3000,
        max_tokens: int = 447,
        timed: TimedExamples | None = None,
        processes: int = 1,
        rank: int = 0,
        accumulation: int = 1,
    ) -> None:
        if clips < processes * accumulation:
            raise ValueError(
                f"train.batch_clips: {clips} clips are too few for {processes} processes × {accumulation} accumulation"
            )
        self._frames, self._tokens, self._clips, self._seed = frames, tokens, clips, seed
        self._join, self._join_steps = join, join_steps
        self._window, self._max_tokens, self._timed = window, max_tokens, timed
        self._processes, self._rank, self._parts = processes, rank, processes * accumulation
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def steps_from(self, global_step: int) -> Iterator[ClipStep]:
        """All steps from the `global_step`-th (counted from 0) on, without end."""
        step = global_step
        while True:
            yield self.step(step)
            step += 1

    def step(self, step: int) -> ClipStep:
        """One step. Clips of similar length are in the same micro-batch."""
        examples = [self.example(step, position) for position in range(self._clips)]
        examples.sort(key=lambda example: sum(int(self._frames[part]) for part in example.parts))
        cuts = [len(examples) * part // self._parts for part in range(self._parts + 1)]
        batches = [tuple(examples[start:end]) for start, end in itertools.pairwise(cuts)]
        tokens = sum(self._target_tokens(example) for example in examples)
        return ClipStep(tuple(batches[self._rank :: self._processes]), len(examples), tokens)

    def example(self, step: int, position: int) -> ClipExample:
        """One example of a step."""
        epoch, place = divmod(step * self._clips + position, len(self._frames))
        first = int(self._permutation(epoch)[place])
        timed, cut = self._times(first, step, position)
        if not self._join:
            return ClipExample((first,), timed)
        bits = self._bits(JOIN, step, position)
        coin = self._bits(JOIN, step, 1 << 32)[0] if self._join_steps else bits[0]
        if _uniform(coin) >= self._join:
            return ClipExample((first,), timed)
        draws = [draw % len(self._frames) for draw in bits[1:].tolist()]
        return ClipExample(self._joined(first, draws, timed, cut), timed)

    def _joined(self, first: int, draws: list[int], timed: bool, cut: bool) -> tuple[int, ...]:
        """The first clip and those of the drawn ones that fit; cut: and one that goes beyond the end of the window."""
        lengths = self._timed.lengths if timed and self._timed is not None else self._tokens
        parts = [first]
        frames, tokens = int(self._frames[first]), int(lengths[first])
        for part in draws:
            if timed and not lengths[part]:
                continue
            longer, more = frames + int(self._frames[part]), tokens + int(lengths[part])
            if more <= self._max_tokens and (longer <= self._window or (cut and frames < self._window)):
                parts.append(part)
                frames, tokens = longer, more
                if frames > self._window:
                    break
            elif len(parts) > 1:
                break
        return tuple(parts)

    def _times(self, first: int, step: int, position: int) -> tuple[bool, bool]:
        """Whether an example has times, and whether its last clip is cut if it is joined."""
        if self._timed is None or not self._timed.lengths[first]:
            return False, False
        timed, cut = (_uniform(bits) for bits in self._bits(TIMES, step, position)[:2])
        return timed < self._timed.share, timed < self._timed.share and cut < self._timed.cut

    def _target_tokens(self, example: ClipExample) -> int:
        """With EOS."""
        if example.timed and self._timed is not None:
            return self._timed.tokens(example.parts) + 1
        return sum(int(self._tokens[part]) for part in example.parts) + 1

    def _bits(self, stream: int, step: int, position: int) -> np.ndarray:
        # numpy guarantees that raw bits never change
        return np.random.Philox(key=[self._seed, stream], counter=[0, 0, position, step]).random_raw(1 + MOST_DRAWS)

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            bits = np.random.PCG64([self._seed, epoch]).random_raw(len(self._frames))
            self._order = (epoch, np.argsort(bits, kind="stable"))
        return self._order[1]


def _uniform(bits: np.uint64) -> float:
    """A number between 0 and 1."""
    return float(bits >> np.uint64(11)) * 2.0**-53
