"""The documents: summaries that the source determines, and shards."""

import re
from itertools import pairwise

import pytest

from l0drop.data.sources import ToyText
from l0drop.data.toy import documents, documents_split
from l0drop.recipe import ToyCorpus

NUMBER_WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NUMBERS = {word: str(number) for number, word in enumerate(NUMBER_WORDS, start=2)}


def in_digits(text: str) -> str:
    return re.sub(r"\b(\w+)\b", lambda m: NUMBERS.get(m[1].lower(), m[1]), text)


def test_documents_can_be_generated_in_shards() -> None:
    whole = list(documents(20, seed=5))
    assert whole == list(documents(20, seed=5))
    assert whole[:5] == list(documents(5, seed=5))
    assert whole[12:18] == list(documents(6, seed=5, start=12))
    with pytest.raises(ValueError, match="reports"):
        next(documents(1, seed=5, reports=0))


def test_the_number_of_reports_can_vary() -> None:
    lengths = [len(document.words) for document in documents(200, seed=5, reports=6, min_reports=1)]
    fixed = {count: [len(document.words) for document in documents(200, seed=5, reports=count)] for count in (1, 6)}
    assert min(lengths) <= max(fixed[1])
    assert max(lengths) >= min(fixed[6])
    assert sum(lengths) < sum(fixed[6]) / 2, "short documents are more frequent"
    assert lengths[7:9] == [len(document.words) for document in documents(2, seed=5, reports=6, min_reports=1, start=7)]
    with pytest.raises(ValueError, match="min_reports at most reports, got 4 and 3"):
        next(documents(1, seed=5, reports=3, min_reports=4))
    with pytest.raises(ValueError, match="4 is more than reports, 3"):
        ToyCorpus(toy="documents", pairs=1, split="test", reports=3, min_reports=4)
    with pytest.raises(ValueError, match="only the toy documents"):
        ToyCorpus(toy="translation", pairs=1, split="test", min_reports=1)
    plain, varying = (
        ToyText(ToyCorpus(toy="documents", pairs=2, split="test", min_reports=least)) for least in (None, 1)
    )
    assert "min_reports" not in plain.inputs()[0]["toy"], "prepared corpora of earlier versions stay valid"
    assert varying.inputs()[0]["toy"]["min_reports"] == 1


def test_each_split_has_its_own_seed() -> None:
    train = {document.target for document in documents_split("train", 400, seed=1)}
    for split in ("valid", "test"):
        assert not train & {document.target for document in documents_split(split, 100, seed=1)}
    assert list(documents_split("valid", 5, seed=1)) != list(documents_split("test", 5, seed=1))
    assert list(documents_split("valid", 5, seed=1)) != list(documents_split("valid", 5, seed=2))
    with pytest.raises(ValueError, match="split"):
        documents_split("dev", 5, seed=1)  # type: ignore[arg-type]


def test_a_recipe_names_a_split() -> None:
    corpus = ToyCorpus(toy="documents", pairs=3, split="valid", seed=4, reports=2)
    assert list(ToyText(corpus).pairs()) == list(documents_split("valid", 3, seed=4, reports=2))


def facts_of(summary: str) -> set[str]:
    """The names, dates and numbers of a summary."""
    words = re.findall(r"[\wäöüß]+", summary)
    return {w for w in words if w[0].isdigit() or (w[0].isupper() and w not in {"A", "The", "Mayor", "Inspector"})}


def test_facts_of_the_summary_are_in_the_source() -> None:
    for document in documents(300, seed=4):
        words = set(re.findall(r"[\wäöüß]+", in_digits(document.source)))
        assert len(facts_of(document.target)) >= 5
        assert facts_of(document.target) <= words, document


def test_another_source_does_not_contain_the_facts_of_the_summary() -> None:
    batch = list(documents(200, seed=4))
    assert len({document.target for document in batch}) == len(batch)
    for document, other in pairwise(batch):
        words = set(re.findall(r"[\wäöüß]+", in_digits(other.source)))
        facts = facts_of(document.target)
        assert len(facts & words) < 0.7 * len(facts), (document.target, other.source)


def test_the_summary_prefers_the_police_to_witnesses() -> None:
    seen = {"agree": 0, "disagree": 0, "witnesses alone": 0}
    for document in documents(600, seed=9):
        if "storm hit" not in document.target:
            continue
        sentences = re.split(r"(?<=\.) ", in_digits(document.source))
        counts = {
            who: {
                int(number)
                for sentence in sentences
                if any(word in sentence for word in words)
                for number in re.findall(r"(\d+) (?:damaged )?houses", sentence)
            }
            for who, words in {"police": ["police"], "witnesses": ["itness", "Neighbors"]}.items()
        }
        (summary,) = re.findall(r"damaged (\d+) houses", document.target)
        assert {int(summary)} == (counts["police"] or counts["witnesses"]), document
        alone = "agree" if not counts["witnesses"] else "disagree"
        seen[alone if counts["police"] else "witnesses alone"] += 1
    assert all(seen.values())


def test_length_grows_with_reports() -> None:
    def mean(reports: int) -> float:
        lengths = [len(document.words) for document in documents(40, seed=2, reports=reports)]
        return sum(lengths) / len(lengths)

    assert 50 < mean(1) < 120 < mean(3) < mean(6) < mean(14)
    assert 800 < mean(14) < 1_200


def test_some_facts_occur_in_one_report_only() -> None:
    once = 0
    for document in documents(100, seed=6):
        text = in_digits(document.source)
        once += any(text.count(f" {fact} ") == 1 for fact in facts_of(document.target) if fact.isdigit())
    assert once > 30
