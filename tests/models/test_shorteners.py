"""Models with a shortener: exactness, the engine, training, saving, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.core.gates import Gates, LearnedGate
from l0drop.core.memory import Memory, pool
from l0drop.core.registry import UnregisteredError
from l0drop.core.shorteners import SHORTENERS, MeanPool, Merge, Shortener, TopAttention, register_shortener
from l0drop.models.families import FAMILIES
from l0drop.models.sparsify import sparse_class
from tests.models import whispers, zoo

NAMES = ("mean_pool", "merge", "top_norm", "top_attention")
KEEP = 0.4
LENGTHS = (24, 17, 9, 20, 24, 3)
ROWS = [10, 7, 4, 8, 10, 1]
WINDOWED = [("led", "top_attention")]
EVERY = [(family, name) for family in zoo.FAMILIES for name in NAMES if (family, name) not in WINDOWED]


@register_shortener("test-scaled-pairs")
class ScaledPairs(Shortener):
    """Means of pairs, times a learned scale."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.size = size
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, encodings: Tensor, mask: Tensor, attention: Tensor | None = None) -> Memory:
        return pool(encodings * self.scale.to(encodings.dtype), (mask.cumsum(1) - 1) // self.size, mask)


def built(family: str, attention: str | None = None) -> Any:
    base = zoo.build(family, attention)
    base.config.encoder_layerdrop = 0.0
    return base


def shortened(family: str, name: str, keep: float = KEEP) -> Any:
    return sparsify(built(family), L0DropConfig(shortener=name, shortener_args={"keep": keep}))


def weights_of_hugging_face(family: str, batch: dict[str, Tensor]) -> Tensor:
    """[B, H, N, N], of the last layer of an encoder with slow attention."""
    encoder = built(family, "eager").double().get_encoder()
    return encoder(**batch, output_attentions=True).attentions[-1]


@pytest.mark.parametrize(("family", "name"), EVERY)
def test_the_engine_finds_the_tokens_of_generate(family: str, name: str) -> None:
    model, batch = shortened(family, name).double(), zoo.ragged_batch()
    settings: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 7}
    found = Engine(model).generate(inputs=batch["input_ids"], attention_mask=batch["attention_mask"], **settings)
    assert torch.equal(found.sequences, model.generate(**batch, **settings))
    assert found.kept.sum(1).tolist() == ROWS
    assert found.gates is not None
    assert torch.equal(found.gates.values != 0, found.kept)
    assert not (found.kept & ~batch["attention_mask"].bool()).any()


@pytest.mark.parametrize(("family", "name"), EVERY)
@torch.no_grad()
def test_the_memory_is_the_shorteners_of_the_encodings(family: str, name: str) -> None:
    model, batch = shortened(family, name).double(), zoo.ragged_batch()
    mask = batch["attention_mask"].bool()
    encodings = model.base_class.get_encoder(model)(**batch).last_hidden_state
    given: dict[str, Tensor] = {}
    if name == "top_attention":
        mean = weights_of_hugging_face(family, batch).mean(1).masked_fill(~mask[:, :, None], 0)
        given["attention"] = mean.sum(1) / mask.sum(1, keepdim=True)
    expected = SHORTENERS.class_of(name)(KEEP)(encodings, mask, **given)
    output = model.get_encoder()(**batch)
    torch.testing.assert_close(output.last_hidden_state, expected.states)
    assert torch.equal(output.memory_bias, expected.bias)
    assert torch.equal(output.memory_index, expected.index)
    assert output.dropped.tolist() == [real - rows for real, rows in zip(LENGTHS, ROWS, strict=True)]
    assert output.hidden_states is None
    logits = model(**batch, labels=batch["input_ids"])
    assert float(logits.sparsity) == pytest.approx(1 - sum(ROWS) / sum(LENGTHS))


@pytest.mark.parametrize("name", ["mean_pool", "merge"])
@pytest.mark.parametrize("family", ["marian", "t5", "led"])
@torch.no_grad()
def test_decoding_is_that_of_the_base_model_on_each_groups_mean(family: str, name: str) -> None:
    base, batch = built(family).double(), zoo.ragged_batch()
    model = sparsify(base, L0DropConfig(shortener=name, shortener_args={"keep": KEEP}))
    memory, mask = model.get_encoder()(**batch), batch["attention_mask"].bool()
    spread = torch.zeros(*mask.shape, zoo.WIDTH, dtype=torch.float64)
    for sentence, real in enumerate(mask):
        sizes = memory.memory_bias[sentence, 0, 0].exp().round().long()
        spread[sentence, real] = memory.last_hidden_state[sentence].repeat_interleave(sizes, 0)
    labels = zoo.ragged_batch((5, 9, 4, 7, 3, 8), seed=4)["input_ids"]
    encodings: Any = next(known for known in FAMILIES if known.base is type(base)).encoder_output(spread)
    expected = base(encoder_outputs=encodings, attention_mask=batch["attention_mask"], labels=labels)
    torch.testing.assert_close(model(**batch, labels=labels).logits, expected.logits, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_sentence_does_not_depend_on_its_batch(name: str) -> None:
    model, batch = shortened("marian", name).double(), zoo.ragged_batch()
    together = model.get_encoder()(**batch)
    for sentence, length in enumerate(LENGTHS):
        alone = model.get_encoder()(**{key: value[sentence, :length][None] for key, value in batch.items()})
        rows = alone.last_hidden_state.shape[1]
        assert torch.equal(together.memory_index[sentence, :rows], alone.memory_index[0])
        torch.testing.assert_close(together.last_hidden_state[sentence, :rows], alone.last_hidden_state[0])


@pytest.mark.parametrize("family", ["marian", "mbart", "m2m100", "t5"])
@torch.no_grad()
def test_attention_is_computed_without_slow_attention_in_the_other_layers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = shortened(family, "top_attention").double(), zoo.ragged_batch()
    used = []
    for module in model.base_class.get_encoder(model).modules():
        if hasattr(module, "config") and hasattr(module, "scaling"):
            forward = type(module).forward

            def noted(self: Any, *args: Any, forward: Any = forward, **kwargs: Any) -> Any:
                used.append(self.config._attn_implementation)
                return forward(self, *args, **kwargs)

            monkeypatch.setattr(type(module), "forward", noted)
            break
    model.get_encoder()(**batch)
    assert used == ["sdpa", "sdpa", "eager"], "two layers, then the weights of the last"
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["marian", "t5"])
def test_training_is_on_the_same_memory_without_a_penalty(family: str, name: str) -> None:
    model, batch = shortened(family, name).double(), zoo.ragged_batch()
    expected = model(**batch, labels=batch["input_ids"])
    output = model.train()(**batch, labels=batch["input_ids"], noise_key=torch.arange(6))
    torch.testing.assert_close(output.loss, expected.loss)
    assert torch.equal(output.loss, output.cross_entropy)
    assert float(output.penalty) == model.lambda_ == 0
    output.loss.backward()
    embeddings = model.get_encoder().get_input_embeddings().weight
    assert bool(embeddings.grad.isfinite().all())
    assert bool(embeddings.grad.any())
    assert all(parameter.grad is not None for parameter in model.get_decoder().parameters() if parameter.requires_grad)
    assert not [name for name, _ in model.named_parameters() if name.startswith("gate.")], "no parameter is unused"
    assert model.train()(input_ids=batch["input_ids"], decoder_input_ids=batch["input_ids"]).logits.isfinite().all()


def test_training_with_gradient_checkpointing() -> None:
    model, batch = shortened("marian", "top_attention").double().train(), zoo.ragged_batch()
    model(**batch, labels=batch["input_ids"]).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**batch, labels=batch["input_ids"]).loss.backward()
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient)


@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading(name: str, tmp_path: Path) -> None:
    model, batch = shortened("bart", name), zoo.ragged_batch()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config.l0drop == model.config.l0drop
    assert loaded.shortener.arguments == {"keep": KEEP}
    settings = {"num_beams": 2, "max_new_tokens": 6}
    assert torch.equal(loaded.generate(**batch, **settings), model.generate(**batch, **settings))
    body = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "with a shortener" in body
    assert f"| shortener | `{name}` (keep {KEEP}) |" in body
    assert "gate" not in body


def test_a_learned_shortener_is_trained_saved_and_found_again(tmp_path: Path) -> None:
    config, batch = L0DropConfig(shortener="test-scaled-pairs", shortener_args={"size": 3}), zoo.ragged_batch()
    model = sparsify(zoo.build("marian"), config)
    model.train()(**batch, labels=batch["input_ids"]).loss.backward()
    assert float(model.shortener.scale.grad) != 0
    with torch.no_grad():
        model.shortener.scale.fill_(0.25)
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(loaded.shortener, ScaledPairs)
    assert (loaded.shortener.size, loaded.shortener.scale.item()) == (3, 0.25)
    assert torch.equal(loaded.generate(**batch, max_new_tokens=5), model.generate(**batch, max_new_tokens=5))
    assert "registers its shortener `test-scaled-pairs`" in (tmp_path / "README.md").read_text(encoding="utf-8")
    fresh = sparse_class(type(zoo.build("marian"))).from_pretrained(zoo_checkpoint(tmp_path), l0drop=config)
    assert fresh.shortener.scale.item() == 0.5, "a plain checkpoint has no weights for it"


def zoo_checkpoint(folder: Path) -> Path:
    zoo.build("marian").save_pretrained(folder / "plain")
    return folder / "plain"


def test_a_replaced_shortener_is_the_one_that_is_saved(tmp_path: Path) -> None:
    model = shortened("marian", "mean_pool")
    model.shortener = Merge(0.25)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(loaded.shortener, Merge)
    assert (loaded.config.l0drop.shortener, loaded.config.l0drop.shortener_args) == ("merge", {"keep": 0.25})


def test_a_model_whose_shortener_is_not_registered(tmp_path: Path) -> None:
    model = shortened("marian", "mean_pool")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"mean_pool"', '"absent"'))
    with pytest.raises(UnregisteredError, match="no shortener is registered as 'absent'"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_another_share_in_the_config_is_noticed(tmp_path: Path) -> None:
    shortened("marian", "mean_pool").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"keep": 0.4', '"keep": 0.8'))
    with pytest.raises(ValueError, match="shortener_args is {'keep': 0.8}, but the model was saved with {'keep': 0.4}"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


@torch.no_grad()
def test_outputs_of_a_plain_encoder_are_shortened() -> None:
    model, batch = shortened("marian", "merge").double(), zoo.ragged_batch()
    plain = model.base_class.get_encoder(model)(**batch)
    settings = {"num_beams": 2, "max_new_tokens": 6}
    expected = model.generate(**batch, **settings)
    given = BaseModelOutput(plain.last_hidden_state)
    found = model.generate(encoder_outputs=given, attention_mask=batch["attention_mask"], **settings)
    assert torch.equal(found, expected)
    with pytest.raises(ValueError, match=r"encoder_outputs: TopAttention needs the encoder's attention.*get_encoder"):
        shortened("marian", "top_attention").double()(
            encoder_outputs=BaseModelOutput(plain.last_hidden_state), decoder_input_ids=batch["input_ids"]
        )


@torch.no_grad()
def test_a_disabled_shortener_leaves_the_base_model() -> None:
    base, batch = built("bart"), zoo.ragged_batch()
    model = sparsify(base, L0DropConfig(shortener="mean_pool"))
    model.config.l0drop.enabled = False
    labels = batch["input_ids"]
    assert torch.equal(model(**batch, labels=labels).logits, base(**batch, labels=labels).logits)
    assert Engine(model).shortener is None


@torch.no_grad()
def test_hidden_states_that_are_asked_for_are_returned() -> None:
    model, batch = shortened("marian", "top_attention"), zoo.ragged_batch()
    assert len(model.get_encoder()(**batch, output_hidden_states=True).hidden_states) == 3


@pytest.mark.parametrize("dtype", ["int8", None])
def test_an_engine_with_converted_linear_layers(dtype: str | None) -> None:
    model, batch = shortened("marian", "top_attention"), zoo.ragged_batch()
    engine = Engine(model, dtype=dtype, linears="auto" if dtype else "packed")
    found = engine.generate(batch["input_ids"], batch["attention_mask"], max_new_tokens=4)
    assert found.kept.sum(1).tolist() == ROWS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shortener": 3}, "shortener: expected the name"),
        ({"shortener_args": 3}, "shortener_args: expected a mapping"),
        ({"shortener": None, "shortener_args": {"keep": 0.5}}, "shortener_args: name the shortener"),
        *(
            ({name: value}, f"{name}: is a setting of gates, and shortener='merge'")
            for name, value in {
                "gating": "mask", "lambda_": 0.0, "target_sparsity": 0.5, "penalty": "sum", "beta": 0.5,
                "epsilon": 0.2, "start": 1.0, "gate": "norm", "gate_args": {"rate": 0.5}, "always_keep": (2,),
                "layerwise": True, "cut_padding": 1.0,
            }.items()
        ),
    ],
)  # fmt: skip
def test_settings_that_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        L0DropConfig(**{"shortener": "merge", **values})


def test_arguments_that_are_refused() -> None:
    for arguments, message in (({"keep": 2}, "keep: expected a share"), ({"rate": 1}, "shortener_args: MeanPool does")):
        with pytest.raises(ValueError, match=message):
            sparsify(zoo.build("marian"), L0DropConfig(shortener="mean_pool", shortener_args=arguments))


def test_controls_of_gates_are_refused() -> None:
    model, batch = shortened("marian", "mean_pool"), zoo.ragged_batch()
    reason = "acts on gates, and this model's memory comes from its shortener, MeanPool"
    calls = {
        r"dial\(keep=0.5\)": lambda: model.dial(keep=0.5),
        r"dial\(dense=True\)": lambda: model.dial(dense=True),
        "steer": lambda: model.steer(0.5),
        "calibrate": lambda: model.calibrate([batch], 0.5),
        "explain": lambda: model.explain(**batch),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name}: {reason}"):
            call()
    engine, ids = Engine(model), batch["input_ids"]
    for setting in ({"keep": 0.5}, {"max_memory": 5}, {"shift": 1.0}, {"dense": True}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))}=.*{reason}"):
            engine.generate(ids, batch["attention_mask"], **setting)
    with pytest.raises(ValueError, match="gates: the memory of this model comes from its shortener, MeanPool"):
        engine.generate(ids, batch["attention_mask"], gates=Gates(batch["attention_mask"].float()))


def test_models_and_parts_that_do_not_fit() -> None:
    config = L0DropConfig(shortener="top_attention")
    with pytest.raises(ValueError, match=r"shortener: .*LEDForConditionalGeneration attends within windows"):
        sparsify(built("led"), config)
    base = zoo.build("m2m100")
    base.config.encoder_layerdrop = 0.05
    with pytest.raises(ValueError, match="shortener: .*set encoder_layerdrop to 0"):
        sparsify(base, config)
    with pytest.raises(ValueError, match="shortener: is for models of text, not for Whisper"):
        sparsify(whispers.build(multilingual=False), L0DropConfig(shortener="mean_pool"))
    model = shortened("led", "mean_pool")
    with pytest.raises(ValueError, match="shortener: TopAttention needs .*attends within windows"):
        model.shortener = TopAttention(0.5)
    with pytest.raises(ValueError, match="gate: this model's memory comes from its shortener, MeanPool"):
        model.gate = LearnedGate(zoo.WIDTH)
    gated = sparsify(zoo.build("marian"))
    with pytest.raises(ValueError, match="shortener: this model has gates; name the shortener in L0DropConfig"):
        gated.shortener = MeanPool(0.5)


def test_a_shortener_that_returns_something_else() -> None:
    model, batch = shortened("marian", "mean_pool"), zoo.ragged_batch()

    class Wrong(Shortener):
        def forward(self, encodings: Tensor, mask: Tensor, attention: Tensor | None = None) -> Any:
            return encodings

    model.shortener = Wrong()
    with pytest.raises(ValueError, match=r"shortener: Wrong.forward must return a Memory, got Tensor"):
        model.generate(**batch, max_new_tokens=2)
