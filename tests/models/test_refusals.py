"""Bad input raises an error that names the field and the remedy; silent misuse warns."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from transformers import AutoModelForSeq2SeqLM

from l0drop import Gate, Gates, L0DropConfig, sparsify
from tests.models import zoo


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gating": "drop"}, "gating: expected one of zero, mask, weight, mean, got 'drop'"),
        ({"epsilon": 0}, "epsilon: expected a positive number"),
        ({"epsilon": -0.1}, "epsilon: expected a positive number"),
        ({"beta": 0}, "beta: expected a positive number"),
        ({"lambda_": -0.1}, "lambda_: expected a number that is not negative"),
        ({"lambda_": "0.3"}, "lambda_: expected a number"),
        ({"lambda_": float("nan")}, "lambda_: expected a number"),
        ({"lambda_": 0.3, "target_sparsity": 0.5}, "lambda_ and target_sparsity: give only one of them"),
        ({"target_sparsity": 1.0}, "target_sparsity: expected a share between 0 and 1"),
        ({"target_sparsity": 40}, "target_sparsity: expected a share between 0 and 1"),
        ({"penalty": "max"}, "penalty: expected mean or sum"),
        ({"start": "open"}, "start: expected a number or None"),
        ({"start": 1e300}, "start: expected a number or None"),
        ({"always_keep": ["the"]}, "always_keep: expected a list of token ids"),
        ({"always_keep": 2}, "always_keep: expected a list of token ids"),
        ({"gate_args": 3}, "gate_args: expected a mapping"),
        ({"layerwise": 1}, "layerwise: expected True, False or a list"),
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
        assert config == L0DropConfig(), "a refused value does not change the config"


def test_config_fields() -> None:
    with pytest.raises(AttributeError, match="no field 'lamda'.*lambda_"):
        L0DropConfig().lamda = 0.3
    assert sparsify(zoo.build("marian"), L0DropConfig()).lambda_ == 0.3, "the default is the paper's"
    assert sparsify(zoo.build("marian"), L0DropConfig(lambda_=0.0)).lambda_ == 0.0
    config = L0DropConfig()
    config.gating = "mask"  # allowed until a model uses it
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
        ValueError,
        match="BlenderbotForConditionalGeneration is not a supported .*supported: MarianMTModel, Bart.*NLLB",
    ):
        sparsify(hf.BlenderbotForConditionalGeneration(config))


def test_a_model_that_already_has_a_gate() -> None:
    with pytest.raises(ValueError, match="already has a gate, with gating 'zero'.*export"):
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


def test_another_gating_than_in_training(tmp_path: Path) -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(gating="zero"))
    refusal = "gating: the model is trained for 'zero'.*sparsify the base model again"
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
    with pytest.raises(ValueError, match="labels: .*label_smoothing_factor=0.*own_loss=True"):
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


def test_a_modified_model() -> None:
    base = zoo.build("marian")

    class Quantized(torch.nn.Linear):
        pass

    base.model.decoder.layers[0].fc1 = Quantized(zoo.WIDTH, 64)
    with pytest.raises(ValueError, match="model.decoder.layers.0.fc1 is a Quantized, not a plain Linear"):
        sparsify(base)


def with_sparsity(closed: float, target: float):  # type: ignore[no-untyped-def]
    """A model with a target, and its sparsity on the ragged batch."""
    model = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=target))
    if closed:
        zoo.spread_gates(model, closed)
    with torch.no_grad():
        found = model(**zoo.ragged_batch(), labels=zoo.ragged_batch()["input_ids"]).sparsity
    return model, float(found)


def test_calibration_refuses_to_close_many_gates() -> None:
    model, before = with_sparsity(0.3, target=0.6)
    threshold = model.gate.threshold
    with pytest.raises(ValueError, match=rf"is {before:.1%} and the target 60.0%.*points.*Train longer.*force=True"):
        model.calibrate([zoo.ragged_batch()])
    assert model.gate.threshold == threshold, "a refusal changes nothing"
    assert model.calibration is None
    with pytest.warns(UserWarning, match=f"closed .* points of encodings .*, from {before:.1%} to"):
        result = model.calibrate([zoo.ragged_batch()], force=True)
    assert result.after == pytest.approx(0.6, abs=0.01)
    assert model.calibration == result


def test_calibration_warns_when_it_closes_some_gates_and_opens_many() -> None:
    _, before = with_sparsity(0.3, target=0.5)
    for target, warning in ((before + 0.03, "closed [23].. points"), (before - 0.2, "opened .*raise train.steer_over")):
        model, _ = with_sparsity(0.3, target)
        with pytest.warns(UserWarning, match=warning):
            assert model.calibrate([zoo.ragged_batch()]).met or target < before
    model, _ = with_sparsity(0.3, before - 0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.calibrate([zoo.ragged_batch()]).after < before


def test_calibration_of_an_untrained_gate_warns() -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.4))
    with pytest.warns(
        UserWarning, match="the sparsity is 0.0% and not the target of 40.0%: many encodings have the same"
    ):
        assert not model.calibrate([zoo.ragged_batch()]).met


def test_calibration_needs_an_iterable_of_batches() -> None:
    model, batch = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.4)), zoo.ragged_batch()
    for one in (batch, hf.BatchEncoding(batch)):
        with pytest.raises(TypeError, match=r"batches: expected an iterable of batches, got one batch; .*\[batch\]"):
            model.calibrate(one)
    with pytest.raises(TypeError, match="batches: expected an iterable of batches with input_ids.*got Tensor"):
        model.calibrate(batch["input_ids"])
    with pytest.raises(TypeError, match="batches: expected mappings with input_ids .*got Tensor"):
        model.calibrate([batch["input_ids"]])
    with pytest.raises(ValueError, match="batches: none were given"):
        model.calibrate(iter([]))
    with pytest.raises(ValueError, match="target: expected a share between 0 and 1"):
        model.calibrate([batch], target=40)


def test_a_config_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"config: expected an L0DropConfig, got 0.4; .*\(target_sparsity=0.4\)"):
        sparsify(zoo.build("marian"), 0.4)
    with pytest.raises(TypeError, match="config: expected an L0DropConfig, got {'gating': 'mask'}"):
        sparsify(zoo.build("marian"), {"gating": "mask"})
    with pytest.raises(TypeError, match="model: expected a model, got 'opus-mt'.*from_pretrained"):
        sparsify("opus-mt")


def test_text_instead_of_token_ids() -> None:
    model = sparsify(zoo.build("marian"))
    for text in ("hello", ["hello"], [[3, 4, 5]]):
        with pytest.raises(TypeError, match=r"input_ids: expected a tensor of token ids.*tokenizer.*l0drop.load"):
            model.explain(text)
    with pytest.raises(TypeError, match=r"input_ids: .*got a mapping; unpack it: model.explain\(\*\*inputs\)"):
        model.explain(zoo.ragged_batch())
    with pytest.raises(ValueError, match=r"input_ids: expected shape \[B, N\], got \[3\]"):
        model.explain(torch.tensor([3, 4, 5]))


@pytest.mark.parametrize("value", ["0.3", True, [0.3], torch.tensor([0.3, 0.4]), 1j])
def test_steering_by_something_that_is_no_number(value: object) -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.4))
    with pytest.raises(TypeError, match="sparsity: expected a number, got"):
        model.steer(value)
    with pytest.raises(TypeError, match="validation: expected a number, got"):
        model.steer(0.3, validation=value)
    with pytest.raises(TypeError, match="lambda_: expected a number, got"):
        model.lambda_ = value
    assert model.schedule.steps == 0


def test_steering_by_something_that_is_no_share() -> None:
    model = sparsify(zoo.build("marian"), L0DropConfig(target_sparsity=0.4))
    for value, message in ((40, r"share between 0 and 1 \(0.4 for 40%\)"), (-0.1, "share"), (float("nan"), "finite")):
        with pytest.raises(ValueError, match=f"sparsity: expected a .*{message}"):
            model.steer(value)
    with pytest.raises(ValueError, match="lambda_: expected a number that is not negative, got -1"):
        model.lambda_ = -1
    for value in (0, 1, 0.3, np.float32(0.3), torch.tensor(0.3), torch.tensor([0.3])):
        model.steer(value, validation=value)
    assert model.schedule.steps == 6


def test_a_dial_without_with_warns() -> None:
    model, batch = zoo.spread_gates(sparsify(zoo.build("marian"))), zoo.ragged_batch()
    kept = [e.kept for e in model.explain(**batch)]
    with pytest.warns(
        UserWarning, match=r"model.dial\(keep=0.3\) changed nothing.*`with model.dial\(keep=0.3\)"
    ) as seen:
        model.dial(keep=0.3)
    assert seen[0].filename == __file__
    assert [e.kept for e in model.explain(**batch)] == kept
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with model.dial(keep=0.3):
            assert [e.kept for e in model.explain(**batch)] != kept
            with model.dial(dense=True):
                assert [e.kept for e in model.explain(**batch)] == kept
        dial = model.dial(keep=0.3)
        for _ in range(2):
            with dial, dial:
                pass
        del dial
    assert [e.kept for e in model.explain(**batch)] == kept


def test_a_bad_dial_raises_where_it_is_made() -> None:
    model = sparsify(zoo.build("marian"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="`keep`: expected a share"):
            model.dial(keep=3)
