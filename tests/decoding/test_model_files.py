"""A model folder with a broken JSON file is refused with the file and the field, or decodes as before."""

import json
import shutil
from pathlib import Path

import pytest
import transformers as hf

from l0drop import load
from tests.decoding import folders
from tests.models import zoo
from tests.mutations import KINDS, fields, mutated

FILES = ("config.json", "generation_config.json", "tokenizer_config.json")
SETTINGS = {"max_new_tokens": 6, "num_beams": 2}


@pytest.fixture(scope="module")
def good(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.sparse(baseline, tmp_path_factory.mktemp("good") / "model")


@pytest.fixture(scope="module")
def expected(good: Path) -> list[str]:
    return outputs(good)


def outputs(folder: Path) -> list[str]:
    return [result.text for result in load(folder).generate(folders.SENTENCES, **SETTINGS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_every_broken_field_is_named_or_harmless(
    name: str, kind: str, good: Path, expected: list[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(good, tmp_path / "model")
    content = json.loads((good / name).read_text())
    wrong = []
    for field in fields(content):
        (folder / name).write_text(json.dumps(mutated(content, field, kind)))
        try:
            if outputs(folder) != expected:
                wrong.append(f"{'.'.join(field)}: other outputs without an error")
        except ValueError as error:
            said = str(error)
            named = field[-1] in said or "do not belong together" in said
            if "\n" in said or (name not in said) or not named:
                wrong.append(f"{'.'.join(field)}: {said}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "NaN", "[" * 100_000, "\udcff"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_object_is_refused(name: str, content: str, good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "model")
    (folder / name).write_text(content, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"not JSON|expected a JSON object") as error:
        load(folder)
    assert str(folder / name) in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("d_model", 10**9), ("d_model", 0), ("encoder_layers", 10_000), ("decoder_ffn_dim", -64), ("vocab_size", 10**9),
     ("max_position_embeddings", 10**12), ("encoder_attention_heads", 3), ("activation_function", "nonsense"),
     ("dropout", 1.5), ("dtype", "x")],
)  # fmt: skip
def test_absurd_sizes_of_a_plain_model_are_refused(field: str, value: object, baseline: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(baseline / "model", tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, field: value}))
    with pytest.raises(ValueError, match=rf"config\.json: {field}: .*; restore the file"):
        load(folder)


@pytest.mark.parametrize("family", sorted(zoo._FAMILIES))
def test_every_family_passes_the_checks(family: str, baseline: Path, tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(baseline / "model")
    folder = folders.saved(folders.resized(family, tokenizer), tokenizer, tmp_path / "model")
    assert len(load(folder).generate(folders.SENTENCES, **SETTINGS)) == len(folders.SENTENCES)
