"""Targets with times: written and read, shifted in joined clips, cut at the end of a window."""

import numpy as np
import pytest

from l0drop.data.clip_targets import NEVER, Target, TopTokens, complete_tokens, joined_targets
from l0drop.data.speech_targets import SpeechTargets, timed_text
from tests.models import whispers

FIRST = whispers.NO_TIMESTAMPS + 1
ROWS = 24


def targets() -> SpeechTargets:
    return SpeechTargets.of(whispers.tokenizer(), whispers.build().generation_config, "en", "tiny")


def at(row: int) -> int:
    return FIRST + row


ONE = [at(0), 1, 2, at(5), at(5), 3, at(9)]
OTHER = [at(1), 4, at(4), at(6), 8, 9, at(8)]


def target(ids: list[int], top: int | None = None) -> Target:
    """A target whose teacher expects every token and EOS, then the token after it, then random ones."""
    if top is None:
        return Target(np.array(ids), None, FIRST)
    random = np.random.default_rng(len(ids))
    found = random.integers(0, 60, (len(ids) + 1, top)).astype(np.int32)
    found[:, 0] = [*ids, whispers.EOS]
    found[:, 1] = found[:, 0] + 1
    values = np.log(random.dirichlet(np.ones(top), len(found))).astype(np.float16)
    return Target(np.array(ids), TopTokens(values, found), FIRST)


def test_a_text_with_times_becomes_the_tokens_that_stand_for_it() -> None:
    text = "<|0.00|> b1 c2<|0.10|><|0.10|> d3<|0.18|>"
    assert targets().encode_timed(text, ROWS) == ONE
    assert whispers.tokenizer().decode(ONE) == text
    assert targets().encode_timed(" <|0.00|>b1  c2<|0.10|> <|0.10|>d3 <|0.18|> ", ROWS) == ONE, "spaces do not count"
    assert targets().encode_timed("  ", ROWS) == []
    assert targets().first_time == FIRST
    assert targets().timed_prompt == targets().prompt[:-1]


def test_segments_become_a_text_with_times() -> None:
    segments = [(0.0, 0.1, "b1 c2 "), (0.1, 0.14, "  "), (0.1, 0.187, "d3")]
    assert timed_text(segments) == "<|0.00|> b1 c2<|0.10|><|0.10|> d3<|0.18|>"
    assert timed_text([(0.0, 29.98, "a0"), (29.98, 30.0, "b1")]).endswith("<|29.98|><|29.98|> b1<|30.00|>")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("b1 c2", "every part of the text between two times"),
        ("<|0.00|> b1", "every part of the text between two times"),
        ("a0<|0.00|> b1<|0.02|>", "every part of the text between two times"),
        ("<|0.00|> b1<|0.10|> c2<|0.12|> d3<|0.14|>", "every part of the text between two times"),
        ("<|0.00|><|0.10|>", "two times without a text"),
        ("<|0.10|> b1<|0.08|>", "its times do not rise"),
        ("<|0.00|> b1<|0.11|>", r"the time 0\.11 is no multiple of 0\.02"),
        ("<|0.00|> b1<|0.50|>", r"the time 0\.50 is after the end of the audio, which has 0\.48 seconds"),
    ],
)
def test_a_text_with_bad_times_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        targets().encode_timed(text, ROWS)


def test_the_times_of_later_clips_are_shifted() -> None:
    found = joined_targets([target(ONE), target(OTHER), target(ONE)], [0, 7, 15], ROWS, whispers.EOS)
    second = [at(8), 4, at(11), at(13), 8, 9, at(15)]
    third = [at(15), 1, 2, at(20), at(20), 3, at(24)]
    assert found.ids.tolist() == [*ONE, *second, *third]
    assert found.teacher is None
    untimed = joined_targets([Target(np.array([1, 2])), Target(np.array([3]))], [0, 7], ROWS, whispers.EOS)
    assert untimed.ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("start", "kept"),
    [
        (16, [at(17), 4, at(20), at(22), 8, 9, at(24)]),
        (17, [at(18), 4, at(21), at(23)]),
        (18, [at(19), 4, at(22)]),
        (20, [at(21), 4, at(24)]),
        (21, [at(22)]),
        (22, [at(23)]),
        (23, []),
    ],
)
def test_a_window_ends_with_the_beginning_of_an_incomplete_segment(start: int, kept: list[int]) -> None:
    found = joined_targets([target(ONE), target(OTHER)], [0, start], ROWS, whispers.EOS)
    assert found.ids.tolist() == [*ONE, *kept]
    assert complete_tokens(np.array(OTHER), FIRST, ROWS - start) == len(kept)


@pytest.mark.parametrize("start", [10, 17, 18, 23])
def test_a_teacher_of_joined_clips_expects_their_times(start: int) -> None:
    one, other = target(ONE, 4), target(OTHER, 4)
    found = joined_targets([one, other], [0, start], ROWS, whispers.EOS)
    assert one.teacher is not None
    assert other.teacher is not None
    assert found.teacher is not None
    values, ids = found.teacher
    expected = [*found.ids.tolist(), whispers.EOS]
    assert ids[:, 0].tolist() == expected, "what it finds most likely are the labels, as for each clip alone"
    assert values.dtype == one.teacher.values.dtype
    assert np.array_equal(values[: len(ONE)], one.teacher.values[:-1])
    begin, last = len(ONE), len(expected) - 1
    known = {begin} | ({last} if len(found.ids) < len(ONE) + len(OTHER) else set())
    for row in range(begin, len(expected)):
        shares = np.exp(values[row].astype(np.float64))
        if row in known:
            assert shares.tolist() == [1, 0, 0, 0]
            continue
        alone, tokens = other.teacher.values[row - begin], other.teacher.ids[row - begin]
        for value, token, before, was in zip(values[row], ids[row], alone, tokens, strict=True):
            shift = start if was >= FIRST else 0
            if was + shift > at(ROWS):
                assert value == np.float16(NEVER)
            else:
                assert (value, token) == (before, was + shift)
