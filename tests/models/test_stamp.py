"""Settings in config.json that were changed after a model was saved are noticed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from l0drop import L0DropConfig, sparsify
from l0drop.decoding.folder import load_model
from l0drop.models.stamp import read_stamp
from tests.models import zoo


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "l0drop": {**stored["l0drop"], **changes}}))


@pytest.mark.parametrize("shard", ["1GB", "20KB"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gating": "mask"}, "gating is 'mask', but the model was saved with 'zero'"),
        ({"epsilon": 0.3}, "epsilon is 0.3, but the model was saved with 0.1"),
        ({"always_keep": [4]}, r"always_keep is \[4\], but"),
        ({"gate_args": {"normalize": True}}, "gate_args is"),
        ({"gate": "norm"}, "gate is 'norm', but the model was saved with 'learned'"),
    ],
    ids=str,
)
def test_edited_settings_are_refused(changes: dict[str, Any], message: str, shard: str, tmp_path: Path) -> None:
    model = zoo.spread_gates(sparsify(zoo.build("marian")))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    edit(tmp_path, **changes)
    for load in (AutoModelForSeq2SeqLM.from_pretrained, lambda path: load_model(str(path), path, "auto")):
        with pytest.raises(ValueError, match=rf"config\.json: was changed after the model was saved \({message}"):
            load(tmp_path)


def test_settings_that_do_not_change_the_output_may_be_edited(tmp_path: Path) -> None:
    sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.4)).save_pretrained(tmp_path)
    edit(tmp_path, target_sparsity=0.5, enabled=False)
    assert not AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.l0drop.enabled


def test_removed_settings_and_a_plain_model_type_are_noticed(tmp_path: Path) -> None:
    sparsify(zoo.build("marian"), L0DropConfig(gating="mask", gate="random")).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stored, "model_type": "marian"}))
    with pytest.raises(ValueError, match="its model_type has no gates, but the model was saved with gates"):
        load_model(str(tmp_path), tmp_path, "auto")
    del stored["l0drop"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="gating is 'zero', but the model was saved with 'mask'"):
        load_model(str(tmp_path), tmp_path, "auto")


def test_a_folder_without_a_stamp_loads(tmp_path: Path) -> None:
    model = zoo.spread_gates(sparsify(zoo.build("marian")))
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    with safe_open(file, "pt") as opened:
        assert opened.metadata()["format"] == "pt"
    save_file(load_file(file), file, metadata={"format": "pt"})
    assert read_stamp(tmp_path) is None
    assert torch.equal(load_model(str(tmp_path), tmp_path, "auto").gate.weight, model.gate.weight)  # type: ignore[union-attr,arg-type]


def test_saving_again_replaces_the_stamp_and_leaves_no_other_file(tmp_path: Path) -> None:
    sparsify(zoo.build("marian")).save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    sparsify(zoo.build("marian"), L0DropConfig(gating="mask")).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.l0drop.gating == "mask"
    sparsify(zoo.build("marian")).export(tmp_path)
    assert read_stamp(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "value"), [("activation_function", "gelu"), ("encoder_attention_heads", 2), ("pad_token_id", 5)]
)
def test_edited_fields_of_the_base_model_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    sparsify(zoo.build("marian")).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    assert stored[name] != value
    for edited in ({**stored, name: value}, {key: old for key, old in stored.items() if key != name}):
        file.write_text(json.dumps(edited))
        with pytest.raises(ValueError, match=rf"config\.json: was changed after the model was saved \({name} is "):
            AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
