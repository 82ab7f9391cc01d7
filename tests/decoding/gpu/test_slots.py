"""The search in slots gives the tokens of the engine's own loop; here with plain operations, so it needs no GPU."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.decoding.gpu import plain
from l0drop.decoding.gpu.slots import BrokenScoresError, Slots, _Watch, reason_against
from l0drop.decoding.gpu.state import State
from tests.models import whispers, zoo

FAMILIES = [family for family in zoo.FAMILIES if family != "led"]
SETTINGS = [
    {"num_beams": 4, "max_new_tokens": 12},
    {"num_beams": 4, "max_new_tokens": 9, "early_stopping": True, "num_return_sequences": 3},
    {"num_beams": 3, "max_new_tokens": 9, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 1, "max_new_tokens": 12},
    {"num_beams": 4, "max_new_tokens": 10, "length_penalty_style": "gnmt", "length_penalty": 0.6},
    {"num_beams": 3, "max_new_tokens": 8, "min_new_tokens": 5, "forced_bos_token_id": 7, "forced_eos_token_id": 2},
    {"num_beams": 2, "max_new_tokens": 8, "bad_words_ids": [[5], [9]], "suppress_tokens": [11, 12]},
    {"num_beams": 1, "max_new_tokens": 8, "begin_suppress_tokens": [2, 3, 4], "suppress_tokens": [20]},
    {"num_beams": 2, "max_new_tokens": 8, "min_new_tokens": 8},
    {"num_beams": 3, "max_new_tokens": 14, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4},
    {"num_beams": 1, "max_new_tokens": 14, "no_repeat_ngram_size": 3},
    {"num_beams": 3, "max_new_tokens": 9, "renormalize_logits": True, "bad_words_ids": [[5], [9]]},
]


def sparse(family, early_end=True):
    model = sparsify(zoo.build(family, "sdpa"), L0DropConfig(gating="zero"))
    zoo.spread_gates(model)
    if early_end:  # random models seldom choose EOS; with a bias some hypotheses end early
        raise_eos(model, 2.5)
    return model.eval().double()


@torch.no_grad()
def raise_eos(model, by):
    if "final_logits_bias" in model._buffers:
        model._buffers["final_logits_bias"][0, 2] += by
    else:
        head = model.get_output_embeddings()
        head.bias = torch.nn.Parameter(torch.zeros(zoo.VOCABULARY))
        head.bias[2] = by


def both(model, batch, slots=None, given=None, **settings):
    engine = Engine(model)
    encoded = engine.encode(batch["input_ids"], batch["attention_mask"])
    search = engine.search(**settings)
    expected = engine.run_search(encoded, search)
    found, _ = Slots(model, plain, capture=False).search(
        encoded.memory, encoded.rows.tolist(), search, given, slots or 256
    )
    return expected, found


def check(expected, found):
    longest = expected.sequences.shape[1]
    assert torch.equal(expected.sequences, found.tokens.flatten(0, 1)[:, :longest])
    assert int(found.lengths.max()) == longest
    assert (expected.scores - found.scores.flatten()).abs().max() < 1e-6


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings(settings):
    check(*both(sparse("marian"), zoo.ragged_batch(), **settings))


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    check(*both(sparse(family), zoo.ragged_batch(), num_beams=4, max_new_tokens=20))


@pytest.mark.parametrize("family", ["marian", "bart", "m2m100"])
def test_outputs_of_all_positions(family):
    """Finished sentences wait for the others behind the last position."""
    model = sparse(family, early_end=False)
    check(*both(model, zoo.ragged_batch((24, 3)), 1, num_beams=2, max_new_tokens=64, min_new_tokens=64))


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("beams", [1, 3])
def test_refilled_slots(slots, beams):
    batch = zoo.ragged_batch(lengths=(24, 17, 9, 20, 24, 3, 11, 12, 2, 7, 23))
    check(*both(sparse("bart"), batch, slots, num_beams=beams, max_new_tokens=20))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4},
        {"num_beams": 1, "no_repeat_ngram_size": 1, "repetition_penalty": 0.7},
        {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True, "min_new_tokens": 4},
        {"num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": 2, "length_penalty_style": "gnmt"},
    ],
    ids=str,
)
def test_settings_in_refilled_slots(settings, monkeypatch):
    """Nothing of a slot's earlier sentence counts; memories are decoded in two parts."""
    monkeypatch.setattr(Slots, "_most_rows", lambda self: 60)
    batch = zoo.ragged_batch(lengths=(24, 17, 9, 20, 24, 3, 11, 12, 2, 7, 23))
    check(*both(sparse("marian"), batch, 2, max_new_tokens=14, **settings))


@pytest.mark.parametrize("family", ["marian", "t5"])
@pytest.mark.parametrize("longest", [31, 32, 63])
def test_lengths_at_the_end_of_the_buffers(family, longest):
    """31 new tokens and the start token fill the smallest buffers; 32 need the next ones."""
    model = sparse(family, early_end=False)
    batch = zoo.ragged_batch((9, 4, 7))
    check(*both(model, batch, 2, num_beams=2, max_new_tokens=longest, min_new_tokens=longest))


def test_some_hypotheses_end_early_and_some_do_not():
    _, found = both(sparse("marian"), zoo.ragged_batch(), num_beams=4, max_new_tokens=12)
    assert found.lengths.min() < found.lengths.max()


def test_one_object_for_many_searches_and_batches():
    """Buffers are used again, with other settings, memories, and numbers of sentences."""
    model = sparse("marian")
    engine, slots = Engine(model), Slots(model, plain, capture=False)
    for seed, lengths in enumerate([(24, 17, 9), (3, 4), (20, 11, 7, 5, 24, 2), (9,)]):
        batch = zoo.ragged_batch(lengths, seed)
        encoded = engine.encode(batch["input_ids"], batch["attention_mask"])
        for settings in (
            {"num_beams": 3, "max_new_tokens": 9},
            {"num_beams": 3, "max_new_tokens": 5, "min_new_tokens": 5},
        ):
            search = engine.search(**settings)
            found, _ = slots.search(encoded.memory, encoded.rows.tolist(), search, None)
            check(engine.run_search(encoded, search), found)
    assert len(slots.captured) == 4  # 3, 2, 6 and 1 sentences


def test_captured_steps_are_forgotten(monkeypatch):
    monkeypatch.setattr("l0drop.decoding.gpu.slots.CAPTURED", 2)
    model = sparse("marian")
    engine, slots = Engine(model), Slots(model, plain, capture=False)
    for beams in (1, 2, 3, 2, 4):
        batch = zoo.ragged_batch((9, 4))
        encoded = engine.encode(batch["input_ids"], batch["attention_mask"])
        search = engine.search(num_beams=beams, max_new_tokens=6)
        check(engine.run_search(encoded, search), slots.search(encoded.memory, encoded.rows.tolist(), search, None)[0])
    assert [key[1] for key in slots.captured] == [2, 4]


def test_given_tokens():
    """Outputs that begin with several given tokens, as Whisper's do."""
    model = sparse("bart")
    batch = zoo.ragged_batch()
    engine = Engine(model)
    encoded = engine.encode(batch["input_ids"], batch["attention_mask"])
    search = replace(engine.search(num_beams=3, max_new_tokens=12), given=4)
    given = torch.randint(5, 90, (6, 4))
    expected = engine.run_search(encoded, search, given)
    found, _ = Slots(model, plain, capture=False).search(encoded.memory, encoded.rows.tolist(), search, given)
    check(expected, found)
    assert torch.equal(found.tokens[:, 0, :4], given)


@torch.no_grad()
@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_t5_in_float16_keeps_some_weights_in_float32(family):
    """As `from_pretrained` loads it."""
    model = sparse(family).half()
    for block in model.get_decoder().block:
        block.layer[-1].DenseReluDense.wo.float()
    settings = {"num_beams": 1, "max_new_tokens": 6, "min_new_tokens": 6}
    expected, found = both(model, zoo.ragged_batch(), **settings)
    wide, _ = both(copy.deepcopy(model).float(), zoo.ragged_batch(), **settings)
    for scores in (expected.scores, found.scores.flatten()):
        assert (scores - wide.scores).abs().max() < 0.02


def broken(model, lengths, *sentences):
    """Memories, of which these have a value that is not finite."""
    encoded = Engine(model).encode(inputs=zoo.ragged_batch(lengths)["input_ids"])
    rows = encoded.rows.tolist()
    encoded.memory.states[list(sentences)] = torch.nan
    return encoded.memory, rows


def test_broken_scores_of_a_slot_that_was_refilled():
    model = sparse("marian")
    search = Engine(model).search(num_beams=2, max_new_tokens=8)
    memory, rows = broken(model, (9,) * 5, 0)
    with pytest.raises(BrokenScoresError):
        Slots(model, plain, capture=False).search(memory, rows, search, None, most=2)


def test_broken_scores_are_not_those_of_the_next_search():
    """It fills fewer slots."""
    model = sparse("marian")
    search = Engine(model).search(num_beams=2, max_new_tokens=8)
    slots = Slots(model, plain, capture=False)
    with pytest.raises(BrokenScoresError):
        slots.search(*broken(model, (9,) * 4, 0, 1, 2, 3), search, None)
    found, _ = slots.search(*broken(model, (9,) * 3), search, None)
    assert found.scores.isfinite().all()
    assert len(slots.captured) == 1


def test_open_slots_are_read_in_the_order_of_their_gpu(monkeypatch):
    """Which need not be the current one."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    state = State.empty(2, 1, 32, 1, 4, torch.float32, torch.device("cpu"))
    recorded, watch = [], _Watch(state)
    watch.events = [SimpleNamespace(record=recorded.append, synchronize=lambda: None)] * 2
    state.open[1] = 1
    assert watch.closed() == []
    assert watch.closed() == [0]
    assert recorded == [("stream of", state.open.device)] * 2


@pytest.mark.parametrize("many", [False, True])
def test_memories_that_do_not_fit_together_are_decoded_in_parts(monkeypatch, many):
    model = sparse("marian")
    monkeypatch.setattr(Slots, "_most_rows", lambda self: 10_000 if many else 30)
    check(*both(model, zoo.ragged_batch(), num_beams=2, max_new_tokens=9))


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_reasons_against(monkeypatch):
    search = Engine(sparse("marian")).search(num_beams=2, max_new_tokens=5)
    model = zoo.build("marian")
    assert reason_against(model, search) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in reason_against(model, search)
    with monkeypatch.context() as patch:
        patch.setattr("l0drop.decoding.gpu.slots.find_spec", lambda name: None)
        assert "Triton" in reason_against(model, search)
    for changes, name in (
        ({"sample": True}, "do_sample"),
        ({"beams": 20}, "num_beams"),
        ({"max_length": 5000}, "max_new_tokens"),
    ):
        assert name in reason_against(model, replace(search, **changes))
    for parent, name in ((model.get_decoder().layers[1].encoder_attn, "k_proj"), (model, "lm_head")):
        own = getattr(parent, name)
        setattr(parent, name, Doubled(own.in_features, own.out_features))
        assert "decoder" in reason_against(model, search), "a step would read the weight and multiply by it alone"
        setattr(parent, name, own)
    assert reason_against(model, search) is None
    assert "float64" in reason_against(model.double(), search)
    assert "LED" in reason_against(zoo.build("led"), search)


@pytest.mark.parametrize(
    "settings", [{"num_beams": 3}, {"return_timestamps": True}, {"num_beams": 2, "return_timestamps": True}], ids=str
)
@pytest.mark.parametrize("frames", [whispers.FRAMES, 170])
def test_whisper(monkeypatch, settings, frames):
    """Prompts, suppressed tokens, timestamps, and recordings of several windows."""
    model = sparsify(whispers.build().double(), L0DropConfig(gating="zero"))
    whispers.spread_gates(model)
    features = whispers.features(3, frames).double()
    settings = {"language": "en", **settings, **({"return_timestamps": True} if frames > whispers.FRAMES else {})}
    settings["attention_mask"] = torch.ones(3, frames, dtype=torch.long)
    expected = Engine(model).generate(features, **settings)
    monkeypatch.setattr(Engine, "_fits_slots", lambda self, search: True)
    monkeypatch.setattr(Slots, "on_gpu", lambda model: Slots(model, plain, capture=False))
    engine = Engine(model)
    found = engine.generate(features, **settings)
    assert engine._made_slots.latest is not None
    assert torch.equal(expected.sequences, found.sequences)
    assert (expected.scores - found.scores).abs().max() < 1e-6
    assert expected.segments == found.segments
