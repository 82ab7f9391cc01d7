"""The tagger: its weights on text with known tags, parallel against sequential tagging, training, other taggers."""

import gzip
import json
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

import train_tagger
from l0drop.core.groups import TAGS, group_of
from l0drop.data import tagger as module
from l0drop.data.tagger import (
    SCALE,
    PerceptronTagger,
    TaggedText,
    TaggedWord,
    english_tagger,
    open_tagger,
    split_words,
    tag_features,
    word_features,
)
from l0drop.data.toy import documents, translation
from train_tagger import WEIGHTS


def written(text: str, words: list[TaggedWord]) -> str:
    return " ".join(f"{text[word.start : word.end]}_{word.tag}" for word in words)


def test_the_english_tagger_is_accurate_on_the_toy_grammar() -> None:
    right, right_group, words = 0, 0, 0
    for pair in translation(400, 31):
        tagged = english_tagger()([pair.source])[0]
        if [pair.source[word.start : word.end] for word in tagged] != list(pair.words):
            continue  # Penn splits "forty-four", the grammar does not
        words += len(tagged)
        right += sum(word.tag == tag for word, tag in zip(tagged, pair.tags, strict=True))
        right_group += sum(group_of(word.tag) == group_of(tag) for word, tag in zip(tagged, pair.tags, strict=True))
    assert words > 3_500
    assert right / words > 0.94  # the treebank tags "to" before a noun as IN, the grammar as TO
    assert right_group / words > 0.99


def test_a_sentence() -> None:
    text = "There must be a better way, Dr. Smith said: it isn't the dog's."
    assert written(text, english_tagger()([text])[0]) == (
        "There_EX must_MD be_VB a_DT better_JJR way_NN ,_, Dr._NNP Smith_NNP said_VBD :_: it_PRP is_VBZ n't_RB the_DT "
        "dog_NN 's_POS ._."
    )


def slow_tags(words: list[str]) -> list[str]:
    """The expected tags, computed feature by feature from the file."""
    stored = json.loads(gzip.decompress(WEIGHTS.read_bytes()))
    names: list[str] = stored["tags"]
    before = second = "-"
    tags = []
    around = [None, None, *words, None, None]
    for i in range(len(words)):
        features = [f for offset in (-2, -1, 0, 1, 2) for f in word_features(around[i + 2 + offset], offset)]
        scores = [0] * len(names)
        for feature in features + tag_features(before, second):
            flat = stored["weights"].get(feature, [])
            for tag, weight in zip(flat[::2], flat[1::2], strict=True):
                scores[tag] += weight
        best = names[max(range(len(names)), key=lambda tag: scores[tag])]
        tags.append(best)
        before, second = best, before
    return tags


def test_parallel_tagging_equals_sequential_tagging(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [list(pair.words) for pair in translation(12, 5)]
    sentences += [["Hm"], [], [word for pair in documents(1, 5) for word in pair.words][:70]]
    expected = [slow_tags(sentence) for sentence in sentences]
    assert english_tagger().tag(sentences) == expected
    monkeypatch.setattr(module, "_WORDS_AT_ONCE", 10)
    assert english_tagger().tag(sentences) == expected
    assert english_tagger().tag(sentences[::-1]) == expected[::-1]


def test_texts_of_several_sentences_are_tagged_sentence_by_sentence() -> None:
    one, other = "The old man lives in the U.S. now.", "Can you see him?!"
    tagger = english_tagger()
    tags = [[word.tag for word in words] for words in tagger([one, other])]
    assert [word.tag for word in tagger([f"{one} {other}"])[0]] == tags[0] + tags[1]
    assert tagger(["", one])[0] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't, can't and won’t.", "I do n't , ca n't and wo n’t ."),
        ("It's John's; they'll see. I'M", "It 's John 's ; they 'll see . I 'M"),
        ("At 10:30 p.m. the U.S. paid $1,000.50!", "At 10:30 p.m. the U.S. paid $ 1,000.50 !"),
        ("a well-known o'clock (e.g. this)...", "a well - known o'clock ( e.g. this ) ..."),
        ("See https://a.org/x?y=1, or me@b.co.uk.", "See https://a.org/x?y=1 , or me@b.co.uk ."),
        ("Mr. Brown left.  “Why?!”", "Mr. Brown left . “ Why ?! ”"),
        ("„Über“ 日本", "„ Über “ 日本"),
    ],
)
def test_words_are_split_as_in_the_penn_treebank(text: str, words: str) -> None:
    spans = split_words(text)
    assert [text[start:end] for start, end in spans] == words.split()


def test_no_visible_character_is_lost() -> None:
    for pair in documents(3, 9):
        for text in (pair.source, pair.target):
            assert "".join(text[a:b] for a, b in split_words(text)) == "".join(text.split())


def test_the_weights_are_small_and_name_their_licence() -> None:
    assert WEIGHTS.stat().st_size < 3e6
    assert "CC BY-SA 4.0" in (WEIGHTS.parents[1] / "LICENSE").read_text()
    stored = json.loads(gzip.decompress(WEIGHTS.read_bytes()))
    assert stored["accuracy on its test set"] >= 0.93
    assert "CC BY-SA 4.0" in stored["treebank"]
    assert set(stored["tags"]) <= set(TAGS)


def test_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"format": 99}).encode()))
    with pytest.raises(ValueError, match=r"w.json.gz: format 99"):
        PerceptronTagger.read(file)


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_writes_weights_and_reports_their_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in ("train", 3), ("test", 4):
        pairs = translation(200, seed, small=True)
        lines = (" ".join(map("_".join, zip(pair.words, pair.tags, strict=True))) for pair in pairs)
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    out = tmp_path / "new" / "weights.json.gz"
    arguments = ["train_tagger.py", str(tmp_path / "train"), str(tmp_path / "test"), "--out", str(out), "--epochs", "3"]
    monkeypatch.setattr(sys, "argv", arguments)
    train_tagger.main()
    printed = capsys.readouterr().out
    stored = json.loads(gzip.decompress(out.read_bytes()))["accuracy on its test set"]
    assert stored > 0.95
    assert f"{stored:.2%} of the tags correct" in printed
    assert "words per second" in printed
    again = train_tagger.accuracy(PerceptronTagger.read(out), train_tagger.read_treebank(tmp_path / "test"))
    assert again["accuracy"] == pytest.approx(stored, abs=1e-4)
    first = out.read_bytes()
    train_tagger.main()
    assert out.read_bytes() == first, "the same seed gives the same file"


def test_the_average_is_over_all_steps() -> None:
    """Compare with a perceptron that sums all weights at every step; one sentence, so the order is known."""
    sentence = [("runs", "NNS"), ("a", "DT"), ("man", "NN"), ("runs", "VBZ"), ("a", "DT"), ("run", "NN")]
    trainer = train_tagger.Trainer([sentence], seed=3)
    weights: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    steps = 0
    around = [None, None, *(word for word, _ in sentence), None, None]
    for _ in range(4):
        trainer.epoch()
        before = second = "-"
        for i, (_, tag) in enumerate(sentence):
            steps += 1
            total.update(weights)
            features = {f for offset in range(-2, 3) for f in word_features(around[i + 2 + offset], offset)}
            features |= set(tag_features(before, second))
            chosen = max(trainer.tags, key=lambda name: sum(weights[f, name] for f in features))
            if chosen != tag:
                weights.update({(f, tag): 1 for f in features})
                weights.subtract({(f, chosen): 1 for f in features})
            before, second = chosen, before
    averaged = trainer.averaged(0.0)
    assert averaged
    for feature in trainer.rows:
        flat = averaged.get(feature, [])
        stored = dict(zip(flat[::2], flat[1::2], strict=True))
        for number, tag in enumerate(trainer.tags):
            assert stored.get(number, 0) == pytest.approx(SCALE * total[feature, tag] / steps, abs=0.5 + 1e-9)


def test_a_treebank_with_other_tags_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a_DT man_NN\na_DET man_NOUN\n")
    with pytest.raises(ValueError, match=r"t, line 2: 'a_DET'.*Penn"):
        train_tagger.read_treebank(tmp_path / "t")


# --- other taggers ----------------------------------------------------------------------------------------------------


def test_a_language_without_a_tagger() -> None:
    for name in ("perceptron", "nltk", "spacy"):
        with pytest.raises(ValueError, match=r"`language`: .* tags English, not 'de'.*pretagged.*freq"):
            open_tagger(name, "de")
    with pytest.raises(ValueError, match="tagger: expected perceptron, nltk, spacy, pretagged or spacy:MODEL, got"):
        open_tagger("x")
    with pytest.raises(ValueError, match="tagger: expected"):
        open_tagger("nltk:big")


def test_taggers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk", None)
    monkeypatch.setitem(sys.modules, "spacy", None)
    monkeypatch.setitem(sys.modules, "l0drop_tagger", None)
    english_tagger.cache_clear()
    with pytest.raises(ValueError, match=r"is not installed; run pip install ./packages/l0drop-tagger"):
        open_tagger()
    with pytest.raises(ValueError, match=r"tagger: nltk is not installed; pip install nltk"):
        open_tagger("nltk")
    with pytest.raises(ValueError, match=r"tagger: spaCy is not installed; pip install spacy"):
        open_tagger("spacy:en_core_web_sm")


def test_nltk_tags_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = types.ModuleType("nltk")
    nltk.__version__ = "3"  # type: ignore[attr-defined]
    nltk.pos_tag_sents = lambda rows: [[(word, f"T{len(word)}") for word in row] for row in rows]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nltk", nltk)
    tagger = open_tagger("nltk")
    assert tagger(["He isn't"]) == [[TaggedWord(0, 2, "T2"), TaggedWord(3, 5, "T2"), TaggedWord(5, 8, "T3")]]
    assert tagger.identity == "nltk 3"

    def missing(rows: object) -> None:
        raise LookupError

    nltk.pos_tag_sents = missing  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"its weights are not; get them with python -m nltk.downloader"):
        open_tagger("nltk")


def test_spacy_splits_words_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def token(idx: int, text: str, tag: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(idx=idx, text=text, tag_=tag, is_space=text.isspace())

    def load(name: str, exclude: list[str]) -> types.SimpleNamespace:
        if name != "en_core_web_sm":
            raise OSError
        document = [token(0, "An", "DT"), token(2, "  ", "_SP"), token(4, "ox", "NN")]
        return types.SimpleNamespace(meta={"version": "9"}, pipe=lambda texts: [document for _ in texts])

    spacy = types.ModuleType("spacy")
    spacy.__version__, spacy.load = "3", load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    tagger = open_tagger("spacy")
    assert tagger(["An  ox"]) == [[TaggedWord(0, 2, "DT"), TaggedWord(4, 6, "NN")]]
    assert tagger.identity == "spacy 3 en_core_web_sm 9"
    with pytest.raises(ValueError, match=r"spaCy has no model 'de_x'; python -m spacy download de_x"):
        open_tagger("spacy:de_x", "de")


def test_pretagged_text() -> None:
    text = TaggedText.read("Der_DT  Hund_NN bellt_a_b_VBZ ._.")
    assert text == "Der Hund bellt_a_b ."
    assert open_tagger("pretagged", "de")([text])[0] == [
        TaggedWord(0, 3, "DT"), TaggedWord(4, 8, "NN"), TaggedWord(9, 18, "VBZ"), TaggedWord(19, 20, "."),
    ]  # fmt: skip
    assert ("" + text) is text
    assert ("x " + text) == "x Der Hund bellt_a_b ."
    assert not isinstance("x " + text, TaggedText)
    for line, fault in (("a_DT man", "man"), ("_DT", "_DT"), ("a_", "a_")):
        with pytest.raises(ValueError, match=f"'{fault}' has no tag"):
            TaggedText.read(line)
    with pytest.raises(ValueError, match="'plain' has no tags"):
        open_tagger("pretagged")(["plain"])
