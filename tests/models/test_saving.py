"""Saving and loading: the same tokens, custom gates, the model card, export of the base model."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from l0drop import Gate, Gates, L0DropConfig, register_gate, sparsify
from l0drop.core.gates import LearnedGate
from l0drop.data.tokenizer import train_tokenizer
from l0drop.models.sparsify import sparse_class
from tests.models import zoo


@register_gate("test-short-words")
class EveryIdMultiple(Gate):
    """Keeps tokens whose id is a multiple of `step`, with a learned gate value."""

    def __init__(self, step: int = 2) -> None:
        super().__init__()
        self.step = step
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates(((input_ids % self.step) == 0) * mask * self.scale.clamp(0, 1))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_the_same_tokens_after_saving_and_loading(family: str, tmp_path: Path) -> None:
    batch = zoo.ragged_batch()
    config = L0DropConfig(gating="weight", target_sparsity=0.4, always_keep=(5, 6), beta=0.5)
    model = zoo.spread_gates(sparsify(zoo.build(family), config))
    model.save_pretrained(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert "model.safetensors" in files
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in files)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config.l0drop == config
    assert json.loads((tmp_path / "config.json").read_text())["l0drop"]["format"] == 1
    assert torch.equal(loaded.gate.weight, model.gate.weight)
    arguments = {"num_beams": 3, "max_new_tokens": 10}
    assert torch.equal(loaded.generate(**batch, **arguments), model.generate(**batch, **arguments))
    assert not loaded.training


def test_a_registered_gate_is_found_again_with_its_arguments(tmp_path: Path) -> None:
    batch = zoo.ragged_batch()
    replaced = sparsify(zoo.build("marian"))
    replaced.gate = EveryIdMultiple(step=3)
    by_config = sparsify(zoo.build("marian"), L0DropConfig(gate="test-short-words", gate_args={"step": 3}))
    for name, model in (("replaced", replaced), ("config", by_config)):
        with torch.no_grad():
            model.gate.scale.fill_(0.25)
        model.save_pretrained(tmp_path / name)
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name)
        assert isinstance(loaded.gate, EveryIdMultiple)
        assert loaded.gate.step == 3
        assert loaded.gate.scale.item() == 0.25
        assert torch.equal(loaded.generate(**batch, max_new_tokens=8), model.generate(**batch, max_new_tokens=8))


def test_an_unregistered_gate_is_refused_when_saving_and_when_loading(tmp_path: Path) -> None:
    class Unknown(Gate):
        pass

    model = sparsify(zoo.build("marian"))
    model.gate = Unknown()
    with pytest.raises(ValueError, match="Unknown is not registered"):
        model.save_pretrained(tmp_path)
    good = sparsify(zoo.build("marian"))
    good.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    stored["l0drop"]["gate"] = "from-elsewhere"
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="no gate is registered as 'from-elsewhere'"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_gate_arguments_must_be_json(tmp_path: Path) -> None:
    model = sparsify(zoo.build("marian"))
    model.gate = EveryIdMultiple(step=torch.tensor(3))
    with pytest.raises(ValueError, match=r"gate_args: .* plain JSON"):
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["marian", "bart", "t5", "led"])
def test_a_plain_checkpoint_loads_into_the_sparse_class_and_starts_open(family: str, tmp_path: Path) -> None:
    base, batch = zoo.build(family), zoo.ragged_batch()
    base.save_pretrained(tmp_path)
    model = sparse_class(type(base)).from_pretrained(tmp_path)
    assert torch.equal(model.gate.weight, torch.zeros(zoo.WIDTH))
    assert all(float(e.gates.min()) == 1 for e in model.explain(**batch))
    assert torch.equal(model.generate(**batch, max_new_tokens=8), base.generate(**batch, max_new_tokens=8))


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_export_writes_a_plain_checkpoint(family: str, tmp_path: Path) -> None:
    base, batch = zoo.build(family), zoo.ragged_batch()
    model = zoo.spread_gates(sparsify(base))
    model.export(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert "l0drop" not in text
    assert AutoConfig.from_pretrained(tmp_path).model_type == base.config.model_type
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(plain) is type(base)
    labels = batch["input_ids"][:, :5].contiguous()
    assert torch.equal(plain(**batch, labels=labels).logits, base(**batch, labels=labels).logits)
    assert torch.equal(plain.generate(**batch, max_new_tokens=8), base.generate(**batch, max_new_tokens=8))


def test_low_precision_loading_keeps_the_gate_in_float32(tmp_path: Path) -> None:
    zoo.spread_gates(sparsify(zoo.build("marian"))).save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float16):
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
        assert model.dtype == dtype
        assert model.gate.weight.dtype == torch.float32


def test_a_config_of_another_format_is_refused(tmp_path: Path) -> None:
    sparsify(zoo.build("marian")).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"format": 99}, "l0drop.format: .* reads version 1"),
        ({"gaiting": 1}, "unknown field gaiting"),
    ):
        broken = {**stored, "l0drop": {**stored["l0drop"], **change}}
        (tmp_path / "config.json").write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=message):
            AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_layerwise_models_save_their_inner_gates(tmp_path: Path) -> None:
    model = zoo.spread_gates(sparsify(zoo.build("bart"), L0DropConfig(gating="mask", layerwise=True)), 0.3)
    model.save_pretrained(tmp_path)
    batch = zoo.ragged_batch()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**batch, max_new_tokens=8), model.generate(**batch, max_new_tokens=8))
    assert [e.kept for e in loaded.explain(**batch)] == [e.kept for e in model.explain(**batch)]
    assert any(len(e.kept) < len(e.gates) for e in model.explain(**batch))


def test_a_replaced_learned_gate_keeps_its_settings(tmp_path: Path) -> None:
    batch = zoo.ragged_batch()
    for name, model in (
        ("t5", sparsify(zoo.build("t5"))),
        ("epsilon", sparsify(zoo.build("marian"), L0DropConfig(epsilon=0.3))),
    ):
        model.gate = LearnedGate(zoo.WIDTH)
        zoo.spread_gates(model)
        model.save_pretrained(tmp_path / name)
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name)
        assert (loaded.gate.normalize, loaded.gate.epsilon) == (False, 0.1)
        assert [e.kept for e in loaded.explain(**batch)] == [e.kept for e in model.explain(**batch)]


@register_gate("test-inside")
class WithSubmodule(Gate):
    """A gate whose parameters are in a submodule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = torch.nn.Linear(width, 1)
        torch.nn.init.constant_(self.project.bias, 5.0)

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates(torch.sigmoid(self.project(encodings)).squeeze(-1) * mask)


def test_a_gate_starts_with_the_values_of_its_constructor(tmp_path: Path) -> None:
    base = zoo.build("marian")
    base.save_pretrained(tmp_path)
    config = L0DropConfig(gate="test-inside")
    for model in (
        sparsify(base, config),
        sparse_class(type(base))(sparsify(base, config).config),
        sparse_class(type(base)).from_pretrained(tmp_path, l0drop=config),
    ):
        assert model.gate.project.bias.item() == 5.0


def test_an_override_at_load_changes_only_the_fields_it_names(tmp_path: Path) -> None:
    config = L0DropConfig(epsilon=0.3, always_keep=(5,), lambda_=0.7)
    sparsify(zoo.build("marian"), config).save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, l0drop={"enabled": False}).config.l0drop
    assert (loaded.enabled, loaded.epsilon, loaded.always_keep, loaded.lambda_) == (False, 0.3, (5,), 0.7)


def test_models_share_weights_and_nothing_else() -> None:
    config, base = L0DropConfig(), zoo.build("marian")
    one, other = sparsify(base, config), sparsify(base, config)
    one.generation_config.num_beams = 7
    one.config.l0drop.enabled = False
    assert base.generation_config.num_beams != 7
    assert other.config.l0drop.enabled
    assert config.enabled


def card_of(folder: Path) -> tuple[dict[str, object], str]:
    """The header and the text of a model card."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    before, header, body = text.split("---\n", 2)
    assert before == ""
    return yaml.safe_load(header), body


def test_a_model_card_says_what_the_model_is_and_how_to_load_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_tokenizer(["a small house", "the house is small ."] * 20, vocab_size=60).source
    base = zoo.build("marian")
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    base.config.update(ids)
    base.generation_config.update(**ids, max_new_tokens=4)
    model = zoo.spread_gates(sparsify(base, L0DropConfig(gating="mask", target_sparsity=0.4)), 0.43)
    result = model.calibrate([zoo.ragged_batch()])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    header, body = card_of(tmp_path)
    assert header == {"library_name": "l0drop", "tags": ["l0drop", "l0drop_marian"]}
    assert "`MarianMTModel` with a gate" in body
    assert "| gating | `mask` |\n| gate | `learned` |\n| target sparsity | 40.0% |\n" in body
    assert f"held-out text | {result.after:.1%} |" in body
    assert "https://arxiv.org/abs/2004.11854" in body
    assert "λ" not in body
    assert "import the module" not in body
    blocks = [block.split("```")[0] for block in body.split("```python\n")[1:]]
    namespaces: list[dict[str, object]] = [{}, {}]
    for block, namespace in zip(blocks, namespaces, strict=True):
        exec(block.replace("path/to/this/folder", tmp_path.as_posix()), namespace)
    assert type(namespaces[0]["model"]) is type(model)
    assert capsys.readouterr().out.count("[") == 1


def test_a_model_card_names_lambda_the_hub_and_a_custom_gate(tmp_path: Path) -> None:
    base = zoo.build("bart")
    base.config._name_or_path = "Helsinki-NLP/opus-mt-en-de"
    config = L0DropConfig(lambda_=0.7, gate="test-short-words")
    sparsify(base, config).save_pretrained(tmp_path)
    _, body = card_of(tmp_path)
    assert "([Helsinki-NLP/opus-mt-en-de](https://huggingface.co/Helsinki-NLP/opus-mt-en-de))" in body
    assert "| weight of the penalty, λ | 0.7 |" in body
    assert "import the module that registers its gate `test-short-words`" in body
    assert "%" not in body, "no sparsity was measured"


def test_a_model_card_is_never_overwritten_and_names_no_local_folder(tmp_path: Path) -> None:
    base, folder = zoo.build("marian"), tmp_path / "out" / "model"
    folder.mkdir(parents=True)
    base.config._name_or_path = str(folder)
    model = sparsify(base)
    model.save_pretrained(folder)
    assert str(tmp_path) not in (folder / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text("mine")
    model.save_pretrained(folder)
    assert (folder / "README.md").read_text() == "mine"
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other" / "README.md").exists()
