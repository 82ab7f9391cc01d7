"""Character offsets of pieces for tokenizers that do not report them."""

from collections.abc import Set

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from l0drop.data.offsets import search
from tests.decoding import folders


def found(text: str, pieces: list[str | None], unknown: Set[int] = frozenset()) -> list[str | None]:
    spans = search(text, pieces, [i in unknown for i in range(len(pieces))])
    return [None if span is None else text[span[0] : span[1]] for span in spans]


def test_pieces_of_plain_text() -> None:
    assert found("the  dogs", ["▁the", "▁do", "gs", None]) == ["the", "do", "gs", None]


def test_repeated_pieces_are_found_in_order() -> None:
    spans = search("the the", ["▁the", "▁the"], [False, False])
    assert spans == [(0, 3), (4, 7)]


def test_normalized_characters_map_to_the_original_ones() -> None:
    assert found("ﬁne №5", ["▁fi", "ne", "▁No", "5"]) == ["ﬁ", "ne", "№", "5"]
    assert found("U\u0308ber", ["▁Ü", "ber"]) == ["U\u0308", "ber"]


def test_a_single_unknown_token_gets_the_text_between_its_neighbours() -> None:
    assert found("a 漢字 b", ["▁a", "▁", "<unk>", "▁b"], {2}) == ["a", None, "漢字", "b"]
    assert found("漢", ["▁", "<unk>", None], {1}) == [None, "漢", None]


def test_adjacent_unknown_tokens_have_no_span() -> None:
    assert found("a 漢 b", ["▁a", "<unk>", "<unk>", "▁b"], {1, 2}) == ["a", None, None, "b"]


def test_a_missing_piece_has_no_span_and_later_ones_are_found() -> None:
    assert found("the dog", ["▁the", "▁cat", "▁dog"]) == ["the", None, "dog"]


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> sentencepiece.SentencePieceProcessor:
    model = folders.sentencepiece_model(tmp_path_factory.mktemp("spm"), "spm")
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


@given(text=st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_spans_of_any_text_are_ordered_and_within_it(
    processor: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    pieces, ids = processor.encode(text, out_type=str), processor.encode(text)
    spans = search(text, pieces, [processor.is_unknown(i) for i in ids])
    known = [span for span in spans if span is not None]
    assert len(spans) == len(pieces)
    assert all(0 <= start < end <= len(text) for start, end in known)
    assert known == sorted(known)


def test_spans_cover_plain_text(processor: sentencepiece.SentencePieceProcessor) -> None:
    for text in folders.SENTENCES:
        pieces = processor.encode(text, out_type=str)
        spans = search(text, pieces, [False] * len(pieces))
        assert "".join(text[span[0] : span[1]] for span in spans if span) == text.replace(" ", "")
