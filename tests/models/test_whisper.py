"""Whisper: a new model equals its base, the short memory the full one, and generate works in all its forms."""

import copy
from pathlib import Path

import pytest
import torch
import transformers as hf

from l0drop import L0DropConfig, sparsify
from l0drop.core.memory import GATINGS, has_shared_row
from l0drop.models.whisper import BiasedDecoderLayer
from tests.models import whispers

LABELS = torch.randint(0, whispers.TEXT, (6, 7), generator=torch.Generator().manual_seed(9))
PROMPT = torch.tensor([whispers.PREVIOUS, 11, 12, 13])
WAYS = {
    "detected language": {},
    "language and task": {"language": "de", "task": "translate"},
    "languages": {"language": ["de", "en", "de", "de", "en", "en"]},
    "beams": {"language": "en", "num_beams": 5},
    "timestamps": {"language": "en", "return_timestamps": True},
    "timestamps and beams": {"language": "en", "return_timestamps": True, "num_beams": 3},
    "prompt": {"language": "en", "prompt_ids": PROMPT},
}


def some_closed(gating: str = "zero", dtype: torch.dtype = torch.float64, **options):  # type: ignore[no-untyped-def]
    model = sparsify(whispers.build().to(dtype), L0DropConfig(gating=gating, **options))
    return whispers.spread_gates(model)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_a_new_model_equals_its_base_model(attention: str, gating: str) -> None:
    base, features = whispers.build(attention), whispers.features()
    sparse = sparsify(base, L0DropConfig(gating=gating))
    expected, found = base(features, labels=LABELS), sparse(features, labels=LABELS)
    assert float((found.logits - expected.logits).abs().max()) <= 1e-6 * float(expected.logits.abs().max())
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-5)
    assert float(found.sparsity) == 0
    for way in WAYS.values():
        assert torch.equal(base.generate(features, **way), sparse.generate(features, **way))
    sparse.config.l0drop.enabled = False
    assert torch.equal(sparse(features, labels=LABELS).logits, expected.logits)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_short_memory_equals_full_gated_memory(attention: str, gating: str, fixed_gate: torch.nn.Module) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        features = whispers.features().to(dtype)
        model = sparsify(whispers.build(attention).to(dtype), L0DropConfig(gating=gating))
        model.gate = fixed_gate
        short = model(features, labels=LABELS)
        with model.dial(dense=True):
            dense = model(features, labels=LABELS)
        kept = fixed_gate.values.ne(0).sum(1)
        assert short.encoder_last_hidden_state.shape[1] == int(kept.max()) + has_shared_row(gating)
        assert dense.encoder_last_hidden_state.shape[1] == whispers.ROWS
        scale = max(1.0, float(dense.logits.abs().max()))
        assert float((short.logits - dense.logits).abs().max()) <= tolerance * scale
    model = some_closed(gating)
    for way in WAYS.values():
        tokens = model.generate(features, **way)
        with model.dial(dense=True):
            assert torch.equal(tokens, model.generate(features, **way))


@torch.no_grad()
def test_zero_gating_matches_the_paper(fixed_gate: torch.nn.Module) -> None:
    """Against the base model run on encodings × gate, and not equal to it without the count of dropped rows."""
    base, features = whispers.build().double(), whispers.features().double()
    model = sparsify(base)
    model.gate = fixed_gate
    encoded = base.get_encoder()(features)
    encoded.last_hidden_state = encoded.last_hidden_state * fixed_gate.values[..., None]
    expected = base(encoder_outputs=encoded, labels=LABELS).logits
    memory = model.get_encoder()(input_features=features)
    torch.testing.assert_close(model(encoder_outputs=memory, labels=LABELS).logits, expected, atol=1e-10, rtol=1e-10)
    memory.memory_bias = memory.memory_bias.clamp(max=0)
    assert float((model(encoder_outputs=memory, labels=LABELS).logits - expected).abs().max()) > 0.05


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_a_clip_does_not_depend_on_its_batch(gating: str) -> None:
    model, features = some_closed(gating), whispers.features().double()
    together, tokens = model.explain(input_features=features), model.generate(features, language="en", num_beams=3)
    assert sum(0 < len(e.kept) < whispers.ROWS for e in together) == 6
    for clip in range(6):
        alone = features[clip : clip + 1]
        (explanation,) = model.explain(input_features=alone)
        torch.testing.assert_close(explanation.gates, together[clip].gates, atol=1e-10, rtol=0)
        own = model.generate(alone, language="en", num_beams=3)[0]
        assert tokens[clip, : len(own)].tolist() == own.tolist()


@torch.no_grad()
def test_the_same_tokens_after_saving_and_loading(tmp_path: Path) -> None:
    features, config = whispers.features(), L0DropConfig(gating="weight", target_sparsity=0.4)
    model = whispers.spread_gates(sparsify(whispers.build(), config))
    model.save_pretrained(tmp_path / "sparse")
    loaded = hf.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "sparse")
    assert type(loaded) is type(model)
    assert loaded.config.l0drop == config
    for way in WAYS.values():
        assert torch.equal(loaded.generate(features, **way), model.generate(features, **way))
    model.export(tmp_path / "plain")
    plain = hf.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "plain")
    assert type(plain) is hf.WhisperForConditionalGeneration
    assert torch.equal(plain.generate(features, language="en"), whispers.build().generate(features, language="en"))


def test_sparsify_leaves_the_base_model_alone() -> None:
    base = whispers.build()
    layers = [type(layer) for layer in base.model.decoder.layers]
    model = sparsify(base)
    own = dict(model.named_parameters())
    assert all(own[name] is parameter for name, parameter in base.named_parameters())
    assert [type(layer) for layer in base.model.decoder.layers] == layers
    assert all(type(layer) is BiasedDecoderLayer for layer in model.model.decoder.layers)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert set(own) - set(dict(base.named_parameters())) == {"gate.weight", "gate.bias"}


# --- long recordings and times ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_long_form_short_equals_dense(gating: str) -> None:
    model, features = some_closed(gating), whispers.features(2, 170).double()
    mask = (torch.arange(170) < torch.tensor([[170], [131]])).long()
    for way in ({}, {"num_beams": 3}, {"condition_on_prev_tokens": True}, {"prompt_ids": PROMPT}):
        settings = {"attention_mask": mask, "language": "en", "return_segments": True, "return_timestamps": True, **way}
        found = model.generate(features, **settings)
        with model.dial(dense=True):
            expected = model.generate(features, **settings)
        assert torch.equal(found["sequences"], expected["sequences"])
        assert len(found["segments"][0]) > 3, "several windows"


@torch.no_grad()
def test_token_times_of_an_open_model_are_those_of_its_base() -> None:
    base, features = whispers.build().double(), whispers.features().double()
    settings = {"language": "en", "return_token_timestamps": True, "attention_mask": whispers.coverage()}
    for beams in (1, 3):
        times = [m.generate(features, num_beams=beams, **settings) for m in (base, sparsify(base))]
        assert torch.equal(times[0]["token_timestamps"], times[1]["token_timestamps"])


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_token_times_go_back_to_the_source(gating: str) -> None:
    """They are times of kept rows of the clip, do not fall, and are the same on the dense memory."""
    model, features, mask = some_closed(gating), whispers.features().double(), whispers.coverage()
    kept = [explanation.kept for explanation in model.explain(input_features=features)]
    one_window = [*range(whispers.NO_TIMESTAMPS, whispers.VOCABULARY)]
    for beams in (1, 3):
        settings = {"language": "en", "attention_mask": mask, "num_beams": beams, "suppress_tokens": one_window}
        settings["return_token_timestamps"] = True
        short = model.generate(features, **settings)
        with model.dial(dense=True):
            dense = model.generate(features, **settings)
        assert torch.equal(short["sequences"], dense["sequences"])
        assert torch.equal(short["token_timestamps"], dense["token_timestamps"])
        distinct = set()
        for clip, times in enumerate(short["token_timestamps"].tolist()):
            rows = {round(time / 0.02) for time in times if time}
            assert rows <= {row for row in kept[clip] if row < mask[clip].sum() // 2}
            assert times == sorted(times)
            distinct |= rows
        assert len(distinct) > 3


@torch.no_grad()
def test_cross_attention_is_by_encoder_row(fixed_gate: torch.nn.Module) -> None:
    model, features = sparsify(whispers.build("eager").double()), whispers.features().double()
    model.gate = fixed_gate
    short = model(features, labels=LABELS, output_attentions=True).cross_attentions
    with model.dial(dense=True):
        dense = model(features, labels=LABELS, output_attentions=True).cross_attentions
    for one, other in zip(short, dense, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)
        assert bool((one.amax((1, 2)).ne(0) == fixed_gate.values.ne(0)).all())


# --- assistants ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_an_assistant_changes_no_token(gating: str) -> None:
    sparse, base, features = some_closed(gating), whispers.build().double(), whispers.features(1).double()
    for model, assistant in ((sparse, base), (sparse, sparse), (base, sparse)):
        settings = {"language": "en", "begin_suppress_tokens": []}
        expected = model.generate(features, **settings)
        helper = copy.deepcopy(assistant)  # Hugging Face changes the settings of an assistant
        assert torch.equal(model.generate(features, **settings, assistant_model=helper), expected)


def test_an_assistant_without_an_encoder_is_refused() -> None:
    model = sparsify(whispers.build())
    decoder_only = hf.WhisperForCausalLM(whispers.build().config)
    with pytest.raises(ValueError, match="assistant_model: a WhisperForCausalLM"):
        model.generate(whispers.features(1), assistant_model=decoder_only)


# --- training, coverage -------------------------------------------------------------------------------------------


def test_sparsity_counts_the_rows_that_audio_covers() -> None:
    model, features, mask = some_closed(dtype=torch.float32), whispers.features(), whispers.coverage()
    covered = mask[:, ::2]
    assert covered.sum(1).tolist() == [24, 15, 9, 20, 24, 3]
    with torch.no_grad():
        closed = model(features, labels=LABELS).gates.values == 0
        output = model(features, attention_mask=mask, labels=LABELS)
    assert float(output.sparsity) == pytest.approx(float(closed[covered].float().mean()))
    assert float(model(features, labels=LABELS).sparsity) == pytest.approx(float(closed.float().mean()))
    for clip, explanation in enumerate(model.explain(input_features=features, attention_mask=mask)):
        assert explanation.sparsity == pytest.approx(float(closed[clip][covered[clip]].float().mean()))
        assert explanation.sparsity_of_all == pytest.approx(float(closed[clip].float().mean()))
    result = model.calibrate([{"input_features": features, "attention_mask": mask}], target=0.3, force=True)
    assert result.after == pytest.approx(0.3, abs=0.02)
    with torch.no_grad():
        assert float(model(features, attention_mask=mask, labels=LABELS).sparsity) == pytest.approx(result.after)
    with pytest.raises(ValueError, match=r"attention_mask: .*\[B, 48\]"):
        model(features, attention_mask=covered, labels=LABELS)


@pytest.mark.parametrize("gating", GATINGS)
def test_training_reaches_the_gate_and_penalises_all_rows(gating: str) -> None:
    model, features = some_closed(gating, torch.float32, lambda_=0.5).train(), whispers.features()
    output = model(features, attention_mask=whispers.coverage(), labels=LABELS, noise_key=torch.arange(6))
    again = model(features, attention_mask=whispers.coverage(), labels=LABELS, noise_key=torch.arange(6))
    assert torch.equal(output.gates.values, again.gates.values)
    torch.testing.assert_close(output.penalty, output.gates.open_probability.mean())
    torch.testing.assert_close(output.loss, output.cross_entropy + 0.5 * output.penalty)
    output.loss.backward()
    assert float(model.gate.weight.grad.abs().max()) > 0
    assert model.training_sparsity() == pytest.approx(float(output.sparsity))


def test_spec_augment_acts_in_training_as_in_the_base_model() -> None:
    base = whispers.build()
    base.config.apply_spec_augment, base.config.mask_time_prob, base.config.mask_time_length = True, 0.5, 4
    model, features = sparsify(base).train(), whispers.features()
    changed = features.clone()
    model(changed, labels=LABELS, own_loss=True)
    assert not torch.equal(changed, features), "Hugging Face's Whisper masks its inputs in place"
    with torch.no_grad():
        unchanged = features.clone()
        model.eval()(unchanged, labels=LABELS)
    assert torch.equal(unchanged, features)


@torch.no_grad()
def test_encoder_outputs_are_gated_and_memories_have_no_times() -> None:
    model, features = some_closed(), whispers.features().double()
    memory = model.get_encoder()(input_features=features)
    with pytest.raises(ValueError, match="encoder_outputs: Whisper's generate derives times"):
        model.generate(encoder_outputs=memory, return_timestamps=True)
    encodings = whispers.build().double().get_encoder()(features)
    expected = model.generate(features, language="en")
    for given in (memory, encodings):
        assert torch.equal(model.generate(encoder_outputs=given, language="en"), expected)
