"""Steps of a fixed number of clips, some of them joined, the same for any number of processes and any accumulation.

Each epoch is a permutation of the corpus, and steps take clips from one epoch after the other. Which clips are joined
is a function of seed, step and position alone, so a resumed run sees the clips of an uninterrupted one.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MOST_DRAWS = 16
"""Clips that are tried for one joined clip."""

Parts = tuple[int, ...]
"""The clips that one example consists of; several are joined."""


@dataclass(frozen=True)
class ClipStep:
    """One optimizer step. mine: the micro-batches of this process. target_tokens, with EOS: over all processes."""

    mine: tuple[tuple[Parts, ...], ...]
    sentences: int
    target_tokens: int
    length: None = None


class ClipBatches:
    """An endless, repeatable sequence of steps of `clips` examples.

    frames, tokens: of each clip. join: the share of examples that are joined, to at most `window` frames and
    `max_tokens` tokens. join_steps: all examples of a step are joined, or none; then no step pads short clips to the
    length of joined ones.
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
        self._window, self._max_tokens = window, max_tokens
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
        examples.sort(key=lambda parts: sum(int(self._frames[part]) for part in parts))
        cuts = [len(examples) * part // self._parts for part in range(self._parts + 1)]
        batches = [tuple(examples[start:end]) for start, end in itertools.pairwise(cuts)]
        tokens = sum(sum(int(self._tokens[part]) for part in parts) + 1 for parts in examples)
        return ClipStep(tuple(batches[self._rank :: self._processes]), len(examples), tokens)

    def example(self, step: int, position: int) -> Parts:
        """The clips of one example of a step."""
        epoch, place = divmod(step * self._clips + position, len(self._frames))
        first = int(self._permutation(epoch)[place])
        if not self._join:
            return (first,)
        bits = self._bits(step, position)
        coin = self._bits(step, 1 << 32)[0] if self._join_steps else bits[0]
        if float(coin >> np.uint64(11)) * 2.0**-53 >= self._join:
            return (first,)
        parts = [first]
        frames, tokens = int(self._frames[first]), int(self._tokens[first])
        for draw in bits[1:].tolist():
            part = draw % len(self._frames)
            longer, more = frames + int(self._frames[part]), tokens + int(self._tokens[part])
            if longer <= self._window and more <= self._max_tokens:
                parts.append(part)
                frames, tokens = longer, more
            elif len(parts) > 1:
                break
        return tuple(parts)

    def _bits(self, step: int, position: int) -> np.ndarray:
        # numpy guarantees that raw bits never change
        return np.random.Philox(key=[self._seed, 0x6A6F696E], counter=[0, 0, position, step]).random_raw(1 + MOST_DRAWS)

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            bits = np.random.PCG64([self._seed, epoch]).random_raw(len(self._frames))
            self._order = (epoch, np.argsort(bits, kind="stable"))
        return self._order[1]
