"""Bad input gets an error that names the field and the remedy."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers import AutoModelForSeq2SeqLM

from l0drop import Gate, Gates, L0DropConfig, sparsify
from tests.models import zoo


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gating": "drop"}, "gating: expected one of zero, mask, weight, got 'drop'"),
        ({"epsilon": 0}, "epsilon: expected a positive number"),
        ({"epsilon": -0.1}, "epsilon: expected a positive number"),
        ({"beta": 0}, "beta: expected a positive number"),
        ({"lambda_": -0.1}, "lambda_: expected a number that is not negative"),
        ({"lambda_": "0.3"}, "lambda_: expected a number"),
        ({"lambda_": float("nan")}, "lambda_: expected a number"),
        ({"lambda_": 0.3, "target_sparsity": 0.5}, "lambda_ and target_sparsity: give one of them"),
        ({"target_sparsity": 1.0}, "target_sparsity: expected a share between 0 and 1"),
        ({"target_sparsity": 40}, "target_sparsity: expected a share between 0 and 1"),
        ({"penalty": "max"}, "penalty: expected mean or sum"),
        ({"start": "open"}, "start: expected a number or None"),
        ({"always_keep": ["the"]}, "always_keep: expected a list of token ids"),
        ({"always_keep": 2}, "always_keep: expected a list of token ids"),
        ({"gate_args": 3}, "gate_args: expected a mapping"),
        ({"layerwise": 1}, "layerwise: expected True or False"),
        ({"enabled": "no"}, "enabled: expected True or False"),
    ],
)
def test_config_values(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        L0DropConfig(**values)
    config = L0DropConfig()
    name = next(iter(values))
    if len(values) == 1 and name != "gating":
        with pytest.raises(ValueError, match=f"{name}"):
            setattr(config, name, values[name])
        assert config == L0DropConfig(), "a refused value leaves the config as it was"


def test_config_fields() -> None:
    with pytest.raises(AttributeError, match="no field 'lamda'.*lambda_"):
        L0DropConfig().lamda = 0.3
    assert sparsify(zoo.build("marian"), L0DropConfig()).lambda_ == 0.3, "the paper's, where nothing is said"
    assert sparsify(zoo.build("marian"), L0DropConfig(lambda_=0.0)).lambda_ == 0.0
    config = L0DropConfig()
    config.gating = "mask"  # free until a model has it
    config.target_sparsity = 0.5
    assert sparsify(zoo.build("marian"), config).config.l0drop.target_sparsity == 0.5


def test_an_unsupported_model() -> None:
    config = hf.BlenderbotConfig(
        vocab_size=20,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    with pytest.raises(
        ValueError, match="BlenderbotForConditionalGeneration is not .* supported: MarianMTModel, Bart.*NLLB"
    ):
        sparsify(hf.BlenderbotForConditionalGeneration(config))


def test_a_model_that_has_its_gate_already() -> None:
    with pytest.raises(ValueError, match="has its gate already, with gating 'zero'.*export"):
        sparsify(sparsify(zoo.build("marian")))


def test_an_unknown_gate() -> None:
    with pytest.raises(ValueError, match="gate: no gate is registered as 'nonsense'"):
        sparsify(zoo.build("marian"), L0DropConfig(gate="nonsense"))


class Returns(Gate):
    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.ones(6, 24), "gate: Returns.forward must return Gates, got Tensor"),
        (Gates(torch.ones(6, 23)), r"Gates.values: expected shape \(6, 24\)"),
        (Gates(torch.ones(6, 24, 1)), r"Gates.values: expected shape \(6, 24\)"),
        (Gates(torch.full((6, 24), 1.01)), r"Gates.values: must lie in \[0, 1\]"),
        (Gates(torch.full((6, 24), -0.5)), r"Gates.values: must lie in \[0, 1\]"),
        (Gates(torch.ones(6, 24)), "padding must have gate 0"),
    ],
)
def test_a_gate_that_breaks_its_contract(result: object, message: str) -> None:
    model = sparsify(zoo.build("bart"))
    model.gate = Returns(result)
    with pytest.raises(ValueError, match=message):
        model.generate(**zoo.ragged_batch(), max_new_tokens=2)


def test_a_sentence_without_real_tokens() -> None:
    model, batch = sparsify(zoo.build("marian")), zoo.ragged_batch()
    batch["attention_mask"][4] = 0
    with pytest.raises(ValueError, match="attention_mask: sentence 4 of the batch has no real token"):
        model(**batch, labels=batch["input_ids"])


def test_a_mask_of_the_wrong_shape() -> None:
    model, batch = sparsify(zoo.build("t5")), zoo.ragged_batch()
    with pytest.raises(ValueError, match=r"attention_mask: expected shape \(6, 24\)"):
        model(
            encoder_outputs=model.encoder(**batch),
            attention_mask=batch["attention_mask"][:, :20],
            labels=batch["input_ids"],
        )


def test_decoding_with_another_gating_than_trained(tmp_path: Path) -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(gating="zero"))
    refusal = "gating: the model is trained for 'zero'.*sparsify the base model anew"
    with pytest.raises(ValueError, match=refusal):
        model.config.l0drop.gating = "mask"
    with pytest.raises(ValueError, match=refusal):
        model.config.l0drop = L0DropConfig(gating="mask")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=refusal):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, l0drop={"gating": "weight"})
    other = sparsify(zoo.build("marian"), L0DropConfig(gating="mask")).config
    with pytest.raises(ValueError, match=refusal):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, config=other)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.l0drop.gating == "zero"


def test_attention_that_cannot_take_a_bias() -> None:
    model = sparsify(zoo.build("marian"))
    model.get_decoder().config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attn_implementation: 'flash_attention_2' cannot add a bias.*sdpa"):
        model.generate(**zoo.ragged_batch())


def test_training_that_would_lose_the_penalty() -> None:
    model, batch = sparsify(zoo.build("marian")).train(), zoo.ragged_batch()
    decoder = {"decoder_input_ids": batch["input_ids"][:, :4]}
    with pytest.raises(ValueError, match="labels: .* label_smoothing_factor.*own_loss=True"):
        model(**batch, **decoder)
    output = model(**batch, **decoder, own_loss=True)
    assert output.loss is None
    assert output.penalty.requires_grad
    with torch.no_grad():
        model(**batch, **decoder)
    model.eval()
    model(**batch, **decoder)


def test_always_keep_needs_token_ids() -> None:
    model, batch = sparsify(zoo.build("bart"), L0DropConfig(always_keep=(2,))), zoo.ragged_batch()
    embedded = model.get_input_embeddings()(batch["input_ids"])
    with pytest.raises(ValueError, match="always_keep: token ids are needed"):
        model(inputs_embeds=embedded, attention_mask=batch["attention_mask"], labels=batch["input_ids"])


def test_calibration_without_a_target_or_a_score() -> None:
    model = sparsify(zoo.build("marian"))
    with pytest.raises(ValueError, match="target: the model has no target_sparsity"):
        model.calibrate([zoo.ragged_batch()])
    model.gate = Returns(Gates(zoo.ragged_batch()["attention_mask"].float()))
    with pytest.raises(ValueError, match="calibrate: this gate has no log α"):
        model.calibrate([zoo.ragged_batch()], target=0.5)


def test_surgery_before_sparsify() -> None:
    base = zoo.build("marian")

    class Quantized(torch.nn.Linear):
        pass

    base.model.decoder.layers[0].fc1 = Quantized(zoo.WIDTH, 64)
    with pytest.raises(ValueError, match="model.decoder.layers.0.fc1 is a Quantized, not a plain Linear"):
        sparsify(base)
