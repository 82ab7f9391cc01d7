"""Tokenizers and models from a recipe, and errors where they do not fit together."""

import io
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import NllbTokenizer

from l0drop.data.tokenizer import fingerprint, train_tokenizer
from l0drop.decoding.text import load
from l0drop.recipe import parse_recipe
from l0drop.training.assemble import build_model, new_transformer
from l0drop.training.bars import Bars
from l0drop.training.corpora import build_tokenizers, split_text
from l0drop.training.run import prepare, train
from tests.decoding import folders
from tests.training import tiny


@pytest.mark.parametrize(("layers", "asked", "scaled"), [(4, None, True), (4, False, False), (2, None, False)])
def test_deep_models_start_with_weights_scaled_by_depth(layers, asked, scaled, tmp_path):
    sizes = {"d_model": 32, "encoder_layers": layers, "decoder_layers": 1, "heads": 2, "ffn": 64, "positions": 64}
    sizes |= {} if asked is None else {"depth_scaled": asked}
    recipe = parse_recipe(tiny.recipe(tmp_path, model={"transformer": sizes}), "test")
    _, tokenizers, _ = prepare(recipe, tmp_path / "runs")
    torch.manual_seed(1)
    model = new_transformer(recipe, tokenizers)
    widest = (6 / (32 + 64)) ** 0.5  # the bound of Xavier's uniform distribution
    for number, layer in enumerate(model.get_encoder().layers, 1):
        expected = widest / number**0.5 if scaled else widest
        assert float(layer.fc1.weight.detach().abs().max()) == pytest.approx(expected, rel=0.02)
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(32**-0.5, rel=0.05)


@pytest.mark.parametrize("shared", [True, False])
def test_stored_tokenizers_of_the_other_kind_are_refused(shared, tmp_path):
    other = parse_recipe(tiny.recipe(tmp_path, tokenizer={"vocab_size": 60, "shared": not shared}), "test")
    build_tokenizers(other, tmp_path / "run", silent)
    assert build_tokenizers(other, tmp_path / "run", silent).shared == (not shared)
    recipe = parse_recipe(tiny.recipe(tmp_path, tokenizer={"vocab_size": 60, "shared": shared}), "test")
    with pytest.raises(ValueError, match=rf"run: .* \(tokenizer.shared: {str(shared).lower()}\)"):
        build_tokenizers(recipe, tmp_path / "run", silent)


def test_separate_vocabularies_are_both_taken_from_the_start(tmp_path):
    base = untrained(tmp_path / "base", {"vocab_size": 60, "shared": False})
    recipe = parse_recipe(tiny.sparse(tmp_path, str(base)), "test")
    for _ in ("copied", "found"):
        assert not build_tokenizers(recipe, tmp_path / "run", silent).shared


# --- teachers ---------------------------------------------------------------------------------------------------------


QUIET = Console(quiet=True)


def silent(text):
    pass


def untrained(folder, tokenizer=None, reverse=False, positions=64):
    """A run folder with an untrained model; `reverse`: the same sizes, but another tokenizer."""
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "ffn": 64, "positions": positions}
    values = tiny.recipe(folder, tokenizer=tokenizer or {"vocab_size": 60}, model={"transformer": sizes})
    recipe = parse_recipe(values, "test")
    if reverse:
        lines = Path(values["data"]["train"]["source"]).read_text().splitlines()
        lines += Path(values["data"]["train"]["target"]).read_text().splitlines()
        train_tokenizer((line[::-1] for line in lines), vocab_size=60).save(folder)
    model = new_transformer(recipe, build_tokenizers(recipe, folder, silent))
    model.save_pretrained(folder / "model")
    return folder


def distilled(folder, base, teacher, targets="references", weight=1.0, **length):
    """The model and teacher of a recipe; with `targets="teacher"`, the teacher's first output is made too."""
    train = {"targets": targets, "teacher": {"model": str(teacher), "weight": weight, "max_new_tokens": 4}}
    values = tiny.sparse(folder, str(base), "student", train=train)
    values["data"] |= length
    recipe = parse_recipe(values, "test")
    tokenizers = build_tokenizers(recipe, folder / "student", silent)
    if targets == "teacher":
        next(iter(split_text(recipe, "train", tokenizers)))
    return build_model(recipe, tokenizers)


WAYS = pytest.mark.parametrize("way", [{"weight": 1.0}, {"weight": 0.0, "targets": "teacher"}])


@WAYS
@pytest.mark.parametrize("other", [{"tokenizer": {"vocab_size": 80}}, {"reverse": True}])
@pytest.mark.parametrize("kind", ["run", "model"])
def test_a_teacher_of_another_vocabulary_is_refused(way, other, kind, tmp_path):
    base = untrained(tmp_path / "base")
    teacher = untrained(tmp_path / "teacher", **other)
    if kind == "model":  # as Hugging Face saves one
        shutil.copytree(teacher / "tokenizer", teacher / "model", dirs_exist_ok=True)
        teacher = teacher / "model"
    with pytest.raises(ValueError, match=rf"^train.teacher.model: {teacher} and student .* source vocabularies"):
        distilled(tmp_path, base, teacher, **way)


def test_a_teacher_of_another_target_vocabulary_is_refused(tmp_path):
    base = untrained(tmp_path / "base", {"vocab_size": 60, "shared": False})
    teacher = shutil.copytree(base, tmp_path / "teacher")
    shutil.rmtree(teacher / "tokenizer_target")
    shutil.copytree(teacher / "tokenizer", teacher / "tokenizer_target")
    with pytest.raises(ValueError, match="^train.teacher.model: .* target vocabularies"):
        distilled(tmp_path, base, teacher)


def test_a_teacher_without_a_tokenizer_needs_the_same_number_of_embeddings(tmp_path):
    base = untrained(tmp_path / "base")
    teacher = untrained(tmp_path / "teacher", {"vocab_size": 80})
    shutil.rmtree(teacher / "tokenizer")
    with pytest.raises(ValueError, match=rf"^train.teacher.model: {teacher} has 80 .* {base} has 60"):
        distilled(tmp_path, base, teacher)


def test_a_teacher_with_too_few_positions_is_refused(tmp_path):
    base, teacher = untrained(tmp_path / "base", positions=80), untrained(tmp_path / "teacher", positions=64)
    with pytest.raises(ValueError, match=f"data.max_source: 65 is more than the 64 positions of {teacher}"):
        distilled(tmp_path, base, teacher, max_source=65)


@WAYS
@pytest.mark.parametrize("shared", [True, False])
def test_a_teacher_of_the_same_vocabulary_is_accepted(way, shared, tmp_path):
    base = untrained(tmp_path / "base", {"vocab_size": 60, "shared": shared})
    saved = tmp_path / "saved"
    shutil.copytree(base / "model", saved)
    pair = build_tokenizers(parse_recipe(tiny.sparse(tmp_path, str(base)), "test"), base, silent)
    pair.source("padded", padding="max_length", max_length=9)  # calls change the saved tokenizer
    pair.source.save_pretrained(saved)
    if not shared:
        pair.target.save_pretrained(saved / "tokenizer_target")
    for teacher in (base, base / "model", saved, "init"):  # the second has no tokenizer next to it
        _, model = distilled(tmp_path, base, teacher, **way)
        assert (model is not None) == (way["weight"] > 0)


def test_a_teacher_saved_with_another_language_is_accepted(tmp_path):
    tokenizer = NllbTokenizer(src_lang="eng_Latn")
    model = folders.resized("m2m100", tokenizer)
    start, before = folders.saved(model, tokenizer, tmp_path / "start"), fingerprint(tokenizer)
    tokenizer.src_lang = "deu_Latn"
    teacher = folders.saved(model, tokenizer, tmp_path / "teacher")
    assert fingerprint(tokenizer) != before
    values = tiny.sparse(tmp_path, "", train={"teacher": {"model": str(teacher)}})
    values["data"]["target_lang"] = "fra_Latn"
    recipe = parse_recipe({**values, "model": {"pretrained": str(start)}}, "test")
    _, found = build_model(recipe, build_tokenizers(recipe, tmp_path / "run", silent))
    assert found is not None


# --- languages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def nllb(tmp_path):
    """The folder of a multilingual model whose tokenizer has no target language."""
    text = "".join(tiny.WORDS) + "".join(tiny.WORDS.values())
    letters = {c: i for i, c in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁", *sorted(set(text))])}
    tokenizer = NllbTokenizer(vocab=letters, merges=[])
    return folders.saved(folders.resized("m2m100", tokenizer), tokenizer, tmp_path / "nllb")


def multilingual(tmp_path, nllb, **data):
    values = tiny.sparse(tmp_path, "x", train={"steps": 2, "save_every": 2, "eval_every": 2, "batch_tokens": 2000})
    values |= {"model": {"pretrained": str(nllb)}, "evaluate": {"beams": 2, "sentences": 4, "max_new_tokens": 8}}
    return {**values, "data": {**values["data"], "max_source": 48, "max_target": 48, **data}}


def test_targets_and_outputs_have_the_language_of_the_recipe(tmp_path, nllb):
    values = multilingual(tmp_path, nllb, target_lang="deu_Latn")
    recipe = parse_recipe(values, "test")
    folder, tokenizers, corpora = prepare(recipe, tmp_path / "runs")
    german, english = tokenizers.target.convert_tokens_to_ids(["deu_Latn", "eng_Latn"])
    examples = [corpora["test"][n] for n in range(4)]
    assert {int(example.target[0]) for example in examples} == {german}
    assert {int(example.source[0]) for example in examples} == {english}
    train(recipe, tmp_path / "runs", QUIET)
    loaded = load(folder)
    assert loaded.settings(None, {})["forced_bos_token_id"] == german
    outputs = (folder / "outputs" / "test.txt").read_text().splitlines()
    sources = Path(values["data"]["test"]["source"]).read_text().splitlines()
    assert [result.text.split() for result in loaded.generate(sources)] == [output.split() for output in outputs]


def test_a_multilingual_model_needs_a_target_language(tmp_path, nllb):
    with pytest.raises(ValueError, match="data.target_lang: is missing; .*nllb is multilingual"):
        build_tokenizers(parse_recipe(multilingual(tmp_path, nllb), "test"), tmp_path / "run", silent)
    for key in ("source_lang", "target_lang"):
        values = multilingual(tmp_path, nllb, **{"target_lang": "deu_Latn", key: "deu"})
        with pytest.raises(ValueError, match=f"data.{key}: 'deu' is not a language of this model"):
            build_tokenizers(parse_recipe(values, "test"), tmp_path / "run", silent)
    base = untrained(tmp_path / "base")
    plain = tiny.sparse(tmp_path, str(base))
    plain["data"]["target_lang"] = "deu_Latn"
    with pytest.raises(ValueError, match="data.target_lang: the tokenizer of .*base.* has no languages"):
        build_tokenizers(parse_recipe(plain, "test"), tmp_path / "run", silent)


def test_languages_are_taken_from_the_start_or_the_recipe(tmp_path, nllb):
    first = parse_recipe(multilingual(tmp_path, nllb, target_lang="deu_Latn"), "test")
    build_tokenizers(first, tmp_path / "first", silent)
    values = multilingual(tmp_path, nllb) | {"model": {"init": str(tmp_path / "first")}}
    assert build_tokenizers(parse_recipe(values, "test"), tmp_path / "second", silent).target.tgt_lang == "deu_Latn"
    values["data"]["target_lang"] = "fra_Latn"
    assert build_tokenizers(parse_recipe(values, "test"), tmp_path / "third", silent).target.tgt_lang == "fra_Latn"
    again = build_tokenizers(parse_recipe(values, "test"), tmp_path / "third", silent)
    assert (again.source.src_lang, again.target.tgt_lang) == ("eng_Latn", "fra_Latn")


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_start_has_its_own_tokenizer(tmp_path):
    base = untrained(tmp_path / "base")
    values = tiny.sparse(tmp_path, str(base)) | {"tokenizer": {"pretrained": str(base / "tokenizer")}}
    recipe = parse_recipe(values, "test")
    with pytest.raises(ValueError, match="tokenizer.pretrained: model.init has its own tokenizer; remove this key"):
        build_tokenizers(recipe, tmp_path / "run", silent)
    build_tokenizers(parse_recipe(tiny.sparse(tmp_path, str(base)), "test"), tmp_path / "run", silent)
    assert build_tokenizers(recipe, tmp_path / "run", silent), "an earlier run can still be opened"


def test_a_model_without_a_tokenizer_is_named(tmp_path, nllb):
    for file in nllb.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match="nllb: no tokenizer could be loaded"):
        build_tokenizers(
            parse_recipe(multilingual(tmp_path, nllb, target_lang="deu_Latn"), "test"), tmp_path / "run", silent
        )


def test_lengths_are_checked_against_each_side_before_training(tmp_path):
    base = untrained(tmp_path / "base")
    values = tiny.sparse(tmp_path, str(base))
    values["evaluate"]["max_new_tokens"] = 100
    recipe = parse_recipe(values, "test")
    tokenizers = build_tokenizers(recipe, tmp_path / "run", silent)
    with pytest.raises(ValueError, match="evaluate.max_new_tokens: 100 is more than the 64 positions of .* decoder"):
        build_model(recipe, tokenizers)
    led = folders.saved(folders.resized("led", tokenizers.source), tokenizers.source, tmp_path / "led")
    values = tiny.sparse(tmp_path, "x") | {"model": {"pretrained": str(led)}}
    values["data"]["max_target"] = 4096
    with pytest.raises(ValueError, match="data.max_target: 4096 is more than the .* positions of .*led's decoder"):
        build_model(parse_recipe(values, "test"), tokenizers)


def test_always_keep_needs_ids_of_the_vocabulary(tmp_path):
    base = untrained(tmp_path / "base")
    values = tiny.sparse(tmp_path, str(base), l0drop={"target_sparsity": 0.4, "always_keep": [99999]})
    recipe = parse_recipe(values, "test")
    with pytest.raises(ValueError, match="l0drop.always_keep: 99999 is not in the source vocabulary"):
        build_model(recipe, build_tokenizers(recipe, tmp_path / "run", silent))


def test_the_tokenizer_bar_counts_every_line(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path)
    values["data"]["train"] = tiny.write_text(tmp_path, "longer", 1234, 1)
    console = Console(file=io.StringIO(), width=80)
    build_tokenizers(parse_recipe(values, "test"), tmp_path / "run", lambda text: None, Bars(console))
    assert "1,234/1,234" in console.file.getvalue()  # type: ignore[attr-defined]
