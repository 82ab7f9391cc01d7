"""Imports: the library imports torch and transformers but nothing optional; a command imports only what it needs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import l0drop
from l0drop.extras import EXTRAS

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def imported_by(*arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a Python process imports, and the finished process."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)), done


@pytest.mark.parametrize("options", [[], ["translate"], ["bench", "decode"]])
def test_help_imports_neither_torch_nor_transformers(options: list[str]) -> None:
    modules, done = imported_by("-m", "l0drop", *options, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert "l0drop.app.cli" in modules
    assert not {"torch", "transformers", "numpy", "matplotlib", "sacrebleu", "l0drop.recipe"} & modules


def test_help_takes_less_than_a_second() -> None:
    before = os.times()
    subprocess.run([sys.executable, "-m", "l0drop", "--help"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1


def test_a_recipe_is_checked_before_torch_is_imported(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("nmae: typo\n")
    modules, done = imported_by("-m", "l0drop", "train", str(recipe))
    assert done.returncode == 2
    assert "nmae" in done.stderr
    assert not {"torch", "transformers"} & modules


def test_the_installed_command_does_not_import_torch_for_help() -> None:
    script = Path(sys.executable).with_name("l0drop")
    if not script.exists():
        pytest.skip("l0drop is not installed next to this Python")
    modules, done = imported_by(str(script), "--help")
    assert done.returncode == 0
    assert "torch" not in modules


BLAMED = """
import json
import sys
from importlib.machinery import PathFinder

import torch
import transformers

imports = []  # which file imports which optional package first


class Watched(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        imports.append((name.partition(".")[0], frame.f_globals.get("__name__", "") if frame else ""))
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Watched
import l0drop

for name in l0drop.__all__:
    getattr(l0drop, name)
print(json.dumps([imports, sorted(sys.modules)]))
"""


def test_importing_the_library_imports_nothing_optional(tmp_path: Path) -> None:
    """Except packages that transformers, torch and huggingface_hub import themselves if they are installed."""
    (tmp_path / "blamed.py").write_text(BLAMED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "blamed.py")], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imports, modules = json.loads(done.stdout)
    assert {"torch", "transformers", "l0drop.decoding.text"} <= set(modules)
    optional = {*EXTRAS, "l0drop_tagger"} - {"filelock"}  # which decoding uses, and torch requires
    assert not [(package, by) for package, by in imports if package in optional and by.startswith("l0drop")]
    assert not {"matplotlib", "datasets", "ctranslate2", "sacrebleu", "entmax", "tensorboard"} & set(modules)
    assert not {"l0drop.recipe", "l0drop.data.metrics", "l0drop.report", "l0drop.study"} & set(modules)


KNOWN = """
import l0drop
from transformers import AutoConfig, AutoModelForSeq2SeqLM
config = AutoConfig.for_model("l0drop_marian", vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=0,
    decoder_start_token_id=0, l0drop={"lambda_": 0.1})
print(type(AutoModelForSeq2SeqLM.from_config(config)).__name__)
"""


def test_importing_the_library_registers_the_models_in_a_program_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(KNOWN)
    done = subprocess.run(
        [sys.executable, "-m", "program", "l0drop"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["L0DropMarianMTModel"], done.stderr


def test_every_public_name_can_be_imported() -> None:
    assert sorted(l0drop._MODULES) == l0drop.__all__
    for name in l0drop.__all__:
        assert getattr(l0drop, name).__module__ == f"l0drop.{l0drop._MODULES[name]}"
    assert {"SteerCallback", "SteeredLambda"} < set(l0drop.__all__)
    with pytest.raises(AttributeError, match="'sparsified'"):
        l0drop.sparsified  # noqa: B018


def test_dir_lists_public_names_only() -> None:
    import l0drop.core  # a subpackage, once imported, is an attribute too

    assert dir(l0drop) == sorted(["__version__", *l0drop.__all__])
