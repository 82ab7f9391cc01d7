"""The words of tokens: compared with the tokenizer's own words, and for tokenizers without words."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, MarianTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from l0drop.data.tokenizer import train_tokenizer
from l0drop.data.toy import translation
from l0drop.data.words import token_spans, token_words
from tests.data.pieces import word_pieces

TEXTS = [pair.source for pair in translation(300, 4)]
HARD = ["Don't “stop”: well-known 3.5% – naïve cafe\u0301 €50", "  two  spaces ", "x", "¡Olé! (e.g.) a/b", "ﬁne ½ ①"]
OWN = train_tokenizer(TEXTS + HARD, vocab_size=300).source


def words_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str | None]:
    encoding = tokenizer([text])
    (spans,) = token_spans(tokenizer, [text], encoding)
    words = token_words(text, spans)
    assert len(words.numbers) == len(encoding["input_ids"][0])
    return [None if number is None else words.word(text, number) for number in words.numbers]


@pytest.mark.parametrize("text", [*TEXTS[:40], *HARD])
def test_words_are_those_of_the_projects_tokenizer(text: str) -> None:
    encoding = OWN([text])
    words = token_words(text, token_spans(OWN, [text], encoding)[0])
    pieces = word_pieces(encoding, 0)
    sizes, seen = words.sizes, set()
    for piece, number in zip(pieces, words.numbers, strict=True):
        assert (piece.word is None) == (number is None)
        if number is not None:
            assert piece.is_split == (sizes[number] > 1)
            assert piece.is_first == (number not in seen)
        seen.add(number)


@settings(max_examples=200, deadline=None)
@given(
    st.text(
        st.characters(max_codepoint=0xDFF)
        | st.characters(min_codepoint=0x2000, max_codepoint=0x2BFF, exclude_characters="▁"),
        max_size=30,
    )
)
def test_words_are_those_of_the_projects_tokenizer_in_any_text(text: str) -> None:
    encoding = OWN([text])
    words = token_words(text, token_spans(OWN, [text], encoding)[0])
    pieces = [piece.word for piece in word_pieces(encoding, 0)]
    pairs = list(zip(pieces, words.numbers, strict=True))
    together = {(a == c, b == d) for a, b in pairs for c, d in pairs}
    assert together <= {(True, True), (False, False)}


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer like BART's: spaces and contractions stay with the piece after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, *["It isn't John's house."] * 50], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def test_byte_level_pieces() -> None:
    tokenizer = byte_level()
    text = "It isn't John's house."
    tokens = tokenizer([text]).tokens(0)
    assert "'t" in tokens
    found = dict(zip(tokens, words_of(tokenizer, text), strict=True))
    assert found["'t"] == "'t"
    assert found["ĠJohn"] == "John"
    assert found["."] == "."
    assert words_of(tokenizer, text)[0] is None
    assert words_of(tokenizer, text)[-1] is None


def test_a_punctuation_mark_is_a_word_if_the_tokenizer_has_no_words() -> None:
    """A tokenizer like those of T5 and NLLB, whose words are separated by spaces only."""
    pieces = [("<unk>", 0.0), ("▁house", -1.0), ("▁", -2.0), (".", -1.0), ("s", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    text = "house. houses."
    assert fast([text]).word_ids(0)[:2] == [0, 0]
    assert words_of(fast, text) == ["house", ".", "houses", "houses", "."]


def marian(folder: Path, texts: list[str]) -> MarianTokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=120, character_coverage=0.99, minloglevel=2
    )
    (folder / "source.spm").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = {"</s>": 0, "<unk>": 1, "<pad>": 2}
    for number in range(processor.get_piece_size()):
        vocabulary.setdefault(processor.id_to_piece(number), len(vocabulary))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    file = str(folder / "source.spm")
    return MarianTokenizer(source_spm=file, target_spm=file, vocab=str(folder / "vocab.json"))


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("text", [*TEXTS[:10], *HARD, "the Ωmega – man", "a\u00a0b"])
def test_slow_tokenizers_are_matched_with_the_text(text: str, tmp_path: Path) -> None:
    tokenizer = marian(tmp_path, TEXTS)
    assert not tokenizer([text]).is_fast
    words = words_of(tokenizer, text)
    assert words[-1] is None
    assert None not in words[:-1]
    pieces = tokenizer.tokenize(text)
    for piece, word in zip(pieces, words, strict=False):
        letters = piece.replace("▁", "")
        if letters.isascii() and letters.isalnum() and word is not None and word.isascii():
            assert letters in word
    assert {word for word in words if word} >= {word for word in text.split() if word.isalpha() and word.isascii()}


def test_bytes() -> None:
    words = words_of(ByT5Tokenizer(), "an öx.")
    assert words == ["an", "an", "öx", "öx", "öx", "öx", ".", None]


def test_in_scripts_without_spaces_every_piece_is_a_word() -> None:
    tokenizer = train_tokenizer(["中国人说中国话。", "中国", "中国人"] * 20, vocab_size=20).source
    text = "中国人说中国话。"
    pieces = [token.replace("▁", "") for token in tokenizer([text]).tokens(0)]
    assert max(map(len, pieces[:-1])) > 1
    assert words_of(tokenizer, text) == [*pieces[:-1], None]


def test_a_slow_tokenizer_that_does_not_match_is_refused(tmp_path: Path) -> None:
    tokenizer = ByT5Tokenizer()
    encoding = tokenizer(["abc"])
    with pytest.raises(ValueError, match=r"ByT5Tokenizer: 'abcd' has 4 pieces but 3 tokens"):
        token_spans(tokenizer, ["abcd"], encoding)
