"""Tokenizers and models as a recipe describes them, and what does not fit together."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import NllbTokenizer

from l0drop.data.tokenizer import fingerprint, train_tokenizer
from l0drop.recipe import parse_recipe
from l0drop.training.assemble import build_model, build_tokenizers, new_transformer, split_text
from l0drop.training.run import prepare
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
    widest = (6 / (32 + 64)) ** 0.5  # of Xavier's uniform distribution
    for number, layer in enumerate(model.get_encoder().layers, 1):
        expected = widest / number**0.5 if scaled else widest
        assert float(layer.fc1.weight.detach().abs().max()) == pytest.approx(expected, rel=0.02)
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(32**-0.5, rel=0.05)


@pytest.mark.parametrize("shared", [True, False])
def test_tokenizers_of_the_other_kind_are_not_taken_for_the_runs(shared, tmp_path):
    other = parse_recipe(tiny.recipe(tmp_path, tokenizer={"vocab_size": 60, "shared": not shared}), "test")
    build_tokenizers(other, tmp_path / "run", silent)
    assert build_tokenizers(other, tmp_path / "run", silent).shared == (not shared)
    recipe = parse_recipe(tiny.recipe(tmp_path, tokenizer={"vocab_size": 60, "shared": shared}), "test")
    with pytest.raises(ValueError, match=rf"run: .* \(tokenizer.shared: {str(shared).lower()}\)"):
        build_tokenizers(recipe, tmp_path / "run", silent)


def test_a_start_with_separate_vocabularies_brings_both(tmp_path):
    base = untrained(tmp_path / "base", {"vocab_size": 60, "shared": False})
    recipe = parse_recipe(tiny.sparse(tmp_path, str(base)), "test")
    for _ in ("copied", "found"):
        assert not build_tokenizers(recipe, tmp_path / "run", silent).shared


# --- teachers ---------------------------------------------------------------------------------------------------------


def silent(text):
    pass


def untrained(folder, tokenizer=None, reverse=False, positions=64):
    """A run folder with a model that was never trained; `reverse`: of the same sizes, but with another tokenizer."""
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


def taught(folder, base, teacher, targets="references", weight=1.0, **length):
    """The model of a recipe with a teacher, and its tokenizers; the teacher's outputs are begun where it has any."""
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
@pytest.mark.parametrize("place", ["run", "model"])
def test_a_teacher_of_another_vocabulary_is_refused(way, other, place, tmp_path):
    base = untrained(tmp_path / "base")
    teacher = untrained(tmp_path / "teacher", **other)
    if place == "model":  # as Hugging Face saves one
        shutil.copytree(teacher / "tokenizer", teacher / "model", dirs_exist_ok=True)
        teacher = teacher / "model"
    with pytest.raises(ValueError, match=rf"^train.teacher.model: {teacher} and student .* source vocabularies"):
        taught(tmp_path, base, teacher, **way)


def test_a_teacher_of_another_target_vocabulary_is_refused(tmp_path):
    base = untrained(tmp_path / "base", {"vocab_size": 60, "shared": False})
    teacher = shutil.copytree(base, tmp_path / "teacher")
    shutil.rmtree(teacher / "tokenizer_target")
    shutil.copytree(teacher / "tokenizer", teacher / "tokenizer_target")
    with pytest.raises(ValueError, match="^train.teacher.model: .* target vocabularies"):
        taught(tmp_path, base, teacher)


def test_a_teacher_without_a_tokenizer_needs_as_many_rows(tmp_path):
    base = untrained(tmp_path / "base")
    teacher = untrained(tmp_path / "teacher", {"vocab_size": 80})
    shutil.rmtree(teacher / "tokenizer")
    with pytest.raises(ValueError, match=rf"^train.teacher.model: {teacher} has 80 .* {base} 60"):
        taught(tmp_path, base, teacher)


def test_a_teacher_with_too_few_positions_is_refused(tmp_path):
    base, teacher = untrained(tmp_path / "base", positions=80), untrained(tmp_path / "teacher", positions=64)
    with pytest.raises(ValueError, match=f"data.max_source: 65 is more than the 64 positions of {teacher}"):
        taught(tmp_path, base, teacher, max_source=65)


@WAYS
@pytest.mark.parametrize("shared", [True, False])
def test_a_teacher_of_the_same_vocabulary_teaches(way, shared, tmp_path):
    base = untrained(tmp_path / "base", {"vocab_size": 60, "shared": shared})
    saved = tmp_path / "saved"
    shutil.copytree(base / "model", saved)
    pair = build_tokenizers(parse_recipe(tiny.sparse(tmp_path, str(base)), "test"), base, silent)
    pair.source("padded", padding="max_length", max_length=9)  # calls leave traces in what is saved
    pair.source.save_pretrained(saved)
    if not shared:
        pair.target.save_pretrained(saved / "tokenizer_target")
    for teacher in (base, base / "model", saved, "init"):  # of these, the second has no tokenizer beside it
        _, model = taught(tmp_path, base, teacher, **way)
        assert (model is not None) == (way["weight"] > 0)


def test_a_checkpoint_that_was_saved_again_for_another_language_teaches(tmp_path):
    tokenizer = NllbTokenizer(src_lang="eng_Latn")
    model = folders.resized("m2m100", tokenizer)
    start, before = folders.saved(model, tokenizer, tmp_path / "start"), fingerprint(tokenizer)
    tokenizer.src_lang = "deu_Latn"
    teacher = folders.saved(model, tokenizer, tmp_path / "teacher")
    assert fingerprint(tokenizer) != before
    values = tiny.sparse(tmp_path, "", train={"teacher": {"model": str(teacher)}})
    recipe = parse_recipe({**values, "model": {"pretrained": str(start)}}, "test")
    _, found = build_model(recipe, build_tokenizers(recipe, tmp_path / "run", silent))
    assert found is not None
