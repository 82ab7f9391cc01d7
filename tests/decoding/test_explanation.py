"""Texts explained one by one: prefix, full memory, cut texts, JSON."""

import json
import warnings
from pathlib import Path

import pytest

from l0drop import load
from l0drop.decoding.explanation import explain_texts
from l0drop.decoding.text import TextModel

SETTINGS = {"num_beams": 2, "max_new_tokens": 5}
TEXT = "the dog sees a cat ."


@pytest.fixture(scope="module")
def model(sparse_folder: Path) -> TextModel:
    return load(sparse_folder, "cpu")


def test_a_text_is_explained_on_both_memories(model: TextModel) -> None:
    (found,) = explain_texts(model, [TEXT], SETTINGS, dense=True)
    wanted = model.explain(TEXT, **SETTINGS)
    assert (found.explained.text, found.explained.kept) == (wanted.text, wanted.kept)
    assert found.full is not None
    assert found.full.text == wanted.text, "the short memory gives the output of the full one"
    assert found.is_gated
    assert found.read == found.source == TEXT


def test_tokens_of_the_prefix_have_offsets(model: TextModel) -> None:
    (found,) = explain_texts(model, [TEXT], SETTINGS, prefix="a road : ")
    assert found.source == f"a road : {TEXT}"
    assert found.full is None
    covered = {place for token in found.explained.source for place in range(token.start or 0, token.end or 0)}
    assert {found.source.index("road"), found.source.index("cat")} <= covered


def test_a_long_text_is_cut_without_a_warning(model: TextModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = explain_texts(model, ["the dog " * 80], SETTINGS)
    assert found.explained.cut > 0
    assert found.source.startswith(found.read)
    assert 0 < len(found.read) < len(found.source)


def test_json_has_every_token_with_its_gate(model: TextModel) -> None:
    (found,) = explain_texts(model, [TEXT], SETTINGS, dense=True)
    values = json.loads(json.dumps(found.as_json()))
    assert values["source_tokens"] == len(values["tokens"]) == len(found.explained.source)
    assert values["kept_tokens"] == sum(token["kept"] for token in values["tokens"])
    assert all((token["gate"] > 0) == token["kept"] for token in values["tokens"])
    assert values["dense"]["text"] == values["text"]
    assert "dense" not in next(explain_texts(model, [TEXT], SETTINGS)).as_json()
