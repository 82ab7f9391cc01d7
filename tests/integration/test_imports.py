"""The public names, and the modules that the library and the command line import."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import l0drop

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def imported_by(*arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a Python process imports, and how it ends."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)), done


@pytest.mark.parametrize("options", [[], ["translate"], ["bench", "decode"]])
def test_help_waits_for_nothing(options: list[str]) -> None:
    modules, done = imported_by("-m", "l0drop", *options, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert "l0drop.app.cli" in modules
    assert not {"torch", "transformers", "numpy"} & modules


def test_a_mistake_in_a_recipe_is_told_at_once(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("nmae: typo\n")
    modules, done = imported_by("-m", "l0drop", "train", str(recipe))
    assert done.returncode == 2
    assert "nmae" in done.stderr
    assert not {"torch", "transformers"} & modules


def test_the_installed_command_imports_as_little() -> None:
    script = Path(sys.executable).with_name("l0drop")
    if not script.exists():
        pytest.skip("l0drop is not installed beside this Python")
    modules, done = imported_by(str(script), "--help")
    assert done.returncode == 0
    assert "torch" not in modules


KNOWN = """
import l0drop
from transformers import AutoConfig, AutoModelForSeq2SeqLM
config = AutoConfig.for_model("l0drop_marian", vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=0,
    decoder_start_token_id=0, l0drop={"lambda_": 0.1})
print(type(AutoModelForSeq2SeqLM.from_config(config)).__name__)
"""


def test_another_program_has_the_models_known_by_importing_it(tmp_path: Path) -> None:
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
