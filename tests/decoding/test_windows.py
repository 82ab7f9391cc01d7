"""Whisper in the engine: the tokens of generate, in one window and in many."""

import pytest
import torch

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.core.memory import GATINGS
from tests.models import whispers

PROMPT = torch.tensor([whispers.PREVIOUS, 11, 12, 13])
WAYS = {
    "detected language": {},
    "languages": {"language": ["de", "en", "de", "de", "en", "en"], "task": "translate"},
    "beams": {"language": "en", "num_beams": 5},
    "timestamps": {"language": "en", "return_timestamps": True},
    "timestamps and beams": {"language": "en", "return_timestamps": True, "num_beams": 5},
    "prompt": {"language": "en", "prompt_ids": PROMPT, "num_beams": 2},
    "new tokens": {"language": "en", "max_new_tokens": 6, "min_new_tokens": 3, "num_beams": 3, "length_penalty": 0.5},
    "constraints": {"language": "en", "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "early_stopping": True},
}


def some_closed(gating: str, dtype: torch.dtype = torch.float64, **options):  # type: ignore[no-untyped-def]
    return whispers.spread_gates(sparsify(whispers.build().to(dtype), L0DropConfig(gating=gating, **options)))


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@torch.no_grad()
def test_the_tokens_of_generate(gating: str, dtype: torch.dtype) -> None:
    model, features = some_closed(gating, dtype), whispers.features().to(dtype)
    engine = Engine(model, linears="plain")
    for name, way in WAYS.items():
        found = engine.generate(features, **way)
        assert torch.equal(found.sequences, model.generate(features, **way)), name
        assert found.kept.shape == (6, whispers.ROWS)
        assert torch.equal(found.kept, found.gates.values != 0)
        assert 0 < int(found.kept.sum()) < found.kept.numel()


@torch.no_grad()
def test_a_plain_model_and_gates_inside_the_encoder() -> None:
    features = whispers.features().double()
    for model in (whispers.build().double(), some_closed("mask", layerwise=[0, 2])):
        engine = Engine(model)
        for way in WAYS.values():
            assert torch.equal(engine.generate(features, **way).sequences, model.generate(features, **way))


@torch.no_grad()
def test_scores_are_those_of_generate() -> None:
    model, features = some_closed("zero"), whispers.features().double()
    for beams in (1, 4):
        way = {"language": "en", "num_beams": beams, "suppress_tokens": [*range(68, whispers.VOCABULARY)]}
        found = Engine(model).generate(features, **way)
        output = model.generate(features, **way, return_dict_in_generate=True, output_scores=True)
        if beams > 1:
            expected = output.sequences_scores
        else:
            gains = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
            real = gains > -torch.inf
            ended = (output.sequences[:, -gains.shape[1] :] == whispers.EOS).cumsum(1)
            counted = real & ((ended == 0) | ((ended == 1) & (ended.cumsum(1) == 1)))
            expected = (gains.masked_fill(~counted, 0).sum(1)) / counted.sum(1)
        torch.testing.assert_close(found.scores.double(), expected.double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("gating", GATINGS)
@torch.no_grad()
def test_long_recordings_in_the_windows_of_generate(gating: str) -> None:
    model, features = some_closed(gating), whispers.features(3, 170).double()
    mask = (torch.arange(170) < torch.tensor([[170], [131], [60]])).long()
    engine = Engine(model)
    ways = ({}, {"num_beams": 5}, {"condition_on_prev_tokens": True, "num_beams": 2}, {"prompt_ids": PROMPT})
    for way in ways:
        arguments = {"attention_mask": mask, "language": "en", "return_timestamps": True, **way}
        found = engine.generate(features, **arguments)
        expected = model.generate(features, **arguments, return_segments=True)
        assert torch.equal(found.sequences, expected["sequences"])
        for own, other in zip(found.segments, expected["segments"], strict=True):
            assert [part.start for part in own] == [float(part["start"]) for part in other]
            assert [part.end for part in own] == [float(part["end"]) for part in other]
            assert [part.tokens for part in own] == [tuple(part["tokens"].tolist()) for part in other]
        starts = [[w.start for w in found.windows if w.clip == clip] for clip in range(3)]
        assert all(own[0] == 0 and own == sorted(own) for own in starts)
        assert len(starts[0]) > len(starts[2]) >= 2


@pytest.mark.parametrize("beams", [1, 5])
@torch.no_grad()
def test_a_long_recording_does_not_depend_on_its_batch(beams: int) -> None:
    """Recordings of a batch have windows at different times, and the shorter ones end earlier."""
    model, features = some_closed("zero"), whispers.features(3, 170).double()
    lengths = [170, 131, 60]
    mask = (torch.arange(170) < torch.tensor(lengths)[:, None]).long()
    engine, way = Engine(model), {"language": "en", "return_timestamps": True, "num_beams": beams}
    together = engine.generate(features, mask, **way)
    for clip, length in enumerate(lengths):
        alone = engine.generate(features[clip : clip + 1, :, :length], mask[clip : clip + 1, :length], **way)
        assert together.segments[clip] == alone.segments[0]
        assert float(together.scores[clip]) == pytest.approx(float(alone.scores[0]), abs=1e-9)
        own = [window for window in together.windows if window.clip == clip]
        assert [window.start for window in own] == [window.start for window in alone.windows]
        assert all(torch.equal(one.kept, other.kept) for one, other in zip(own, alone.windows, strict=True))


@torch.no_grad()
def test_long_recordings_without_times_are_refused_as_by_generate() -> None:
    """The windows follow each other by their times."""
    model, features = some_closed("zero"), whispers.features(1, 170).double()
    arguments = {"attention_mask": torch.ones(1, 170).long(), "language": "en", "return_timestamps": False}
    messages = []
    for generate in (Engine(model).generate, model.generate):
        with pytest.raises(ValueError, match="return_timestamps=True") as caught:
            generate(features, **arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@torch.no_grad()
def test_batches_and_the_dial_change_no_clip() -> None:
    model, features = some_closed("zero"), whispers.features().double()
    engine = Engine(model)
    for setting in ({}, {"keep": 0.3}, {"dense": True}, {"max_memory": 5}):
        together = engine.generate(features, language="en", num_beams=3, **setting)
        with model.dial(**setting):
            assert torch.equal(together.sequences, model.generate(features, language="en", num_beams=3))
        for clip in range(6):
            alone = engine.generate(features[clip : clip + 1], language="en", num_beams=3, **setting)
            own = alone.sequences[0]
            assert together.sequences[clip, : len(own)].tolist() == own.tolist()
            assert torch.equal(alone.kept[0], together.kept[clip])
    assert torch.equal(together.kept.sum(1) <= 4, torch.ones(6, dtype=torch.bool))


@torch.no_grad()
def test_repetitive_and_unlikely_windows_are_tried_again() -> None:
    model, features = some_closed("zero"), whispers.features(2).double()
    engine = Engine(model)
    greedy = engine.generate(features, language="en")
    way = {"language": "en", "temperature": (0.0, 0.5)}
    kept = engine.generate(features, **way, logprob_threshold=float(greedy.scores.min()) - 0.01)
    assert torch.equal(kept.sequences, greedy.sequences)
    torch.manual_seed(0)
    again = engine.generate(features, **way, logprob_threshold=float(greedy.scores.mean()))
    worse = int(greedy.scores.argmin())
    assert again.sequences[worse].tolist() != greedy.sequences[worse].tolist()
    better = greedy.sequences[1 - worse].tolist()
    assert again.sequences[1 - worse, : len(better)].tolist() == better
    expected = model.generate(features, language="en", temperature=(0.0,), logprob_threshold=-9.0)
    assert torch.equal(expected, greedy.sequences)


@torch.no_grad()
def test_int8_decodes_nearly_the_same() -> None:
    model, features = whispers.build(), whispers.features()
    exact, rounded = Engine(model), Engine(model, dtype="int8")
    memories = [engine.encode(features).memory.states for engine in (exact, rounded)]
    scale = float(memories[0].abs().max())
    assert 0 < float((memories[0] - memories[1]).abs().max()) < 0.2 * scale
    assert rounded.generate(features, language="en").sequences.shape[0] == 6


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"return_token_timestamps": True}, "`return_token_timestamps`: the engine does not support this for audio"),
        ({"no_speech_threshold": 0.5}, "`no_speech_threshold`: the engine does not support"),
        ({"num_return_sequences": 2, "num_beams": 2}, "`num_return_sequences`: the engine does not support"),
        ({"logprob_threshold": -1.0, "num_beams": 2}, "`logprob_threshold`: .* `num_beams=1`"),
        ({"temperature": ()}, "`temperature`: .* empty list"),
        ({"num_beems": 2}, r"`num_beems`: not a generation setting; did you mean `num_beams`\?"),
        ({"keep": [0.5] * 6}, "keep: for audio, expected one setting"),
        ({"gates": torch.ones(6, 24)}, "gates: not supported for audio"),
        ({"num_beams": 0}, "`num_beams`: expected a"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(whispers.build()).generate(whispers.features(), **{"language": "en", **setting})


def test_wrong_inputs_are_refused() -> None:
    engine = Engine(whispers.build())
    with pytest.raises(ValueError, match=r"inputs: expected features of audio \[B, 8, 48\], got"):
        engine.encode(whispers.features(2, 40))
    with pytest.raises(TypeError, match="inputs: expected features of audio"):
        engine.encode(["speech.wav"])
