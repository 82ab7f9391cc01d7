"""A rule from its recipe to decoded text: hints are made automatically, also where the model is copied."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from l0drop.core.groups import LABELS
from l0drop.data.batches import collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.sources import open_text
from l0drop.data.tagger import open_tagger
from l0drop.data.text import CorpusError
from l0drop.recipe import RecipeError, parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.training.run import prepare
from l0drop.training.run import train as trained_run
from tests.training import tiny

QUIET = Console(quiet=True)
STEPS = {"steps": 4, "save_every": 4, "eval_every": 4}

FRESH = """
import json, sys
import torch
import l0drop
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from l0drop.data.hints import annotator_for

torch.set_num_threads(1)
results = {}
for folder, texts in json.load(sys.stdin).items():
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    annotator = annotator_for(folder, tokenizer)
    hints = None
    if annotator is not None:
        texts = [annotator.read(text) for text in texts]
        encoding = tokenizer(texts, padding=True, return_tensors="pt")
        hints = {name: torch.tensor(rows) for name, rows in annotator(texts, encoding).items()}
    inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"), hints=hints)
    results[folder] = {
        "gates": [explanation.gates.tolist() for explanation in model.explain(**inputs)],
        "tokens": model.generate(**inputs, num_beams=2, max_new_tokens=8).tolist(),
    }
print(json.dumps(results))
"""
GATES = ("pos", "freq", "inv_freq", "random")


def train(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The content of metrics.json."""
    return as_json(trained_run(*arguments, **options))


def trained(folder: Path, values: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    metrics = train(parse_recipe(values, "test"), folder / "runs", QUIET)
    return metrics, folder / "runs" / values["name"]


def tagged_recipe(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A recipe on plain text, and one on files with the tags of that text."""
    plain = tiny.recipe(folder, "plain", train=STEPS, l0drop={"gate": "pos"})
    values = {**plain, "name": "tagged", "data": {**plain["data"], "language": "xx"}}
    for split in ("train", "valid", "test"):
        corpus = plain["data"][split]
        values["data"][split] = {**corpus, "source": tagged(corpus["source"]), "tagged": True}
    return plain, values


class Outcome(NamedTuple):
    """Gates and tokens of a trained rule: here on the prepared corpus, and in a fresh process on text."""

    values: dict[str, Any]
    metrics: dict[str, Any]
    corpus: TokenizedCorpus
    here: dict[str, Any]
    fresh: dict[str, Any]


@pytest.fixture(scope="module")
def outcomes(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every rule trained for a few steps and moved; one fresh process decodes with all of them."""
    folder = tmp_path_factory.mktemp("patterns")
    recipes = [tiny.sparse(folder, str(baseline), gate, train=STEPS, l0drop={"gate": gate}) for gate in GATES]
    recipes += tagged_recipe(folder)
    here, asked = {}, {}
    for values in recipes:
        metrics, run = trained(folder, values)
        data = (
            run if (run / "data" / "test").exists() else baseline
        )  # without hints, the run uses the baseline's corpora
        corpus = TokenizedCorpus.open(data / "data" / "test")
        batch = collate(list(corpus), 0)
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "hints": batch["hints"]}
        model = AutoModelForSeq2SeqLM.from_pretrained(run / "model")
        decoded = {
            "gates": [explanation.gates.tolist() for explanation in model.explain(**inputs)],
            "tokens": model.generate(**inputs, num_beams=2, max_new_tokens=8).tolist(),
        }
        moved = shutil.move(run / "model", folder / f"moved-{values['name']}")
        (run / "hints.json").unlink(missing_ok=True)
        here[values["name"]] = values, metrics, corpus, decoded
        asked[str(moved)] = Path(values["data"]["test"]["source"]).read_text().splitlines()
    result = subprocess.run(
        [sys.executable, "-c", FRESH], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    fresh = json.loads(result.stdout.splitlines()[-1])
    return {name: Outcome(*known, fresh[str(folder / f"moved-{name}")]) for name, known in here.items()}


@pytest.mark.parametrize("name", [*GATES, "plain", "tagged"])
def test_text_gets_the_same_gates_in_a_fresh_process(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    assert outcome.fresh == outcome.here
    values = [value for row in outcome.here["gates"] for value in row]
    dropped = values.count(0.0) / len(values)
    assert outcome.metrics["test"]["sparsity"] == pytest.approx(dropped)
    assert 0.1 < dropped < 0.9
    assert set(outcome.corpus.hint_names) == {
        "pos": {"label"}, "freq": {"frequent"}, "inv_freq": {"rare"}, "random": set(), "plain": {"label"},
        "tagged": {"label"},
    }[name]  # fmt: skip


def tagged(file: str) -> str:
    """Write a copy of a file with a tag at each word; returns its path."""
    lines = []
    for line in Path(file).read_text().splitlines():
        (words,) = open_tagger()([line])
        lines.append(" ".join(f"{line[word.start : word.end]}_{word.tag}" for word in words))
    new = Path(file).with_suffix(".tagged")
    new.write_text("".join(f"{line}\n" for line in lines))
    return str(new)


def test_tagged_text(outcomes: dict[str, Outcome]) -> None:
    """The tags in the files are the tagger's, so the run equals that on plain text."""
    plain, tagged_ = outcomes["plain"], outcomes["tagged"]
    for one, other in zip(plain.corpus, tagged_.corpus, strict=True):
        assert one.source.tolist() == other.source.tolist()
        assert one.hints["label"].tolist() == other.hints["label"].tolist()
    assert plain.here == tagged_.here


def test_a_word_without_a_tag_is_named(tmp_path: Path) -> None:
    _, values = tagged_recipe(tmp_path)
    Path(values["data"]["test"]["source"]).write_text("a_DT\nno tags\n")
    Path(values["data"]["test"]["target"]).write_text("x\ny\n")
    with pytest.raises(CorpusError, match=r"test.tagged, line 2: 'no' has no tag"):
        list(open_text(parse_recipe(values, "test").data.test))


def test_tags_everywhere_or_nowhere(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, "mixed", l0drop={"gate": "pos"})
    values["data"]["train"]["tagged"] = True
    values["data"] |= {"documents": True, "source_prefix": "translate: "}
    with pytest.raises(RecipeError) as error:
        parse_recipe(values, "test")
    for line in (
        "data.valid.tagged: should be true",
        "data.test.tagged",
        "data.documents: cannot be combined",
        "data.source_prefix",
    ):
        assert line in str(error.value)


def test_unsupported_languages_and_unknown_gates(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, "german", l0drop={"gate": "pos"})
    values["data"]["language"] = "de"
    with pytest.raises(ValueError, match="`language`: perceptron tags English, not 'de'"):
        prepare(parse_recipe(values, "test"), tmp_path / "runs", QUIET)
    with pytest.raises(ValueError, match=r"gate: no gate is registered as 'poss' \(known: .*pos"):
        prepare(parse_recipe({**values, "name": "poss", "l0drop": {"gate": "poss"}}, "test"), tmp_path / "runs", QUIET)


def test_hints_in_the_corpora_come_from_the_shipped_tagger(tmp_path: Path) -> None:
    _, tokenizers, corpora = prepare(
        parse_recipe(tiny.recipe(tmp_path, "hints", l0drop={"gate": "pos"}), "test"), tmp_path / "runs", QUIET
    )
    example = corpora["test"][0]
    shown = dict(zip(tokenizers.source.convert_ids_to_tokens(example.source), example.hints["label"], strict=True))
    assert LABELS[shown["</s>"]] == "EOS"
    assert LABELS[shown["▁."]] == "."
    assert {LABELS[number] for number in example.hints["label"]} & {"NN", "BPEH"}
    assert torch.is_tensor(collate([example], 0)["hints"]["label"])
