"""The translation corpus: its German checked by independent rules, and shards."""

import hashlib
import re

import pytest

from l0drop.data.sources import ToyText
from l0drop.data.toy import translation, translation_split
from l0drop.data.toy.lexicon import ADJECTIVES, NOUNS, VERBS
from l0drop.data.toy.style import SMALL
from l0drop.recipe import ToyCorpus

# --- independent rules ------------------------------------------------------------------------------------------------
# Nouns whose singular is not a plural form, and the endings that articles and adjectives may have before them.

GENDERS = {
    "m": "Mann Tisch Hund Mantel Garten Arzt Brief Bahnhof Vater Plan Hut Wald",
    "f": "Frau Katze Tür Lampe Schule Kirche Mutter Tochter Zeitung Stadt Küche Idee",
    "n": "Kind Haus Buch Auto Dorf Pferd Bild Fahrrad Problem Kleid Museum",
}
SINGULAR = {
    "m": "der e|den en|dem en|ein er|einen en|einem en|kein er|keinen en|keinem en",
    "f": "die e|der en|eine e|einer en|keine e|keiner en",
    "n": "das e|dem en|ein es|einem en|kein es|keinem en",
}
ARTICLES = "der die das den dem ein eine einen einem einer kein keine keinen keinem keiner"
CASES = {  # the articles that may follow a preposition with one case
    "mit": "dem der den einem einer",
    "zu": "dem der den einem einer",
    "für": "den die das einen eine ein",
}
FINITE = """ist sind bin bist war waren warst hat haben habe hast hatte hatten hattest kann können kannst konnte konnten
    konntest muss müssen musst will wollen willst wollte wollten wolltest sollte sollten solltest darf dürfen darfst
    wird werden werde wirst wurde wurden möchte möchten möchtest regnet regnete schneit schneite"""


def noun_phrases(text: str) -> list[tuple[str, bool]]:
    """Articles with adjective and noun, and whether they agree; relative pronouns are not articles."""
    nouns = {noun: gender for gender, words in GENDERS.items() for noun in words.split()}
    articles = "|".join(ARTICLES.split())
    pattern = rf"(?<!, )\b(?i:{articles}) [a-zäöüß]+?(?:e|en|er|es|em) (?:{'|'.join(nouns)})\b"
    found = []
    for phrase in re.findall(pattern, text):
        article, adjective_, noun = phrase.split()
        endings = [
            entry.split()[1] for entry in SINGULAR[nouns[noun]].split("|") if entry.split()[0] == article.lower()
        ]
        stem = adjective_.rstrip("nrsm").removesuffix("e")
        found.append((phrase, adjective_.removeprefix(stem) in endings))
    return found


def test_articles_and_adjectives_agree() -> None:
    assert noun_phrases("Die alte Mann sah den kleinen Hund und ein großer Haus.") == [
        ("Die alte Mann", False),
        ("den kleinen Hund", True),
        ("ein großer Haus", False),
    ]
    found = [(phrase, agrees) for made in translation(10_000, seed=11) for phrase, agrees in noun_phrases(made.target)]
    assert [phrase for phrase, agrees in found if not agrees] == []
    assert len(found) > 1_000


def test_prepositions_govern_their_case() -> None:
    articles = "der|die|das|den|dem|des|ein|eine|einen|einem|einer|eines"
    pattern = re.compile(rf"\b((?i:{'|'.join(CASES)})) ({articles}) ")
    found = 0
    for example in translation(10_000, seed=12):
        for preposition, article in pattern.findall(example.target):
            found += 1
            assert article in CASES[preposition.lower()].split(), example.target
    assert found > 200


def test_subordinate_clauses_have_a_comma_and_end_in_their_verb() -> None:
    verbs = [v for frame in VERBS.values() for v in frame.values()]
    finite = {*FINITE.split(), *(v.prefix + form for v in verbs for form in (*v.present, *v.past))}
    found = 0
    for example in translation(10_000, seed=13):
        for clause_ in re.findall(r"(?:^|, )(?:dass|weil|obwohl|ob|bevor|nachdem) ([^,.?]+)(?=[,.?])", example.target):
            if ", d" not in example.target:  # a relative clause may split the clause
                found += 1
                assert clause_.split()[-1] in finite, example.target
        assert not re.search(r"[^,] (dass|weil|obwohl|bevor|nachdem) ", example.target), example.target
    assert found > 800


# --- the corpus -------------------------------------------------------------------------------------------------------


def test_shards_are_parts_of_the_whole_corpus() -> None:
    whole = list(translation(60, seed=5))
    assert whole == list(translation(60, seed=5))
    assert whole[:10] == list(translation(10, seed=5))
    assert whole[40:55] == list(translation(15, seed=5, start=40))
    assert whole != list(translation(60, seed=6))
    far = next(translation(1, seed=5, start=10**12))
    assert far.source


def test_target_is_a_function_of_the_source() -> None:
    targets: dict[str, str] = {}
    for example in translation(50_000, seed=3):
        assert targets.setdefault(example.source, example.target) == example.target
    assert len(targets) > 49_000


def test_words_and_tags_align_with_the_source() -> None:
    for example in translation(3_000, seed=8):
        assert len(example.words) == len(example.tags)
        assert 7 <= len(example.words) <= 27
        assert example.source[0].isupper() or example.source[0].isdigit()
        assert example.target[-1] == example.source[-1]
        assert not re.search(r" [,.?]|,,|  ", example.target), example.target
        for word, tag in zip(example.words, example.tags, strict=True):
            assert (word in ".?") == (tag == "."), example
            assert (word == ",") == (tag == ","), example


def test_splits_hardly_overlap() -> None:
    train = {example.source for example in translation_split("train", 40_000, seed=1)}
    for split in ("valid", "test"):
        held_out = [example.source for example in translation_split(split, 2_000, seed=1)]
        assert sum(source in train for source in held_out) < 0.02 * len(held_out)
    assert list(translation_split("valid", 5, seed=1)) != list(translation_split("test", 5, seed=1))
    with pytest.raises(ValueError, match="split"):
        translation_split("dev", 5, seed=1)  # type: ignore[arg-type]


def test_vocabulary_is_open() -> None:
    def types(n: int) -> int:
        return len({word for example in translation(n, seed=2) for word in example.words})

    assert types(8_000) > 1.5 * types(2_000)
    assert len([name for name in NOUNS if " " not in name]) >= 150
    assert len({v for verbs in VERBS.values() for v in verbs}) >= 60
    assert len(ADJECTIVES) >= 50


def test_the_full_corpus_never_changes() -> None:
    """Results on these corpora are comparable only while the corpora stay the same."""
    text = "\n".join(f"{example.source} {example.target}" for example in translation(500, seed=1))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "9aa2e917e21e6f53bddbb5f32cabd5baceaf4c4645195800a56ba0078b2df568"
    )


# --- the small corpus -------------------------------------------------------------------------------------------------


def test_small_is_a_function_of_seed_and_source() -> None:
    whole = list(translation(60, seed=5, small=True))
    assert whole == list(translation(60, seed=5, small=True))
    assert whole[40:55] == list(translation(15, seed=5, start=40, small=True))
    assert whole != list(translation(60, seed=5))
    targets: dict[str, str] = {}
    for example in translation(20_000, seed=3, small=True):
        assert targets.setdefault(example.source, example.target) == example.target


def test_small_has_few_words() -> None:
    corpus = list(translation(20_000, seed=2, small=True))
    assert len({word.lower() for example in corpus for word in example.words}) < 280
    assert len({word for example in corpus for word in re.findall(r"\w+", example.target.lower())}) < 420
    proper = {w for e in corpus for w, tag in zip(e.words, e.tags, strict=True) if tag == "NNP"}
    assert len(proper) == 3 * 7  # women, men, towns
    numbers = {w.lower() for e in corpus for w, tag in zip(e.words, e.tags, strict=True) if tag == "CD"}
    assert numbers == set(re.findall(r"\w+", "two three four five six seven eight nine ten eleven twelve"))


def test_small_words_are_words_of_the_lexicon() -> None:
    assert SMALL.nouns <= NOUNS.keys()
    assert SMALL.adjectives <= ADJECTIVES.keys()
    assert all(verbs <= VERBS[frame].keys() for frame, verbs in SMALL.verbs.items())
    simple = [NOUNS[name].gender for name in SMALL.nouns if " " not in name]
    assert [simple.count(gender) for gender in range(3)] == [14, 14, 14]
    for verbs in SMALL.verb_table.values():
        for verb in verbs:
            assert not verb.objects or SMALL.known(verb.objects), verb.infinitive


def test_small_sentences_are_short_and_simple() -> None:
    lengths = []
    for example in translation(5_000, seed=8, small=True):
        lengths.append(len(example.words) - 1)
        assert example.source.endswith("."), example.source
        assert not re.search(r", (der|die|das|den|dem|ob|um|wenn|als|während) ", example.target), example.target
    assert min(lengths) == 5
    assert max(lengths) == 13
    assert 8.5 < sum(lengths) / len(lengths) < 9.5


def test_small_german_still_agrees() -> None:
    corpus = list(translation(5_000, seed=11, small=True))
    found = [(phrase, agrees) for made in corpus for phrase, agrees in noun_phrases(made.target)]
    assert [phrase for phrase, agrees in found if not agrees] == []
    assert len(found) > 500
    text = " ".join(made.target for made in corpus)
    for phrase in ("im Haus", "ins Haus", "in der Stadt", "in die Stadt", " ab.", "weil", "dass", "nicht", "kein"):
        assert phrase in text


def test_small_splits_hardly_overlap() -> None:
    """With 40,000 pairs to train on, 1% of the held-out sentences are among them."""
    train = {example.source for example in translation_split("train", 40_000, seed=1, small=True)}
    for split in ("valid", "test"):
        held_out = [example.source for example in translation_split(split, 2_000, seed=1, small=True)]
        assert sum(source in train for source in held_out) <= 0.01 * len(held_out)


def test_a_recipe_asks_for_the_small_one() -> None:
    corpus = ToyCorpus(toy="translation", pairs=3, split="valid", seed=4, small=True)
    assert list(ToyText(corpus).pairs()) == list(translation_split("valid", 3, seed=4, small=True))
