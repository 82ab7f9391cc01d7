"""Recipes: their schema, their errors, and the files in recipes/."""

import copy
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from l0drop.core.memory import GATINGS
from l0drop.core.penalty import Reduction
from l0drop.data.metrics import BleuTokenizer
from l0drop.models.config import L0DropConfig
from l0drop.recipe import (
    Evaluate,
    HubCorpus,
    JsonlCorpus,
    L0Drop,
    Recipe,
    RecipeError,
    TextCorpus,
    Tokenizer,
    ToyCorpus,
    Train,
    TsvCorpus,
    dump_recipe,
    load_recipe,
    parse_recipe,
)

FILES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
PAPER = {
    "wmt14-en-de": ("base", "finetune", "scratch", "layerwise"),
    "wmt18-zh-en": ("base", "finetune"),
    "cnndm": ("base", "finetune"),
    "wikisum": ("base", "finetune"),
}

SCRATCH: dict[str, Any] = {
    "name": "scratch",
    "data": {"train": {"source": "a.en", "target": "a.de"}, "valid": {"source": "b.en", "target": "b.de"}},
    "tokenizer": {"vocab_size": 8000},
    "model": {"transformer": {}},
    "train": {"steps": 10},
}
SPARSE: dict[str, Any] = {
    **{key: SCRATCH[key] for key in ("data", "train")},
    "name": "sparse",
    "model": {"init": "runs/scratch"},
    "l0drop": {"lambda_": 0.3},
}


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `base` with the values at dotted paths replaced."""
    values = copy.deepcopy(base)
    for path, value in changes.items():
        *above, last = path.split(".")
        section = values
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    return values


def faults(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, str]:
    """Key paths and messages of the error that a changed recipe raises."""
    with pytest.raises(RecipeError) as error:
        parse_recipe(changed(base, changes), "r.yaml")
    lines = [line.split(": ", 2) for line in str(error.value).splitlines()]
    assert {file for file, _, _ in lines} == {"r.yaml"}
    assert len({key for _, key, _ in lines}) == len(lines)
    return {key: message for _, key, message in lines}


def accepted(base: dict[str, Any], changes: dict[str, Any]) -> Recipe:
    return parse_recipe(changed(base, changes), "r.yaml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sparse.yaml"
    path.write_text(yaml.safe_dump(SPARSE, sort_keys=False))
    return path


class TestRecipeFiles:
    def test_every_experiment_of_the_paper_has_a_recipe(self) -> None:
        names = {path.stem for path in FILES}
        assert {f"{task}-{kind}" for task, kinds in PAPER.items() for kind in kinds} <= names
        assert {"multi30k-base", "multi30k-target50", "opus-mt-source-only", "starter"} <= names

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
    def test_parses_and_round_trips(self, path: Path, tmp_path: Path) -> None:
        recipe = load_recipe(path)
        assert recipe.name == path.stem
        assert "Data: " in recipe.about
        written = tmp_path / "recipe.yaml"
        written.write_text(dump_recipe(recipe), encoding="utf-8")
        assert load_recipe(written) == recipe

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
    def test_the_l0drop_section_makes_a_config(self, path: Path) -> None:
        section = load_recipe(path).l0drop
        if section is not None:
            config = L0DropConfig(**section.model_dump(exclude={"ramp"}))
            assert (config.lambda_, config.target_sparsity) == (section.lambda_, section.target_sparsity)

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
    def test_starts_from_a_recipe_with_the_same_data(self, path: Path) -> None:
        recipe = load_recipe(path)
        if recipe.model.init is not None:
            assert Path(recipe.model.init).parent == Path("runs")
            base = load_recipe(path.with_name(f"{Path(recipe.model.init).name}.yaml"))
            assert (base.data, base.evaluate, base.task) == (recipe.data, recipe.evaluate, recipe.task)

    def test_settings_of_the_paper(self) -> None:
        recipes = {path.stem: load_recipe(path) for path in FILES}
        steps = {
            "wmt14-en-de-base": 300_000,
            "wmt14-en-de-finetune": 50_000,
            "wmt18-zh-en-base": 500_000,
            "wmt18-zh-en-finetune": 50_000,
            "cnndm-base": 80_000,
            "cnndm-finetune": 20_000,
            "wikisum-base": 100_000,
        }
        assert {name: recipes[name].train.steps for name in steps} == steps
        for task, kinds in PAPER.items():
            for kind in kinds:
                recipe = recipes[f"{task}-{kind}"]
                train = recipe.train
                assert (train.batch_tokens, train.adam_betas, train.label_smoothing) == (25_000, (0.9, 0.98), 0.1)
                assert (train.average, recipe.evaluate.beams, recipe.evaluate.length_penalty) == (5, 4, 0.6)
                assert train.steps / train.save_every >= train.average
                if kind in ("base", "scratch"):
                    assert (train.learning_rate, train.schedule, train.warmup) == (7e-4, "inverse_sqrt", 4000)
        lambdas = {name: recipe.l0drop.lambda_ for name, recipe in recipes.items() if recipe.l0drop}
        assert (lambdas["wmt14-en-de-finetune"], lambdas["wmt14-en-de-scratch"]) == (0.3, 0.2)
        scratch = recipes["wmt14-en-de-scratch"].l0drop
        assert scratch is not None
        assert scratch.ramp is not None
        assert (scratch.ramp.start, scratch.ramp.end) == (0, 200_000)
        news = recipes["cnndm-base"].model.transformer
        assert news is not None
        assert (news.attention_dropout, news.dropout) == (0.3, 0.5)
        assert (recipes["cnndm-base"].data.max_source, recipes["wikisum-base"].data.max_source) == (400, 2048)

    def test_commands_in_comments(self) -> None:
        folder = FILES[0].parent
        continued = load_recipe(folder / "multi30k-target50.yaml", ["name=multi30k-continued", "l0drop=null"])
        assert (continued.name, continued.l0drop) == ("multi30k-continued", None)
        changes = ["data.train.source=my/text.en", "model.pretrained=Helsinki-NLP/opus-mt-en-fr"]
        mine = load_recipe(folder / "opus-mt-source-only.yaml", changes)
        assert mine.data.train == TextCorpus(source="my/text.en")
        assert mine.data.splits == ("train", "valid", "test")
        base = load_recipe(folder / "starter.yaml", ["name=base", "l0drop=null"])
        assert base.l0drop is None
        comments = (folder / "starter.yaml").read_text(encoding="utf-8")
        assert re.findall(r"^#.* l0drop sweep recipes/starter.yaml --target ([\d.,]+)", comments, re.MULTILINE)
        tuning = load_recipe(folder / "starter.yaml", re.findall(r"--fine-tune (\S+=\S+)", comments)).train
        assert (tuning.learning_rate, tuning.gate_scale) == (3e-4, 30)


class TestHeldOutSplits:
    WITHOUT: ClassVar = {**SPARSE, "data": {"train": SPARSE["data"]["train"]}}

    def test_missing_splits_are_held_out(self) -> None:
        data = accepted(self.WITHOUT, {"data.held_out": 30}).data
        assert (data.splits, data.held_out_splits) == (("train", "valid", "test"), ("valid", "test"))
        assert data.origin("test") == (data.train, "test", ("valid", "test"), 30)

    def test_a_given_test_text_is_used(self) -> None:
        data = accepted(self.WITHOUT, {"data.test": {"source": "c.en", "target": "c.de"}}).data
        assert (data.splits, data.held_out_splits) == (("train", "valid", "test"), ("valid",))
        assert data.origin("test") == (TextCorpus(source="c.en", target="c.de"),)

    def test_with_validation_text_nothing_is_held_out(self) -> None:
        data = parse_recipe(SPARSE, "r.yaml").data
        assert (data.splits, data.held_out_splits) == (("train", "valid"), ())
        assert data.origin("train") == (data.train,)

    def test_documents_need_validation_text(self) -> None:
        wrong = faults(self.WITHOUT, {"data.documents": True})
        assert "lines cannot be held out" in wrong["data.valid"]

    def test_held_out_without_effect(self) -> None:
        assert "because valid is given" in faults(SPARSE, {"data.held_out": 5})["data.held_out"]


class TestSchema:
    def test_defaults(self) -> None:
        recipe = parse_recipe(SCRATCH, "r.yaml")
        assert recipe.train == Train(steps=10)
        assert recipe.evaluate == Evaluate()
        assert recipe.l0drop is None
        assert recipe.model.transformer is not None
        assert recipe.model.transformer.d_model == 512
        assert parse_recipe(SPARSE, "r.yaml").tokenizer == Tokenizer()

    def test_sections_cannot_be_changed(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            parse_recipe(SCRATCH, "r.yaml").train.steps = 3

    @pytest.mark.parametrize(
        ("values", "corpus", "targets"),
        [
            ({"source": "a", "target": "b"}, TextCorpus(source="a", target="b"), True),
            ({"source": "a"}, TextCorpus(source="a"), False),
            ({"tsv": "a"}, TsvCorpus(tsv="a", source_column=0, target_column=1), True),
            ({"tsv": "a", "target_column": None}, TsvCorpus(tsv="a", target_column=None), False),
            ({"jsonl": "a", "source_field": "x"}, JsonlCorpus(jsonl="a", source_field="x"), False),
            (
                {"hub": "a", "config": "c", "split": "s", "source_field": "x", "target_field": "y"},
                HubCorpus(hub="a", config="c", split="s", source_field="x", target_field="y"),
                True,
            ),
            (
                {"toy": "documents", "pairs": 9, "split": "valid"},
                ToyCorpus(toy="documents", pairs=9, split="valid", seed=1, reports=3, small=False),
                True,
            ),
        ],
    )
    def test_corpora(self, values: dict[str, Any], corpus: Any, targets: bool) -> None:
        recipe = accepted(SPARSE, {"data.train": values, "train.targets": "teacher", "train.teacher": {}})
        assert recipe.data.train == corpus
        assert recipe.data.train.has_targets is targets

    @pytest.mark.parametrize("values", [{"tsv": "a", "jsonl": "b", "source_field": "c"}, {"sorce": "a"}, {}, None, "a"])
    def test_a_corpus_has_exactly_one_kind(self, values: Any) -> None:
        assert "exactly one of source, tsv, jsonl, hub, toy" in faults(SCRATCH, {"data.train": values})["data.train"]

    @pytest.mark.parametrize("number", ["3e-4", "3E-4", 3e-4, "0.0003"])
    def test_numbers(self, number: Any) -> None:
        assert accepted(SCRATCH, {"train.learning_rate": number}).train.learning_rate == 3e-4

    @pytest.mark.parametrize("number", ["1e5", 1e5, 100_000, "100000"])
    def test_whole_numbers(self, number: Any) -> None:
        assert accepted(SCRATCH, {"train.steps": number}).train.steps == 100_000

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("train.steps", 0),
            ("train.steps", 1.5),
            ("train.steps", True),
            ("train.learning_rate", -1e-4),
            ("train.learning_rate", float("nan")),
            ("train.learning_rate", "fast"),
            ("train.clip", 0),
            ("train.precision", "fp16"),
            ("train.elastic", "yes"),
            ("train.report_to", "tensorboard"),
            ("model.transformer.dropout", 1.0),
            ("data.max_source", 1),
            ("name", "../other"),
            ("name", ".."),
            ("name", ""),
            ("name", 12),
            ("evaluate", 3),
            ("train", None),
        ],
    )
    def test_values_out_of_range(self, path: str, value: Any) -> None:
        assert list(faults(SCRATCH, {path: value})) == [path]

    def test_always_keep(self) -> None:
        section = accepted(SPARSE, {"l0drop.always_keep": ["</s>", 5]}).l0drop
        assert section is not None
        assert section.always_keep == ("</s>", 5)
        wrong = faults(SPARSE, {"l0drop.always_keep": ["</s>", 1.5, -1, True, ""]})
        assert list(wrong) == [f"l0drop.always_keep.{index}" for index in (1, 2, 3, 4)]

    def test_agrees_with_the_model_config(self) -> None:
        """The recipe imports no torch, so it repeats the config's fields and defaults."""
        config = {field.name: field for field in dataclasses.fields(L0DropConfig)}
        assert set(L0Drop.model_fields) - {"ramp"} == set(config) - {"enabled"}
        default = L0DropConfig()
        for name in set(config) - {"enabled", "lambda_"}:
            assert L0Drop.model_fields[name].get_default(call_default_factory=True) == getattr(default, name), name
        assert get_args(L0Drop.model_fields["gating"].annotation) == GATINGS
        assert L0Drop.model_fields["penalty"].annotation == Reduction
        assert Evaluate.model_fields["tokenize"].annotation == BleuTokenizer

    def test_imports_no_model_library(self) -> None:
        program = (
            "import sys; sys.argv[0] = 'l0drop'\n"  # run as the command line, which itself imports no model library
            "import l0drop.recipe\n"
            "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


RULES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (SPARSE, {"l0drop.target_sparsity": 0.5}, "l0drop.target_sparsity", "lambda_"),
    (SPARSE, {"l0drop": {}}, "l0drop.lambda_", "needs lambda_ or target_sparsity"),
    (SPARSE, {"l0drop": {"target_sparsity": 0.5, "ramp": {"end": 9}}}, "l0drop.ramp", "needs lambda_"),
    (SPARSE, {"l0drop.ramp": {"start": 9, "end": 9}}, "l0drop.ramp.end", "after start"),
    (SPARSE, {"l0drop": {"gate": "pos", "target_sparsity": 0.5}}, "l0drop.target_sparsity", "pos"),
    (SPARSE, {"l0drop.layerwise": True, "l0drop.gating": "weight"}, "l0drop.layerwise", "weight"),
    (SPARSE, {"l0drop": {"gate": "pos", "layerwise": True}}, "l0drop.layerwise", "pos"),
    (SPARSE, {"l0drop.shortener": "merge"}, "l0drop.lambda_", "is a setting of gates, which the shortener merge"),
    *(
        (SPARSE, {"l0drop": {"shortener": "merge", name: value}}, f"l0drop.{name}", "is a setting of gates")
        for name, value in {
            "gating": "mask",
            "target_sparsity": 0.5,
            "start": 1.0,
            "gate": "pos",
            "layerwise": True,
            "always_keep": ["</s>"],
            "penalty": "sum",
        }.items()
    ),
    (SPARSE, {"l0drop.shortener_args": {"keep": 0.5}}, "l0drop.shortener_args", "name the shortener"),
    (SCRATCH, {"data.train": {"source": "a"}}, "data.train.target", "teacher"),
    (SCRATCH, {"data.valid": {"jsonl": "a", "source_field": "b"}}, "data.valid.target_field", "teacher"),
    (SCRATCH, {"data.test": {"tsv": "a", "target_column": None}}, "data.test.target_column", "teacher"),
    (SCRATCH, {"data.test": {"tsv": "a", "target_column": 0}}, "data.test.target_column", "same as source_column"),
    (
        SCRATCH,
        {"data.test": {"toy": "documents", "pairs": 9, "split": "test", "small": True}},
        "data.test.small",
        "only the toy translation",
    ),
    (SPARSE, {"train.targets": "teacher"}, "train.teacher", "is missing"),
    (SPARSE, {"train.teacher": {"weight": 0}}, "train.teacher.weight", "has no effect"),
    (SCRATCH, {"train.teacher": {}}, "train.teacher.model", "random"),
    (SCRATCH, {"train.steer_over": 0.5}, "train.steer_over", "leave no steps"),
    (SCRATCH, {"train.elastic": True}, "train.elastic", "a learned gate"),
    (SPARSE, {"train.elastic": True, "l0drop": {"gate": "pos"}}, "train.elastic", "a learned gate"),
    (SPARSE, {"train.elastic": True, "l0drop": {"shortener": "merge"}}, "train.elastic", "a learned gate"),
    (SPARSE, {"train.freeze": "all_but_gate", "l0drop": {"shortener": "merge"}}, "train.freeze", "a learned gate"),
    (SPARSE, {"train.elastic_range": [0.5, 0.5]}, "train.elastic_range", "smallest"),
    (SPARSE, {"train.anneal": 0.6, "train.settle": 0.5}, "train.anneal", "do not fit before the last 0.5"),
    (SPARSE, {"train.anneal": 0.6, "train.fixed_gates": 0.5}, "train.anneal", "do not fit before the last 0.5"),
    (SPARSE, {"train.steer_over": 0.6, "train.fixed_gates": 0.5}, "train.fixed_gates", "after 0.6 of them"),
    (SPARSE, {"train.fixed_gates": 0.2, "train.patience": 3}, "train.fixed_gates", "remove patience"),
    (SPARSE, {"train.fixed_gates": 0.2, "train.freeze": "all_but_gate"}, "train.fixed_gates", "nothing to train"),
    (
        SPARSE,
        {"train.steps": 100, "train.save_every": 10, "train.average": 3, "train.fixed_gates": 0.2},
        "train.fixed_gates",
        "fixed after step 80, but the averaged checkpoints begin with that of step 80",
    ),
    (SCRATCH, {"train.steer_over": 0.4, "train.fixed_gates": 0.3}, "train.steer_over", "leave no steps"),
    (SPARSE, {"train.freeze": "all_but_gate", "l0drop": None}, "train.freeze", "learned gate"),
    (SCRATCH, {"train.freeze": "all_but_gate", "l0drop.lambda_": 1}, "train.freeze", "random"),
    (SCRATCH, {"train.average": 6}, "train.average", "keep_checkpoints"),
    (SCRATCH, {"train.warmup": 0}, "train.warmup", "at least 1"),
    (SCRATCH, {"tokenizer": {}}, "tokenizer.vocab_size", "is missing"),
    (SPARSE, {"tokenizer": {"vocab_size": 10}}, "tokenizer.vocab_size", "remove this key"),
    (SCRATCH, {"tokenizer.pretrained": "x"}, "tokenizer.pretrained", "remove one of them"),
    (SPARSE, {"tokenizer.shared": False}, "tokenizer.shared", "needs vocab_size"),
    (SCRATCH, {"model.init": "runs/x"}, "model.init", "exactly one"),
    (SPARSE, {"model": {}}, "model.transformer", "give one of"),
    (SPARSE, {"model.init": "runs/sparse/"}, "model.init", "this run itself"),
    (SCRATCH, {"model.dropout": 0.1}, "model.dropout", "transformer.dropout"),
    (SCRATCH, {"model.transformer.heads": 7}, "model.transformer.heads", "512"),
    (SCRATCH, {"data.max_source": 1025}, "data.max_source", "1024"),
    (SCRATCH, {"evaluate.max_new_tokens": 1025}, "evaluate.max_new_tokens", "1024"),
]


class TestRulesBetweenFields:
    @pytest.mark.parametrize(("base", "changes", "key", "message"), RULES, ids=[f"{r[2]}-{r[3]}" for r in RULES])
    def test_violated(self, base: dict[str, Any], changes: dict[str, Any], key: str, message: str) -> None:
        wrong = faults(base, changes)
        assert list(wrong) == [key]
        assert message in wrong[key]

    @pytest.mark.parametrize(
        ("base", "changes"),
        [
            (SPARSE, {"l0drop": {"target_sparsity": 0.5}}),
            (SPARSE, {"l0drop.ramp": {"end": 9}}),
            (SPARSE, {"l0drop": {"gate": "pos"}}),
            (SPARSE, {"l0drop": {"shortener": "merge", "shortener_args": {"keep": 0.5}}}),
            (SPARSE, {"l0drop": {"gate": "my gate", "lambda_": 0.1}}),
            (SPARSE, {"train.elastic": True, "train.freeze": "all_but_gate"}),
            (SPARSE, {"train.teacher": {}}),
            (SPARSE, {"train.anneal": 0.5, "train.settle": 0.5}),
            (SPARSE, {"train.steps": 100, "train.save_every": 9, "train.average": 3, "train.fixed_gates": 0.2}),
            (SPARSE, {"train.targets": "teacher", "train.teacher": {"weight": 0}, "data.valid": {"source": "a"}}),
            (SPARSE, {"tokenizer.pretrained": "folder", "model": {"pretrained": "x", "dropout": 0.3}}),
            (SCRATCH, {"tokenizer": {"pretrained": "folder"}}),
            (SCRATCH, {"tokenizer.shared": False}),
            (SCRATCH, {"train.warmup": 0, "train.schedule": "constant"}),
            (SCRATCH, {"train.average": 5, "train.clip": None}),
            (SCRATCH, {"data.max_source": 2048, "model.transformer.positions": 2048}),
        ],
    )
    def test_satisfied(self, base: dict[str, Any], changes: dict[str, Any]) -> None:
        accepted(base, changes)

    def test_separate_vocabularies_without_targets(self) -> None:
        changes = {
            "tokenizer.shared": False,
            "data.train": {"source": "a"},
            "train.targets": "teacher",
            "train.teacher.model": "folder",
        }
        assert list(faults(SCRATCH, changes)) == ["tokenizer.shared"]


class TestErrors:
    def test_all_errors_are_reported_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "wrong.yaml"
        path.write_text(
            "name: wrong\n"
            "data:\n"
            "  train: {source: a.en}\n"
            "  valid: {source: b.en, target: b.de, targt: c}\n"
            "model: {transformer: {heads: 7}}\n"
            "l0drop: {lambda_: 0.3, target_sparsity: 0.5, beta: -1}\n"
            "train:\n"
            "  lerning_rate: 3e-4\n"
            "  average: 9\n"
            "  schedule: cosine\n"
            "evalute: {beams: 4}\n"
        )
        with pytest.raises(RecipeError) as error:
            load_recipe(path)
        expected = {
            (3, "data.train.target", "is missing"),
            (4, "data.valid.targt", "did you mean target?"),
            (5, "model.transformer.heads", "divided"),
            (6, "l0drop.beta", "greater than 0, got -1"),
            (6, "l0drop.target_sparsity", "lambda_"),
            (7, "train.steps", "is missing"),
            (8, "train.lerning_rate", "did you mean learning_rate?"),
            (9, "train.average", "keep_checkpoints"),
            (10, "train.schedule", "'inverse_sqrt', 'constant' or 'linear', got 'cosine'"),
            (11, "evalute", "did you mean evaluate?"),
        }
        lines = str(error.value).splitlines()
        for line, key, message in expected:
            assert any(row.startswith(f"{path}, line {line}: {key}: ") and message in row for row in lines), (
                key,
                lines,
            )
        assert any(row.startswith(f"{path}: tokenizer.vocab_size: ") for row in lines)
        assert len(lines) == len(expected) + 1

    @pytest.mark.parametrize(
        ("path", "suggestion"),
        [
            ("l0drop.lambda", "did you mean lambda_?"),
            ("train.dropout", "did you mean model.transformer.dropout or model.dropout?"),
            ("learning_rate", "did you mean train.learning_rate?"),
            ("evaluate.xyz", "the keys here are metric, tokenize"),
        ],
    )
    def test_unknown_keys(self, path: str, suggestion: str) -> None:
        assert suggestion in faults(SPARSE, {path: 1})[path]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("name: a\ntrain: [1, 2\n", ", line 3, column 1: not valid YAML: "),
            ("name: a\ntrain:\n\tsteps: 1\n", ", line 3, column 1: not valid YAML: "),
            ("train:\n  steps: 1\n  steps: 2\n", ", line 3, column 3: not valid YAML: the key steps occurs twice"),
            ("name: a\n---\nname: b\n", ", line 2, column 1: not valid YAML: "),
            ("name: !!python/object:os.system {}\n", ", line 1, column 7: not valid YAML: "),
            ("name: \x07\n", ": not valid YAML: "),
            ("about: 2020-13-45\n", ": not valid YAML: "),
            ("", ": should be a mapping with the keys name, "),
            ("- a\n", ": should be a mapping with the keys name, "),
        ],
    )
    def test_invalid_yaml(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "r.yaml"
        path.write_text(text)
        with pytest.raises(RecipeError) as error:
            load_recipe(path)
        assert str(error.value).startswith(f"{path}{message}")

    def test_unreadable_files(self, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match="nothing.yaml: No such file"):
            load_recipe(tmp_path / "nothing.yaml")
        (tmp_path / "latin.yaml").write_bytes("about: é\n".encode("latin-1"))
        with pytest.raises(RecipeError, match="latin.yaml: not valid UTF-8 at byte 7"):
            load_recipe(tmp_path / "latin.yaml")


class TestOverrides:
    def test_values_are_yaml(self, file: Path) -> None:
        recipe = load_recipe(
            file,
            [
                "train.steps=1e3",
                "train.learning_rate=3e-4",
                "train.elastic=true",
                "train.adam_betas=[0.8, 0.9]",
                "train.teacher.weight=0.25",
                "train.clip=null",
                "data.train={tsv: a.tsv}",
                "about=3e-4 = b",
                "evaluate.tokenize=none",
                "seed=1",
                "seed=2",
            ],
        )
        train = recipe.train
        assert (train.steps, train.learning_rate, train.elastic, train.adam_betas) == (1000, 3e-4, True, (0.8, 0.9))
        assert train.teacher is not None
        assert (train.teacher.weight, train.clip) == (0.25, None)
        assert (recipe.data.train, recipe.about, recipe.seed) == (TsvCorpus(tsv="a.tsv"), "3e-4 = b", 2)
        assert recipe.evaluate.tokenize == "none"
        assert recipe.l0drop == L0Drop(lambda_=0.3)

    def test_invalid_overrides(self, file: Path) -> None:
        overrides = ["train.stpes=5", "trian.steps=5", "train.steps.x=3", "seed", "=3", "a..b=1", "name=[1", "seed=x"]
        with pytest.raises(RecipeError) as error:
            load_recipe(file, overrides)
        lines = str(error.value).splitlines()
        expected = [
            "override 'train.steps.x=3': train.steps has no keys in it",
            "override 'seed': should be a.b=value",
            "override '=3': should be a.b=value",
            "override 'a..b=1': should be a.b=value",
            "override 'name=[1', line 1, column 3: not valid YAML: ",
            "override 'seed=x': seed: should be a valid integer",
            "override 'train.stpes=5': train.stpes: unknown key; did you mean steps?",
            "override 'trian.steps=5': trian: unknown key; did you mean train?",
        ]
        assert len(lines) == len(expected)
        for line, start in zip(lines, expected, strict=True):
            assert line.startswith(start)

    def test_sections_that_share_an_anchor_change_separately(self, tmp_path: Path) -> None:
        path = tmp_path / "r.yaml"
        path.write_text(
            "name: a\ndata: {train: &t {tsv: a}, valid: *t, test: *t}\nmodel: {pretrained: b}\ntrain: {steps: 1}\n"
        )
        data = load_recipe(path, ["data.test.tsv=c"]).data
        assert (data.train, data.valid, data.test) == (TsvCorpus(tsv="a"), TsvCorpus(tsv="a"), TsvCorpus(tsv="c"))

    def test_rules_apply_to_overrides(self, file: Path) -> None:
        with pytest.raises(RecipeError, match="override 'l0drop.target_sparsity=0.5': l0drop.target_sparsity: "):
            load_recipe(file, ["l0drop.target_sparsity=0.5"])
        recipe = load_recipe(file, ["l0drop.target_sparsity=0.5", "l0drop.lambda_=null"])
        assert recipe.l0drop == L0Drop(target_sparsity=0.5)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
positive = st.floats(min_value=0, exclude_min=True, max_value=1e38)


@settings(max_examples=30, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "name": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,9}", fullmatch=True),
            "about": st.text() | st.sampled_from(["3e-4", "3e-4 a", "null", "yes", "1_0", " a\n b \n", "- a: 'b'\n"]),
            "seed": st.integers(min_value=0, max_value=2**32 - 1),
            "train.learning_rate": positive,
            "train.clip": st.none() | positive,
            "train.adam_betas": st.tuples(*[st.floats(min_value=0, max_value=1, exclude_max=True)] * 2),
            "train.report_to": st.lists(st.text(min_size=1), max_size=2),
            "data.train": st.builds(TsvCorpus, tsv=st.text(min_size=1), source_column=st.just(3))
            | st.builds(TextCorpus, source=st.text(min_size=1), target=st.text(min_size=1)),
            "data.source_prefix": st.text(),
            "l0drop": st.builds(
                L0Drop,
                lambda_=st.floats(min_value=0, max_value=1e38),
                start=st.none() | st.floats(min_value=-1e38, max_value=1e38),
                gate_args=st.dictionaries(st.text(), json_values, max_size=3),
                always_keep=st.lists(st.integers(min_value=0) | st.text(min_size=1), max_size=3).map(tuple),
            ),
        },
    )
)
def test_a_written_recipe_reads_back_equal(changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    recipe = accepted(SCRATCH, changes)
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8", newline="")
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    "override",
    ["train.steps=1e30", f"train.steps={10**30}", "train.steps=-1", "train.steps=.inf", "train.steps=.nan",
     "train.steps=2.5", "train.steps=[1]", "train.steps={}", "train.batch_tokens=-5", "train.batch_tokens=1e30",
     "seed=1e30", "seed=-1", "model.transformer.encoder_layers=10000", "model.transformer.d_model=1e9",
     "model.transformer.positions=1e12", "tokenizer.vocab_size=1e30", "evaluate.beams=1e30", "evaluate.sentences=1e30",
     "train.learning_rate=1e400", "train.learning_rate=1e300", "data.max_source=1e30"],
)  # fmt: skip
def test_absurd_sizes_are_refused(override: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(SCRATCH))
    with pytest.raises(RecipeError) as error:
        load_recipe(file, [override])
    assert str(error.value).startswith(f"override {override!r}: {override.split('=')[0]}: ")
    assert "\n" not in str(error.value)


def test_whole_floats_are_counts(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(SCRATCH))
    assert load_recipe(file, ["train.steps=2.0"]).train.steps == 2


@pytest.mark.parametrize("text", ["[" * 5_000, "a: " + "{b: " * 3_000 + "1" + "}" * 3_000])
def test_deep_yaml_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=r"recipe\.yaml: not a recipe: lists or sections are nested too deeply"):
        load_recipe(file)
    file.write_text(yaml.safe_dump(SCRATCH))
    with pytest.raises(RecipeError, match="nested too deeply"):
        load_recipe(file, [f"data={text}"])
