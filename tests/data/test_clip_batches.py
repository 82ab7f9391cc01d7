"""Steps of clips: every clip once per epoch, joined clips, independence of processes and of where a run resumes."""

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest

from l0drop.data.clip_batches import ClipBatches

FRAMES = np.random.default_rng(1).integers(200, 1700, 50)
TOKENS = FRAMES // 25


def batches(clips: int = 8, **options: float) -> ClipBatches:
    return ClipBatches(FRAMES, TOKENS, clips, seed=3, **options)  # type: ignore[arg-type]


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
