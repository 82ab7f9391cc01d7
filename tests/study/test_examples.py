"""Sources with their dropped tokens, and the choice of sentences."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from l0drop.study.examples import chosen, segments
from l0drop.study.systems import SourcePiece


def test_segments_show_each_character_once_with_its_state() -> None:
    source = "the old houses  stand here"
    pieces = [
        SourcePiece("▁the", 0, 3, False),
        SourcePiece("▁old", 3, 7, False),  # some tokenizers include the space in the token
        SourcePiece("▁hous", 8, 12, True),
        SourcePiece("es", 12, 14, False),
        SourcePiece("</s>", 0, 0, False),
    ]
    assert segments(source, pieces) == [
        ("the", "dropped"), (" ", ""), ("old", "dropped"), (" ", ""), ("hous", "kept"), ("es", "dropped"),
        ("  stand here", "cut"), (" ", ""), ("</s>", "dropped"),
    ]  # fmt: skip

    added = [SourcePiece("en_XX", 0, 0, True), *pieces[:2], SourcePiece("?", 0, 0, True), *pieces[2:]]
    assert segments(source, added)[:3] == [("en_XX", "kept"), (" ", ""), ("the", "dropped")]
    assert segments(source, added)[2:] == segments(source, pieces), "a token without a position is not shown"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=8))
def test_segments_join_to_the_source_for_any_offsets(source: str, spans: list[tuple[int, int, bool]]) -> None:
    pieces = [SourcePiece("x", min(a, len(source)), min(b, len(source)), kept) for a, b, kept in spans if b > a]
    pieces = [piece for piece in pieces if piece.end > piece.start]
    found = segments(source, pieces)
    assert "".join(text for text, _ in found) == source
    assert all(one[1] != other[1] for one, other in pairwise(found))


def test_the_worst_sentences_are_chosen_and_none_twice() -> None:
    found = chosen(range(0, 200, 2), worst=[8, 4, 100, 2, 6, 10, 12, 14], seed=1)
    lines = [line for line, _ in found]
    assert len(set(lines)) == len(found) == 20
    assert lines == sorted(lines)
    assert {line for line, why in found if why == "lost most"} == {8, 4, 100, 2, 6, 10}
    assert found == chosen(range(0, 200, 2), worst=[8, 4, 100, 2, 6, 10, 12, 14], seed=1)
    assert len(chosen(range(3), worst=[], seed=1)) == 3
