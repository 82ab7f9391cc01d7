"""Steps of clips: every clip once per epoch, joined clips, independence of processes and of where a run resumes."""

from collections import Counter
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

from l0drop.data.clip_batches import ClipBatches, TimedExamples

FRAMES = np.random.default_rng(1).integers(200, 1700, 50)
TOKENS = FRAMES // 25


def batches(clips: int = 8, **options: Any) -> ClipBatches:
    return ClipBatches(FRAMES, TOKENS, clips, seed=3, **options)


def timed(share: float, cut: float = 0.0, lengths: np.ndarray = TOKENS) -> TimedExamples:
    return TimedExamples(share, cut, lengths, lambda parts: sum(lengths[list(parts)]) + 1000)


def examples(found: ClipBatches, start: int, steps: int) -> list[list[tuple[int, ...]]]:
    """The clips of each example of these steps."""
    return [[example.parts for example in chain(*step.mine)] for step in islice(found.steps_from(start), steps)]


def test_every_clip_occurs_once_in_an_epoch() -> None:
    seen = list(chain.from_iterable(batches(10).example(step, i).parts for step in range(10) for i in range(10)))
    assert Counter(seen) == dict.fromkeys(range(50), 2)
    assert seen[:50] != seen[50:]


def test_a_resumed_run_sees_the_same_steps() -> None:
    whole = examples(batches(join=0.5), 0, 20)
    assert examples(batches(join=0.5), 13, 7) == whole[13:]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_processes_share_the_steps_of_one(accumulation: int) -> None:
    alone = list(islice(batches(join=0.5).steps_from(4), 5))
    parts = [batches(join=0.5, processes=2, rank=rank, accumulation=accumulation) for rank in (0, 1)]
    for step, *others in zip(alone, *(islice(part.steps_from(4), 5) for part in parts), strict=True):
        assert sorted(chain(*step.mine)) == sorted(chain(*others[0].mine, *others[1].mine))
        assert all(len(other.mine) == accumulation and all(other.mine) for other in others)
        assert {other.target_tokens for other in others} == {step.target_tokens}
        assert step.target_tokens == sum(sum(TOKENS[list(parts)]) + 1 for parts, _ in chain(*step.mine))


def test_joined_clips_fill_windows_and_no_more() -> None:
    found = list(chain(*examples(batches(join=0.4), 0, 100)))
    several = [parts for parts in found if len(parts) > 1]
    assert 0.35 < len(several) / len(found) < 0.45
    frames = [sum(FRAMES[list(parts)]) for parts in several]
    assert max(frames) <= 3000
    assert np.mean(frames) > 2000
    assert max(map(len, several)) > 2
    limited = chain(*examples(batches(join=1.0, max_tokens=60), 0, 20))
    assert all(len(parts) == 1 or sum(TOKENS[list(parts)]) <= 60 for parts in limited)


def test_steps_are_joined_as_a_whole() -> None:
    found = examples(batches(join=0.5, join_steps=True), 0, 60)
    joined = [sum(len(parts) > 1 for parts in step) for step in found]
    assert all(count == 0 or count >= 6 for count in joined)  # a clip that fits no other stays alone
    assert 0.3 < sum(count > 0 for count in joined) / len(found) < 0.7
    assert examples(batches(join=0.5, join_steps=True), 13, 7) == found[13:20]


def test_too_few_clips_for_the_processes() -> None:
    with pytest.raises(ValueError, match=r"train\.batch_clips: 3 clips are too few for 2 processes × 2 accumulation"):
        batches(3, processes=2, accumulation=2)


def test_examples_with_times_consist_of_the_same_clips() -> None:
    plain, some = batches(join=0.5), batches(join=0.5, timed=timed(0.3))
    found = [some.example(step, position) for step in range(100) for position in range(8)]
    assert [one.parts for one in found] == [
        plain.example(step, position).parts for step in range(100) for position in range(8)
    ]
    assert 0.25 < np.mean([one.timed for one in found]) < 0.35
    several = [one.timed for one in found if len(one.parts) > 1]
    assert 0.22 < np.mean(several) < 0.38, "whatever is joined"
    steps = list(islice(some.steps_from(0), 5))
    counts = [sum(sum(TOKENS[list(parts)]) + 1 + 1000 * has for parts, has in chain(*step.mine)) for step in steps]
    assert [step.target_tokens for step in steps] == counts


def test_some_windows_with_times_are_cut() -> None:
    found = batches(join=0.5, timed=timed(0.6, cut=0.7))
    seen = [found.example(step, position) for step in range(150) for position in range(8)]
    ends: dict[bool, list[int]] = {True: [], False: []}
    for parts, has_times in seen:
        assert len(parts) == 1 or sum(FRAMES[list(parts[:-1])]) < 3000, "only the last clip is cut"
        if len(parts) > 1:
            ends[has_times].append(sum(FRAMES[list(parts)]))
    assert max(ends[False]) <= 3000
    assert 0.6 < np.mean(np.array(ends[True]) > 3000) < 0.8
    again = batches(join=0.5, timed=timed(0.6, cut=0.7))
    assert [again.example(149, position) for position in range(8)] == seen[-8:], "resumed"


def test_clips_without_times_are_never_used_with_times() -> None:
    known = np.where(np.arange(len(TOKENS)) % 2, TOKENS, 0)
    found = batches(join=0.5, timed=timed(1.0, cut=0.5, lengths=known))
    seen = [found.example(step, position) for step in range(100) for position in range(8)]
    assert all(known[list(parts)].all() for parts, has_times in seen if has_times)
    assert {parts[0] for parts, has_times in seen if not has_times} == set(np.flatnonzero(known == 0))
    assert any(len(parts) > 1 for parts, has_times in seen if has_times)


def test_tokens_of_times_count_against_the_limit() -> None:
    longer = TOKENS * 3
    found = batches(join=1.0, timed=timed(1.0, cut=1.0, lengths=longer), max_tokens=260)
    seen = [found.example(step, position) for step in range(20) for position in range(8)]
    assert all(len(parts) == 1 or sum(longer[list(parts)]) <= 260 for parts, _ in seen)
