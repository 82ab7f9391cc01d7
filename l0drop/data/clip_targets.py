"""The target tokens of clips, with a teacher's distributions and with times, and what becomes of them in joined clips.

A target with times is a row of segments, each of which is a time, the tokens of its text, and a time. Times are those
of the window: a time token counts steps of 20 ms, one encoder row, from the token `first_time` for the beginning.

Where the end of a window cuts a segment, Whisper's own training data has the beginning of that segment and no text.
Long recordings rely on this: the next window begins there. An end without a beginning behind it says that nobody
speaks until the end of the window.

Shapes: T tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NEVER = -1e4
"""A log-probability that no softmax notices; float16 has it."""


class TopTokens(NamedTuple):
    """The most likely tokens of a teacher for each target token and EOS: log-probabilities and ids, [T + 1, top]."""

    values: np.ndarray
    ids: np.ndarray

    def take(self, first: int, last: int) -> "TopTokens":
        """The rows from `first` to `last`, which is left out."""
        return TopTokens(self.values[first:last], self.ids[first:last])

    def certain(self, token: int) -> "TopTokens":
        """One row like these that knows the token."""
        values = np.full_like(self.values[:1], NEVER)
        values[0, 0] = 0
        return TopTokens(values, np.full_like(self.ids[:1], token))


class Target(NamedTuple):
    """The tokens of a clip's text [T], without prompt and EOS. first_time: the token of the time 0, None without times.

    teacher: what a teacher expects instead of each of them, and of EOS.
    """

    ids: np.ndarray
    teacher: TopTokens | None = None
    first_time: int | None = None


def joined_targets(targets: Sequence[Target], starts: Sequence[int], rows: int, eos: int) -> Target:
    """The target of clips that begin at these rows of a window with `rows` rows; it may end within the last one."""
    first, *others = targets
    if first.first_time is not None:
        others = [_shifted(target, start, rows) for target, start in zip(others, starts[1:], strict=True)]
        others[-1] = _cut(others[-1], rows, eos)
    parts = [first, *others]
    heard = [part.teacher for part in parts if part.teacher is not None]
    teacher = None
    if heard:  # each clip alone; the text ends after the last one only
        teacher = _stacked([*(part.take(0, -1) for part in heard[:-1]), heard[-1]])
    return Target(np.concatenate([part.ids for part in parts]), teacher, first.first_time)


def complete_tokens(ids: np.ndarray, first_time: int, rows: int) -> int:
    """The number of tokens in the segments that end within `rows` rows, and of the next one's beginning if it is there.

    All tokens, if all segments end there.
    """
    times = np.flatnonzero(ids >= first_time)
    begins, ends = times[::2], times[1::2]
    late = ids[ends] > first_time + rows
    if not late.any():
        return len(ids)
    begin = int(begins[late.argmax()])
    return begin + int(ids[begin] < first_time + rows)


def _cut(target: Target, rows: int, eos: int) -> Target:
    """What is complete in the window. Where it ends is known."""
    assert target.first_time is not None
    count = complete_tokens(target.ids, target.first_time, rows)
    if count == len(target.ids):
        return target
    teacher = target.teacher
    if teacher is not None:
        teacher = _stacked([teacher.take(0, count), teacher.certain(eos)])
    return target._replace(ids=target.ids[:count], teacher=teacher)


def _shifted(target: Target, start: int, rows: int) -> Target:
    """A target whose clip begins at a row of the window.

    Where it begins is known; a teacher that hears it alone may also expect that no times are asked for.
    """
    times, teacher = target.first_time, target.teacher
    assert times is not None
    ids = target.ids + start * (target.ids >= times)
    if teacher is not None:
        expected = teacher.ids + (start * (teacher.ids >= times)).astype(teacher.ids.dtype)
        late = expected > times + rows  # times that no token stands for
        values = np.where(late, np.array(NEVER, teacher.values.dtype), teacher.values)
        shifted = TopTokens(values, np.minimum(expected, times + rows))
        teacher = _stacked([teacher.certain(int(ids[0])), shifted.take(1, len(values))])
    return target._replace(ids=ids, teacher=teacher)


def _stacked(parts: Sequence[TopTokens]) -> TopTokens:
    return TopTokens(*(np.concatenate(column) for column in zip(*parts, strict=True)))
