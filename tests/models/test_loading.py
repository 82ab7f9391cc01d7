"""Weights that do not belong to a model's config are refused when the model is loaded, and all legitimate ones pass."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from l0drop import L0DropConfig, sparsify
from l0drop.decoding.folder import load_model
from l0drop.models.sparsify import sparse_class
from tests.models import zoo


def saved(family: str, folder: Path, *, gated: bool = True, **config: Any) -> Path:
    model: Any = zoo.build(family)
    if gated:
        model = zoo.spread_gates(sparsify(model, L0DropConfig(**config)))
    model.save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def store(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder: Path, message: str, *, gated: bool = True) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load_model(str(folder), folder, "auto")
    assert str(folder) in str(error.value)
    if gated:
        with pytest.raises((ValueError, RuntimeError)):
            AutoModelForSeq2SeqLM.from_pretrained(folder)


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_saved_models_of_every_family_load(family: str, gated: bool, tmp_path: Path) -> None:
    folder = saved(family, tmp_path / "model", gated=gated)
    written = weights_of(folder)
    loaded = load_model(str(folder), folder, "auto").state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in written.items())
    again = tmp_path / "again"
    load_model(str(folder), folder, "auto").save_pretrained(again, max_shard_size="20KB")
    assert len(list(again.glob("*.safetensors"))) > 1
    load_model(str(again), again, "bfloat16")
    AutoModelForSeq2SeqLM.from_pretrained(again)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_stored_copies_of_tied_weights_and_position_tables_are_accepted(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path, gated=False)
    model = zoo.build(family)
    everything = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    positions = {
        name: tensor.clone() for name, tensor in model.named_buffers() if "positions" in name and tensor.dim() == 2
    }
    leftovers = {"model.encoder.version": torch.ones(1)} if family == "bart" else {}
    store(folder, {**everything, **positions, **leftovers})
    load_model(str(folder), folder, "auto")


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_every_deleted_weight_is_missed(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path, layerwise=family == "marian", gating="mask")
    weights = weights_of(folder)
    assert "gate.weight" in weights
    assert family == "t5" or "inner_gates.0.weight" in weights
    for name in weights.keys() - {"final_logits_bias"}:  # published checkpoints may lack it: it is 0
        store(folder, {key: weight for key, weight in weights.items() if key != name})
        with pytest.raises(ValueError, match=rf"missing in the weights file: .*{name}"):
            load_model(str(folder), folder, "auto")


@pytest.mark.parametrize("family", zoo.FAMILIES)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_a_deleted_layer_is_missed_in_every_family(family: str, gated: bool, tmp_path: Path) -> None:
    folder = saved(family, tmp_path, gated=gated)
    last = "block.1." if family.endswith("t5") else "layers.1."
    store(folder, {name: weight for name, weight in weights_of(folder).items() if last not in name})
    refused(folder, rf"missing in the weights file: .*{last}.* and \d+ more", gated=gated)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_layers": 3}, r"missing in the weights file: model\.encoder\.layers\.2\."),
        ({"encoder_layers": 1}, r"in the weights file but not in the model: model\.encoder\.layers\.1\."),
        ({"model_type": "l0drop_bart"}, r"missing in the weights file: .*embed_positions"),
        ({"d_model": 16}, r"of another shape: .*\[32\] instead of \[16\]"),
        ({"decoder_ffn_dim": 32}, r"of another shape: .*fc1\.bias \[64\] instead of \[32\]"),
    ],
    ids=str,
)
def test_a_config_that_does_not_belong_to_the_weights_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = saved("marian", tmp_path)
    store(folder, weights_of(folder))  # without the stamp, which would notice the change first
    change_config(folder, **changes)
    refused(folder, message)


def test_a_gated_model_is_not_decoded_without_its_gate(tmp_path: Path) -> None:
    folder = saved("marian", tmp_path)
    change_config(folder, model_type="marian")
    refused(folder, r"not in the model: gate\.bias, gate\.moved, gate\.weight", gated=False)


def test_a_plain_checkpoint_starts_training_and_is_not_decoded_with_a_new_gate(tmp_path: Path) -> None:
    folder = saved("marian", tmp_path, gated=False)
    model = sparse_class(zoo._FAMILIES["marian"][0]).from_pretrained(folder)
    assert torch.equal(model.gate.weight, torch.zeros(zoo.WIDTH))
    change_config(folder, model_type="l0drop_marian")
    with pytest.raises(ValueError, match=r"missing in the weights file: gate\.bias"):
        load_model(str(folder), folder, "auto")


def test_the_caller_may_ask_for_another_gate_or_for_the_loading_info(tmp_path: Path) -> None:
    folder = saved("marian", tmp_path)
    AutoModelForSeq2SeqLM.from_pretrained(folder, l0drop={"gate": "random", "gate_args": {"rate": 0.3}})
    weights = weights_of(folder)
    del weights["gate.weight"]
    store(folder, weights)
    _, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert info["missing_keys"] == {"gate.weight"}
    with pytest.raises(ValueError, match=r"gate\.weight"):
        AutoModelForSeq2SeqLM.from_pretrained(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    folder = saved("marian", tmp_path)
    weights = weights_of(folder)
    for name in ("model.decoder.layers.1.fc2.weight", "gate.bias"):
        store(folder, {**weights, name: weights[name].clone().fill_(value)})
        with pytest.raises(ValueError, match=rf"^{folder}: the weight {name} has NaN or infinite values in float32"):
            load_model(str(folder), folder, "auto")


def test_a_bias_that_excludes_tokens_is_accepted_and_overflow_names_the_dtype(tmp_path: Path) -> None:
    folder = saved("marian", tmp_path)
    weights = weights_of(folder)
    weights["final_logits_bias"][0, 3] = -torch.inf
    weights["model.decoder.layers.1.fc2.weight"][0, 0] = 1e6
    store(folder, weights)
    load_model(str(folder), folder, "auto")
    with pytest.raises(ValueError, match=r"fc2\.weight has NaN or infinite values in float16; .* dtype float32$"):
        load_model(str(folder), folder, torch.float16)


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_weights_stored_as_whole_numbers_are_refused(gated: bool, tmp_path: Path) -> None:
    folder = saved("marian", tmp_path / "model", gated=gated)
    weights = weights_of(folder)
    name = "model.decoder.layers.0.fc1.weight"
    store(folder, {**weights, name: weights[name].view(torch.int32)})
    with pytest.raises(ValueError, match=f"{name} is stored as I32"):
        load_model(str(folder), folder, "auto")
