import json
import random
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0drop.data import tokenizer as tokenizer_module
from l0drop.data.tokenizer import (
    SPECIAL_TOKENS,
    TokenizerPair,
    fingerprint,
    load_tokenizers,
    train_tokenizer,
)
from l0drop.data.whole import whole_folder
from tests.data.pieces import word_pieces

ENGLISH = [
    "Hello, world!",
    "It's a well-known thing - isn't it?",
    'She said: "No (never)!"',
    "3.14 is not 3,14; 50% of $20 is $10.",
    "e-mail to john_doe@example.com, or see https://example.com/a?b=c&d=e#f",
    "Tokenized text , with spaces before commas ' s and ( brackets ) .",
    "wait... what?!",
    "the dogs' owner and the children's toys",
    "a </s> b <pad> <unk> <s>strike</s>",
    "x < y > z | a ~ b ^ c = d + e ` f",
]
GERMAN = [
    "Größe, Äpfel und Öl: „schön“ – oder süß?",
    "Das kostet 1.000,50 €.",
    "Straße/Weg, Vor- und Nachname",
    "»Guten Tag«, sagte er …",
    "die E-Mail-Adresse des Kunden",
]
ALPHABET = sorted(set("".join(ENGLISH + GERMAN)))


def corpus(count: int = 400) -> Iterator[str]:
    rng = random.Random(0)
    words = " ".join(ENGLISH + GERMAN).split()
    yield from (" ".join(rng.choices(words, k=8)) for _ in range(count))
    yield " ".join(ALPHABET)


@pytest.fixture(scope="module")
def shared() -> TokenizerPair:
    return train_tokenizer(iter([*ENGLISH, *corpus()]), iter(GERMAN), vocab_size=250)


@pytest.mark.parametrize("sentence", ENGLISH + GERMAN)
def test_decoding_restores_the_sentence(shared: TokenizerPair, sentence: str) -> None:
    ids = shared.source(sentence).input_ids
    assert shared.source.decode(ids, skip_special_tokens=True) == sentence
    assert shared.source.unk_token_id not in ids


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from([*ALPHABET, " ", " "]), max_size=60))
def test_decoding_restores_any_text_with_single_spaces(shared: TokenizerPair, text: str) -> None:
    expected = unicodedata.normalize("NFC", " ".join(text.split()))
    assert shared.source.decode(shared.source(text).input_ids, skip_special_tokens=True) == expected


def test_every_sequence_ends_with_eos_once(shared: TokenizerPair) -> None:
    eos = shared.source.eos_token_id
    for ids in shared.source(ENGLISH).input_ids:  # one of them has "</s>" as text
        assert ids[-1] == eos
        assert ids.count(eos) == 1
    cut = shared.source(ENGLISH[1], truncation=True, max_length=5).input_ids
    assert len(cut) == 5
    assert cut[-1] == eos


def test_special_tokens_come_first(shared: TokenizerPair) -> None:
    tokenizer = shared.source
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id) == (
        0,
        1,
        2,
        3,
    )


def test_a_space_before_punctuation_is_not_a_separate_token() -> None:
    tokenizer = train_tokenizer(["one , two ( three ) four - five . one, two."] * 3, vocab_size=100).source
    tokens = tokenizer.tokenize("one , two ( three ) four - five .")
    assert tokens == ["▁one", "▁,", "▁two", "▁(", "▁three", "▁)", "▁four", "▁-", "▁five", "▁."]


def test_first_and_later_pieces_of_words(shared: TokenizerPair) -> None:
    encoding = shared.source(["world, xylophonez!", "world"])
    tokens, pieces = encoding.tokens(0), word_pieces(encoding, 0)
    assert len(tokens) == len(pieces)
    by_word: dict[int | None, list[str]] = {}
    for token, piece in zip(tokens, pieces, strict=True):
        by_word.setdefault(piece.word, []).append(token)
    eos = by_word.pop(None)
    assert eos == ["</s>"]
    assert pieces[-1] == (None, False, False)
    assert ["".join(group) for group in by_word.values()] == ["▁world", ",", "▁xylophonez", "!"]
    split = [piece for piece in pieces if piece.word == 2]
    assert len(split) > 1
    assert [piece.is_first for piece in split] == [True] + [False] * (len(split) - 1)
    assert all(piece.is_split for piece in split)
    assert (1, True, False) in pieces
    assert (3, True, False) in pieces
    assert word_pieces(encoding, 1)[-1].word is None


def test_separate_vocabularies() -> None:
    pair = train_tokenizer(["aaa bbb aaa"] * 3, ["ccc ddd ccc"] * 3, vocab_size=40, shared=False)
    assert not pair.shared
    assert "▁aaa" in pair.source.get_vocab()
    assert not any("c" in token for token in pair.source.get_vocab() if token not in SPECIAL_TOKENS)
    assert "▁ccc" in pair.target.get_vocab()
    with pytest.raises(ValueError, match="shared=False"):
        train_tokenizer(["aaa"], vocab_size=40, shared=False)


def test_training_reads_its_text_once_as_a_stream() -> None:
    drawn: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(50):
            drawn.append(number)
            yield "some words to learn"

    train_tokenizer(lines(), vocab_size=60)
    assert drawn == list(range(50))


def test_unusable_training_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        train_tokenizer(["", " "], vocab_size=60)
    with pytest.raises(ValueError, match="vocab_size=8 is too small: the text has 10 different characters"):
        train_tokenizer(["abc def ghi"], vocab_size=8)


def test_saving_both_kinds_and_loading_them(shared: TokenizerPair, tmp_path: Path) -> None:
    separate = train_tokenizer(ENGLISH, GERMAN, vocab_size=150, shared=False)
    for pair in (separate, shared):  # in this order, so that a stale target tokenizer would be detected
        pair.save(tmp_path)
        loaded = load_tokenizers(tmp_path)
        assert loaded.shared == pair.shared
        assert loaded.fingerprints == pair.fingerprints
        for sentence in ENGLISH:
            assert loaded.source(sentence).input_ids == pair.source(sentence).input_ids
    assert (tmp_path / "tokenizer" / "tokenizer.json").is_file()
    with pytest.raises(ValueError, match="no tokenizer here"):
        load_tokenizers(tmp_path / "tokenizer")


def test_a_partly_saved_pair_is_not_loaded(
    shared: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate = train_tokenizer(ENGLISH, GERMAN, vocab_size=150, shared=False)
    written: list[Path] = []

    def killed_before_the_second(folder: Path) -> AbstractContextManager[Path]:
        if written:
            raise KeyboardInterrupt
        written.append(folder)
        return whole_folder(folder)

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_module, "whole_folder", killed_before_the_second)
        with pytest.raises(KeyboardInterrupt):
            separate.save(tmp_path)
    with pytest.raises(ValueError, match="no tokenizer here"):
        load_tokenizers(tmp_path)
    (left,) = written
    (left / "leftover").touch()
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_module, "whole_folder", killed_before_the_second)
        with pytest.raises(KeyboardInterrupt):
            shared.save(tmp_path)
    assert not left.exists(), "with a tokenizer for both sides it would form a pair that was never trained"
    separate.save(tmp_path)
    assert load_tokenizers(tmp_path).fingerprints == separate.fingerprints
    assert not (left / "leftover").exists()


FRESH = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
sentences = json.load(sys.stdin)
encoded = tokenizer(sentences)
print(json.dumps({
    "ids": encoded.input_ids,
    "words": [encoded.word_ids(i) for i in range(len(sentences))],
    "texts": [tokenizer.decode(ids, skip_special_tokens=True) for ids in encoded.input_ids],
}))
"""


def test_auto_tokenizer_loads_it_in_a_new_process(shared: TokenizerPair, tmp_path: Path) -> None:
    shared.save(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "tokenizer")],
        input=json.dumps(ENGLISH),
        capture_output=True,
        text=True,
        check=True,
    )
    fresh = json.loads(result.stdout)
    encoded = shared.source(ENGLISH)
    assert fresh["ids"] == encoded.input_ids
    assert fresh["words"] == [encoded.word_ids(row) for row in range(len(ENGLISH))]
    assert fresh["texts"] == ENGLISH


def test_the_same_text_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train_tokenizer(corpus(), vocab_size=250).save(tmp_path / name)
    one, two = (tmp_path / name / "tokenizer" / "tokenizer.json" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_fingerprints_depend_on_the_vocabulary_and_not_on_calls(shared: TokenizerPair) -> None:
    before = fingerprint(shared.source)
    shared.source(ENGLISH, truncation=True, max_length=4, padding="max_length")
    assert fingerprint(shared.source) == before
    assert fingerprint(train_tokenizer(corpus(), vocab_size=240).source) != before
