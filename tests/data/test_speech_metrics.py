"""Word and character error rates: known values, a slow twin, and clips that run away."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0drop.data.speech_metrics import cer, clip_errors, wer


def distance(one: list[str], other: list[str]) -> int:
    """Levenshtein's distance from its recurrence."""
    row = list(range(len(other) + 1))
    for i, x in enumerate(one, 1):
        before, row[0] = row[:], i
        for j, y in enumerate(other, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
    return row[-1]


def test_known_values() -> None:
    hyps = ["The cat sat on a mat.", "it's twenty one", ""]
    refs = ["the cat sat on the mat", "it is 21", "nothing heard"]
    score = wer(hyps, refs)
    assert score.value == pytest.approx(100 * (1 + 0 + 2) / (6 + 3 + 2))
    assert score.details["deletions"] == 2
    assert score.details["substitutions"] == 1
    assert score.details["empty"] == 1
    assert "norm:whisper-english" in score.signature
    assert "jiwer:" in score.signature
    assert cer(["abcd"], ["abxd"]).value == pytest.approx(25)


words = st.lists(st.sampled_from(["red", "house", "dog", "sees", "tall"]), max_size=6)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_errors_are_levenshteins_distance(pairs: list[tuple[list[str], list[str]]]) -> None:
    hyps, refs = ([" ".join(side) for side in sides] for sides in zip(*pairs, strict=True))
    for clip, (hyp, ref) in zip(clip_errors(hyps, refs), pairs, strict=True):
        assert clip.errors == distance(hyp, ref)
        assert (clip.length, clip.written) == (len(ref), len(hyp))


def test_runaways_and_blank_references() -> None:
    runaway, insertion = clip_errors(["go on " * 20, "you"], ["go on", ""])
    assert runaway.is_runaway
    assert not insertion.is_runaway
    assert (insertion.insertions, insertion.length) == (1, 0)
    assert wer(["go on " * 20], ["go on"]).details["runaways"] == 1
    with pytest.raises(ValueError, match="all of them are blank"):
        wer(["a"], [""])
    with pytest.raises(ValueError, match="2 transcripts but 1 references"):
        wer(["a", "b"], ["a"])
