"""Whispers that cut the padding of their windows: removed rows = masked rows, in training and in decoding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq

from l0drop import Engine, L0DropConfig, load, sparsify
from l0drop.models.whisper import first_rows
from tests.models import whispers, zoo

END = (48, 30, 17, 40, 11, 6)
"""Feature frames of each clip; the first fills its window."""
MARGIN = 0.04  # two rows
CONFIGS: dict[str, dict[str, Any]] = {
    "rule": {"gating": "mask", "gate": "open"},
    "zero": {"gating": "zero", "lambda_": 0.1},
    "mask": {"gating": "mask", "lambda_": 0.1},
    "weight": {"gating": "weight", "lambda_": 0.1},
    "mean": {"gating": "mean", "lambda_": 0.1},
    "layers": {"gating": "mask", "lambda_": 0.1, "layerwise": [0, 2]},
    "zero layers": {"gating": "zero", "lambda_": 0.1, "layerwise": [1]},
}


def padded() -> Tensor:
    """Features whose frames after the end of a clip are one value each."""
    features = whispers.features()
    for clip, end in enumerate(END):
        features[clip, :, end:] = -0.5 - 0.1 * clip
    return features


def expected_rows() -> list[int]:
    # the frame after the last one that differs from padding counts as well
    return [min(24, (min(48, end + 1) + 1) // 2 + 2) for end in END]


def build(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    config = L0DropConfig(cut_padding=MARGIN, **CONFIGS[name])
    model = sparsify(whispers.build(**options).to(dtype), config)
    if config.gate == "learned":
        whispers.spread_gates(model, 0.3)
    return model.to(dtype)


def logits(model: Any, features: Tensor, **options: Any) -> Tensor:
    tokens = torch.arange(len(features) * 5).reshape(-1, 5) % whispers.TEXT
    return model(input_features=features, decoder_input_ids=tokens, **options).logits


def test_rows_end_with_the_audio_and_its_margin() -> None:
    rows = build("rule").audio_rows(padded())
    assert rows.sum(1).tolist() == expected_rows()
    assert all(bool(row[:count].all()) for row, count in zip(rows, expected_rows(), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("training", [False, True])
def test_removed_rows_are_masked_rows(name: str, training: bool) -> None:
    """Alone, a clip's rows leave the batch; beside one that fills its window, they are masked."""
    model, features = build(name).train(training), padded().double()
    keys = torch.arange(6)
    tokens = torch.arange(30).reshape(6, 5) % whispers.TEXT
    common: dict[str, Any] = {"own_loss": True}
    together = model(input_features=features, decoder_input_ids=tokens, noise_key=keys, **common)
    for clip in range(6):
        one = slice(clip, clip + 1)
        alone = model(input_features=features[one], decoder_input_ids=tokens[one], noise_key=keys[one], **common)
        assert (alone.logits - together.logits[one]).abs().max() < 1e-10
        assert alone.gates.values.shape == (1, whispers.ROWS)
        assert (alone.gates.values - together.gates.values[one]).abs().max() < 1e-10
        assert not bool(alone.gates.values[0, expected_rows()[clip] :].any())


def test_gradients_do_not_depend_on_the_batch() -> None:
    model, features = build("zero").train(), padded().double()
    tokens = torch.arange(30).reshape(6, 5) % whispers.TEXT
    found = []
    for parts in ([list(range(6))], [[0, 1], [2, 3, 4, 5]]):
        model.zero_grad()
        for part in parts:
            output = model(
                input_features=features[part],
                decoder_input_ids=tokens[part],
                noise_key=torch.tensor(part),
                own_loss=True,
            )
            (output.logits.square().sum() + len(part) * output.penalty).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0]) < 1e-8


@pytest.mark.parametrize("name", ["rule", "zero", "mask", "layers"])
def test_short_memory_is_the_dense_one(name: str) -> None:
    model, features = build(name), padded().double()
    with model.dial(dense=True):
        dense = logits(model, features)
    assert (logits(model, features) - dense).abs().max() < 1e-10


@pytest.mark.parametrize("rows", [1, 2, 11, whispers.ROWS - 1, whispers.ROWS])
@pytest.mark.parametrize("training", [False, True])
def test_the_convolutions_of_the_first_rows(rows: int, training: bool) -> None:
    """They are those of the whole window, and so are their gradients."""
    encoder = build("rule").model.encoder.train(training)
    other = build("rule").model.encoder.train(training)
    found: list[Tensor] = []
    for one in (encoder, other):
        one.layers[0].register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    features = whispers.features().double().requires_grad_()
    encoder(features)
    with first_rows(encoder, rows):
        encoder(features)
        other(features)  # not this encoder's rows
    whole, cut, unrelated = found
    assert (cut.shape[1], unrelated.shape[1]) == (rows, whispers.ROWS)
    assert (cut - whole[:, :rows]).abs().max() < 1e-10
    leaves = [features, *encoder.conv1.parameters(), *encoder.conv2.parameters()]
    weights = torch.randn(cut.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for one, two in zip(
        *(torch.autograd.grad((x * weights).sum(), leaves) for x in (cut, whole[:, :rows])), strict=True
    ):
        assert (one - two).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["rule", "zero", "layers"])
def test_the_convolutions_run_on_the_rows_that_stay(name: str) -> None:
    """In `forward`, `generate` and the engine; a model that is switched off runs on the whole window."""
    model, features = build(name, torch.float32, multilingual=False), padded()[2:3]
    frames: list[int] = []
    model.model.encoder.conv2.register_forward_pre_hook(lambda _, inputs: frames.append(inputs[0].shape[-1]))
    logits(model, features)
    logits(model.train(), features, own_loss=True)
    model.eval().generate(features, max_new_tokens=3)
    Engine(model).generate(features, max_new_tokens=3)
    assert frames == 4 * [2 * expected_rows()[2]]
    model.config.l0drop.enabled = False
    logits(model, features)
    assert frames[4:] == [whispers.FRAMES]


def test_without_padding_nothing_is_cut() -> None:
    base, features = whispers.build().double(), whispers.features().double()
    plain = logits(base, features)
    model = sparsify(base, L0DropConfig(gating="mask", gate="open", cut_padding=0.0))
    assert (logits(model, features) - plain).abs().max() < 1e-10
    assert (logits(model, padded().double()) - logits(base, padded().double())).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["rule", "zero", "layers"])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_engine_gives_the_tokens_of_generate(name: str, beams: int) -> None:
    model, features = build(name, torch.float32, multilingual=False), padded()
    expected = model.generate(features, num_beams=beams, max_new_tokens=8)
    mask = (torch.arange(whispers.FRAMES) < torch.tensor(END)[:, None]).long()
    found = Engine(model).generate(features, mask, num_beams=beams, max_new_tokens=8)
    width = min(expected.shape[1], found.sequences.shape[1])
    assert expected[:, -width:].tolist() == found.sequences[:, -width:].tolist()
    if name == "rule":
        assert found.kept.sum(1).tolist() == expected_rows()


def test_sparsity_counts_covered_rows(tmp_path: Path) -> None:
    model, features = build("rule"), padded().double()
    mask = (torch.arange(whispers.FRAMES) < torch.tensor(END)[:, None]).long()
    assert float(logits_output(model, features, mask).sparsity) == 0.0


def logits_output(model: Any, features: Tensor, mask: Tensor) -> Any:
    tokens = torch.zeros(len(features), 2, dtype=torch.long)
    return model(input_features=features, attention_mask=mask, decoder_input_ids=tokens)


def test_saved_and_transcribed(tmp_path: Path) -> None:
    folder = whispers.save(build("zero", torch.float32, multilingual=False), tmp_path / "model")
    again = AutoModelForSpeechSeq2Seq.from_pretrained(folder)
    assert again.config.l0drop.cut_padding == MARGIN
    clip, full = whispers.tone(0.2), whispers.tone(0.48, 1)
    results = load(folder).transcribe([clip, full], max_new_tokens=6)
    alone = load(folder).transcribe([clip], max_new_tokens=6)[0]
    assert (results[0].text, results[0].kept) == (alone.text, alone.kept)
    assert results[0].rows == whispers.ROWS
    assert results[0].rows_kept <= 10 + 1 + 2 + 1


def test_long_recordings(tmp_path: Path) -> None:
    folder = whispers.save(build("rule", torch.float32, multilingual=False), tmp_path / "model")
    (result,) = load(folder).transcribe([whispers.tone(1.1)], max_new_tokens=6)
    assert result.windows > 1


def test_refusals() -> None:
    with pytest.raises(ValueError, match="cut_padding: is for models of audio"):
        sparsify(zoo.build("marian"), L0DropConfig(cut_padding=0.5))
    with pytest.raises(ValueError, match="cut_padding: expected seconds that are not negative"):
        L0DropConfig(cut_padding=-1.0)
    model = build("zero", torch.float32)
    plain = whispers.build().get_encoder()(padded())
    with pytest.raises(ValueError, match="encoder_outputs: with cut_padding"):
        model(encoder_outputs=plain, decoder_input_ids=torch.zeros(6, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="gates: a model with cut_padding"):
        Engine(model).encode(padded(), gates=torch.ones(6, whispers.ROWS))
