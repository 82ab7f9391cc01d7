"""Hints: labels and frequencies of tokens compared with slow, independent computations; saving, loading, errors."""

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from l0drop.core.groups import GROUPS, LABELS, group_of
from l0drop.data.hints import Frequencies, TextAnnotator, annotator_for, counted_tokens
from l0drop.data.prepare import prepare_corpus, source_rows
from l0drop.data.tagger import TaggedText, english_tagger
from l0drop.data.text import TextFiles
from l0drop.data.tokenizer import TokenizerPair, train_tokenizer
from l0drop.data.toy import ToyPair, translation
from l0drop.models.patterns import WHOLE
from tests.data.pieces import word_pieces

PAIRS = list(translation(400, 12))
TEXTS = [pair.source for pair in PAIRS]
TOKENIZERS = train_tokenizer(TEXTS, vocab_size=400)
TOKENIZER = TOKENIZERS.source


def slow_labels(tokenizer: PreTrainedTokenizerBase, text: str, tag_of: dict[int, str]) -> list[str]:
    """Labels token by token, with the tokenizer's own words; `tag_of` has a tag for each character."""
    encoding = tokenizer([text], return_offsets_mapping=True)
    expected = []
    for piece, (start, end) in zip(word_pieces(encoding, 0), encoding["offset_mapping"][0], strict=True):
        if piece.word is None:
            expected.append("EOS")
        elif piece.is_split:
            expected.append("BPEH" if piece.is_first else "BPEO")
        else:
            while text[start].isspace():
                start += 1
            assert start < end
            expected.append(tag_of[start])
    return expected


def tags_by_character(pair: ToyPair) -> dict[int, str]:
    found, at = {}, 0
    for word, tag in zip(pair.words, pair.tags, strict=True):
        at = pair.source.index(word, at)
        found |= dict.fromkeys(range(at, at + len(word)), tag)
        at += len(word)
    return found


def tagged_line(pair: ToyPair) -> str:
    return " ".join(f"{word}_{tag}" for word, tag in zip(pair.words, pair.tags, strict=True))


def test_labels_of_the_english_tagger() -> None:
    annotator = TextAnnotator(("label",), TOKENIZER)
    hints = annotator(TEXTS, TOKENIZER(TEXTS))
    seen: Counter[str] = Counter()
    for text, labels in zip(TEXTS, hints["label"], strict=True):
        tag_of = {i: word.tag for word in english_tagger()([text])[0] for i in range(word.start, word.end)}
        expected = slow_labels(TOKENIZER, text, tag_of)
        assert [LABELS[number] for number in labels] == expected
        seen.update(group_of(label) for label in expected)
    assert set(seen) == set(GROUPS)


def test_labels_of_pretagged_text() -> None:
    annotator = TextAnnotator(("label",), TOKENIZER, tagger="pretagged", language="xx")
    for pair in PAIRS[:60]:
        text = annotator.read(tagged_line(pair))
        assert text == " ".join(pair.words)
        assert annotator.read(text) is text
        (labels,) = annotator([text], TOKENIZER([text]))["label"]
        spaced = ToyPair(" ".join(pair.words), pair.target, pair.words, pair.tags)
        assert [LABELS[number] for number in labels] == slow_labels(TOKENIZER, text, tags_by_character(spaced))


def test_hints_are_as_long_as_padded_encodings() -> None:
    annotator = TextAnnotator(("label",), TOKENIZER)
    texts = TEXTS[:5]
    padded = annotator(texts, TOKENIZER(texts, padding=True, return_tensors="pt"))["label"]
    plain = annotator(texts, TOKENIZER(texts))["label"]
    for long, short in zip(padded, plain, strict=True):
        assert long[: len(short)] == short
        assert set(long[len(short) :]) <= {LABELS.index("EOS")}


def slow_shares(texts: list[str], word: str) -> tuple[int, int]:
    """Cumulative counts over words sorted by frequency, counting every token of every text."""
    occurrences: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    total = 0
    for text in texts:
        encoding = TOKENIZER([text], return_offsets_mapping=True)
        total += len(encoding["input_ids"][0])
        spans: dict[int, list[int]] = {}
        sizes: Counter[int] = Counter()
        for piece, span in zip(word_pieces(encoding, 0), encoding["offset_mapping"][0], strict=True):
            if piece.word is not None:
                spans.setdefault(piece.word, []).extend(span)
                sizes[piece.word] += 1
        for number, ends in spans.items():
            found = text[min(ends) : max(ends)].strip()
            occurrences[found] += 1
            tokens[found] += sizes[number]
    ranked = sorted(occurrences, key=lambda w: (-occurrences[w], w))
    rank = ranked.index(word)
    frequent = sum(tokens[w] for w in ranked[: rank + 1])
    rare = sum(tokens[w] for w in ranked[rank:])
    return -(-frequent * WHOLE // total), -(-rare * WHOLE // total)


def fitted(texts: list[str], listed: int = 50_000) -> Frequencies:
    return Frequencies.count(counted_tokens(TOKENIZER, texts, TOKENIZER(texts)), listed)


def test_shares_are_cumulative_counts() -> None:
    texts = TEXTS[:80]
    frequencies = fitted(texts)
    for word in (".", "the", "The", "was", "Klinnarkina", "is"):
        if word in frequencies.words:
            assert frequencies.shares(word) == slow_shares(texts, word)
    assert frequencies.shares(".")[0] < frequencies.shares("was")[0]
    assert frequencies.shares("never seen") == (WHOLE, 0)
    ranks = list(frequencies.words)
    eos = len(texts)
    assert frequencies.tokens == sum(frequencies.words.values()) + eos
    assert frequencies.shares(ranks[-1])[0] == frequencies.shares(ranks[0])[1]
    assert frequencies.shares(ranks[0])[1] == pytest.approx(WHOLE * (1 - eos / frequencies.tokens), abs=1)


def test_unlisted_words_count_as_one_rarest_word() -> None:
    texts = TEXTS[:80]
    whole, short = fitted(texts), fitted(texts, listed=20)
    assert list(short.words) == list(whole.words)[:20]
    assert short.tokens == whole.tokens
    for word in short.words:
        assert short.shares(word) == whole.shares(word)
    beyond = sum(list(whole.words.values())[20:])
    last = list(whole.words)[-1]
    assert short.shares(last) == short.shares("never seen") == (WHOLE, -(-beyond * WHOLE // whole.tokens))


def test_frequency_hints_of_tokens() -> None:
    frequencies = fitted(TEXTS[:80])
    annotator = TextAnnotator(("frequent", "rare"), TOKENIZER, frequencies=frequencies)
    texts = [*TEXTS[:5], "The zyx."]
    hints = annotator(texts, TOKENIZER(texts))
    for row, text in enumerate(texts):
        encoding = TOKENIZER([text], return_offsets_mapping=True)
        pieces = word_pieces(encoding, 0)
        spans = encoding["offset_mapping"][0]
        for i, piece in enumerate(pieces):
            got = hints["frequent"][row][i], hints["rare"][row][i]
            if piece.word is None:
                assert got == (WHOLE, WHOLE)
                continue
            own = [span for span, other in zip(spans, pieces, strict=True) if other.word == piece.word]
            word = text[own[0][0] : own[-1][1]].strip()
            assert got == frequencies.shares(word)
    assert (WHOLE, 0) in set(zip(hints["frequent"][-1], hints["rare"][-1], strict=True))


def files(folder: Path, sources: list[str]) -> TextFiles:
    for side in ("source", "target"):
        (folder / side).write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    return TextFiles(folder / "source", folder / "target")


@pytest.mark.parametrize("documents", [False, True])
def test_counted_tokens_are_those_of_the_prepared_corpus(tmp_path: Path, documents: bool) -> None:
    """Frequencies count exactly the tokens of the corpus, without truncated ones."""
    text = files(tmp_path, [*TEXTS[:30], "", *TEXTS[30:40]])
    limits = {"max_source": 20, "max_target": 50, "documents": documents}
    corpus = prepare_corpus(text, TOKENIZERS, tmp_path / "corpus", **limits)
    rows = list(source_rows(text, TOKENIZERS, lambda texts, encoding: encoding["input_ids"], **limits))
    assert rows == [example.source.tolist() for example in corpus]
    assert corpus.summary.truncated_source > 0


def test_prepared_corpora_carry_hints(tmp_path: Path) -> None:
    annotator = TextAnnotator(("label",), TOKENIZER)
    corpus = prepare_corpus(
        files(tmp_path, TEXTS[:20]),
        TOKENIZERS,
        tmp_path / "corpus",
        max_source=200,
        max_target=200,
        annotator=annotator,
    )
    expected = annotator(TEXTS[:20], TOKENIZER(TEXTS[:20]))["label"]
    assert [example.hints["label"].tolist() for example in corpus] == expected


def test_a_saved_annotator_is_found_again(tmp_path: Path) -> None:
    for number, annotator in enumerate(
        [
            TextAnnotator(("label",), TOKENIZER),
            TextAnnotator(("rare",), TOKENIZER, frequencies=fitted(TEXTS[:50])),
            TextAnnotator(("label",), TOKENIZER, tagger="pretagged", language="de"),
        ]
    ):
        folder = tmp_path / str(number)
        annotator.save(folder)
        found = annotator_for(folder, TOKENIZER)
        assert found is not None
        assert found.fingerprint == annotator.fingerprint
        assert (found.names, found.tagger, found.language) == (annotator.names, annotator.tagger, annotator.language)
        texts = [found.read(tagged_line(pair)) if number == 2 else pair.source for pair in PAIRS[:9]]
        assert found(texts, TOKENIZER(texts)) == annotator(texts, TOKENIZER(texts))
    assert annotator_for(tmp_path, TOKENIZER) is None
    stored = json.loads((tmp_path / "0" / "hints.json").read_text())
    (tmp_path / "0" / "hints.json").write_text(json.dumps({**stored, "format": 7}))
    with pytest.raises(ValueError, match=r"hints.json: this version reads format 1"):
        annotator_for(tmp_path / "0", TOKENIZER)


def test_different_annotators_have_different_fingerprints() -> None:
    annotators = [
        TextAnnotator(("label",), TOKENIZER),
        TextAnnotator(("label", "rare"), TOKENIZER, frequencies=fitted(TEXTS[:50])),
        TextAnnotator(("label",), TOKENIZER, tagger="pretagged"),
        TextAnnotator(("rare",), TOKENIZER, frequencies=fitted(TEXTS[:50])),
        TextAnnotator(("rare",), TOKENIZER, frequencies=fitted(TEXTS[:51])),
    ]
    assert len({annotator.fingerprint for annotator in annotators}) == len(annotators)


def test_invalid_annotators_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hints: no hint is called 'tags' \(known: label"):
        TextAnnotator(("tags",), TOKENIZER)
    with pytest.raises(ValueError, match="frequencies: the hints frequent and rare"):
        TextAnnotator(("rare",), TOKENIZER)
    with pytest.raises(ValueError, match="`language`: perceptron tags English, not 'zh'"):
        TextAnnotator(("label",), TOKENIZER, language="zh")
    TextAnnotator(("rare",), TOKENIZER, language="zh", frequencies=fitted(TEXTS[:5]))
    universal = TaggedText.read("ein_DET Hund_NOUN")
    with pytest.raises(ValueError, match=r"tag '(DET|NOUN)'.*Penn"):
        TextAnnotator(("label",), OTHER.source, tagger="pretagged")([universal], OTHER.source([universal]))


OTHER: TokenizerPair = train_tokenizer(["ein Hund", "ein Hund"] * 30, vocab_size=60)
