"""Annotations: rules get their hints in addition to those of the analysis, and languages are checked."""

import pytest
import torch

from l0drop import L0DropConfig, sparsify
from l0drop.core.groups import LABELS
from l0drop.data.hints import Frequencies, TextAnnotator, counted_tokens
from l0drop.data.tagger import PRETAGGED
from l0drop.data.tokenizer import load_tokenizers
from l0drop.decoding.folder import load_model
from l0drop.models.patterns import FREQUENT, LABEL
from l0drop.recipe import parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.study.analysis.annotate import Tagging, Untagged, annotator_for
from l0drop.study.analysis.parts import analyze
from l0drop.study.analysis.subject import Reading, opened, tagging_of
from tests.study.analysis.conftest import write_run
from tests.training import tiny

TEXTS = ["the dog sees a cat .", "a stone !"]


@pytest.fixture(scope="module")
def tokenizer(baseline):
    return load_tokenizers(baseline).source


def test_pieces_are_labelled_without_a_tagger(tokenizer) -> None:
    encoding = tokenizer(TEXTS)
    untagged = Untagged(tokenizer)(TEXTS, encoding)[LABEL]
    tagged = TextAnnotator((LABEL,), tokenizer)(TEXTS, encoding)[LABEL]
    for with_tags, without in zip(tagged, untagged, strict=True):
        for one, other in zip(with_tags, without, strict=True):
            expected = LABELS[one] if LABELS[one] in ("EOS", "BPEH", "BPEO") else "XX"
            assert LABELS[other] == expected
    assert any(LABELS[n] == "XX" for n in untagged[0])


def test_a_rule_and_the_analysis_share_one_annotator(baseline, tokenizer, tmp_path) -> None:
    encoding = tokenizer(TEXTS)
    frequencies = Frequencies.count(counted_tokens(tokenizer, TEXTS, encoding))
    rule = TextAnnotator((FREQUENT,), tokenizer, frequencies=frequencies)
    rule.save(tmp_path)
    both, why = annotator_for(tmp_path, tokenizer, Tagging(), TEXTS)
    assert why is None
    assert set(both.names) == {LABEL, FREQUENT}
    hints = both(TEXTS, encoding)
    assert hints[FREQUENT] == rule(TEXTS, encoding)[FREQUENT]
    assert hints[LABEL] == TextAnnotator((LABEL,), tokenizer)(TEXTS, encoding)[LABEL]
    alone, _ = annotator_for(baseline, tokenizer, Tagging(), TEXTS)
    assert len({both.fingerprint, alone.fingerprint, rule.fingerprint}) == 3


def test_a_run_with_a_rule(baseline, tokenizer, tmp_path) -> None:
    base = load_model(str(baseline), baseline / "model", torch.float32)
    model = sparsify(base, L0DropConfig(gate="pos", gate_args={"drop": ["function", "BPEO"]}, lambda_=0.0))
    section = {"gate": "pos", "gate_args": {"drop": ["function", "BPEO"]}}
    run = write_run(tmp_path, baseline, "rule", model, l0drop=section)
    TextAnnotator((LABEL,), tokenizer).save(run / "model")
    with opened(str(run), Reading(sentences=6)) as subject:
        result = as_json(analyze(subject, ["groups", "gates", "interventions", "source"]))
    rates = {name: rate["sparsity"] for name, rate in result["groups"]["groups"].items() if rate["tokens"]}
    assert {name for name, rate in rates.items() if rate == 1} == {"function", "BPEO"} & set(rates)
    assert all(rate == 0 for name, rate in rates.items() if name not in ("function", "BPEO"))
    assert result["gates"]["expected_open_rate"] is None


def test_the_choice_of_tagger_and_language(tmp_path) -> None:
    def tagging(language=None, source=None, **data):
        values = tiny.recipe(tmp_path)
        recipe = parse_recipe({**values, "data": {**values["data"], **data}}, "test")
        return tagging_of(recipe, Reading(source=source, language=language))

    assert tagging_of(None, Reading()) == Tagging("perceptron", "en", assumed=True)
    assert tagging_of(None, Reading(language="de")) == Tagging("perceptron", "de", assumed=False)
    assert tagging() == Tagging("perceptron", "en", assumed=True)
    assert tagging(language="fr") == Tagging("perceptron", "fr", assumed=False)
    assert tagging(language="zh", tagger="nltk") == Tagging("nltk", "zh", assumed=False)
    corpora = {
        split: {**tiny.write_text(tmp_path, split, 3, 1), "tagged": True} for split in ("train", "valid", "test")
    }
    assert tagging(**corpora).tagger == PRETAGGED
    assert tagging(**corpora, source=tmp_path / "other.txt").tagger == "perceptron", "other text has no tags"


def test_a_language_from_the_recipe_is_not_checked(tokenizer, tmp_path) -> None:
    _, why = annotator_for(tmp_path, tokenizer, Tagging(language="zh"), [])
    assert "tags English, not 'zh'" in why
    _, why = annotator_for(tmp_path, tokenizer, Tagging(), ["der Hund sieht die Katze"])
    assert "does not look like English" in why
    _, why = annotator_for(tmp_path, tokenizer, Tagging(assumed=False), ["der Hund sieht die Katze"])
    assert why is None
