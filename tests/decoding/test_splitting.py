"""Splitting of long texts, and joining of their results."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0drop.decoding.results import Alternative, Result, SourceToken
from l0drop.decoding.sources import Source
from l0drop.decoding.splitting import encode_in_steps, encode_pieces, join_results, split_text

OTHER = Alternative("D", -4.0)


def at_most(characters: int):  # type: ignore[no-untyped-def]
    return lambda text: len(text) <= characters


@given(st.text(alphabet="ab .\n。", max_size=80), st.integers(1, 30))
def test_pieces_fit_and_only_white_space_is_between_them(text: str, most: int) -> None:
    pieces = split_text(text, at_most(most))
    end = 0
    for start, stop in pieces:
        assert not text[end:start].strip()
        assert stop - start <= most or stop - start < 2
        end = stop
    assert not text[end:].strip()


def test_a_text_that_fits_stays_whole() -> None:
    assert split_text("  a b.\n c ", at_most(10)) == [(0, 10)]


def test_a_prefix_that_leaves_no_room_is_refused_after_two_trials() -> None:
    tried: list[str] = []

    def nothing_fits(text: str) -> bool:
        tried.append(text)
        return False

    with pytest.raises(ValueError, match=r"`prefix`: it leaves no room for the text, not even for .* 'a'"):
        split_text(" a b c " * 100, nothing_fits)
    assert len(tried) == 2


def test_every_part_is_a_step_and_is_encoded_once() -> None:
    encoded: list[str] = []

    def encode(texts: Sequence[str]) -> list[Source]:
        encoded.extend(texts)
        return [Source(text, cut=max(0, len(text) - 9)) for text in texts]

    steps = encode_in_steps("one two three four", encode)
    for count, _ in enumerate(steps, 1):
        assert len(encoded) <= count + 1, "one part per step, and the probe of one character"
    pieces, sources = encode_pieces("one two three four", encode)
    assert [source.name for source in sources] == ["one two", "three", "four"]
    assert pieces == split_text("one two three four", at_most(9))
    assert len(encoded) == 2 * (2 + 5), "the whole, one character, and five parts"


@pytest.mark.parametrize(
    ("text", "most", "wanted"),
    [
        ("One two. Three four.\n\nFive six.", 22, ["One two. Three four.", "Five six."]),
        ("One two. Three four. Five six.", 21, ["One two.", "Three four. Five six."]),
        ('He said "Go." Then she left.', 20, ['He said "Go."', "Then she left."]),
        ("one two three four", 9, ["one two", "three", "four"]),
        ("abcdefgh", 4, ["abcd", "efgh"]),
        ("今日は。明日は。", 4, ["今日は。", "明日は。"]),
    ],
)
def test_the_best_boundary_is_taken(text: str, most: int, wanted: list[str]) -> None:
    assert [text[start:end] for start, end in split_text(text, at_most(most))] == wanted


def test_results_are_joined() -> None:
    text = "aa bb\n\ncc"
    pieces = [(0, 5), (7, 9)]
    parts = [
        Result("A B", -1.0, (SourceToken("bb", 3, 5),), 2, 3, 0, (Alternative("B A", -2.0),)),
        Result(
            "C", -3.0, (SourceToken("cc", 0, 2), SourceToken("</s>", None, None)), 2, 1, 1, (Alternative("D", -4.0),)
        ),
    ]
    joined = join_results(text, pieces, parts)
    assert joined.text == "A B\n\nC"
    assert joined.score == pytest.approx((3 * -1.0 + 1 * -3.0) / 4)
    assert [(token.start, token.end) for token in joined.kept] == [(3, 5), (7, 9), (None, None)]
    assert (joined.source_tokens, joined.output_tokens, joined.cut) == (4, 4, 1)
    assert joined.alternatives == (Alternative("B A\n\nD", (3 * -2.0 + 1 * -4.0) / 4),)
    assert join_results(text, [(0, 9)], parts[:1]) is parts[0]
