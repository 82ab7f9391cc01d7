"""Padded to a shape and computed at full length, a batch gives the memory of the plain path; here without graphs."""

import functools
import warnings

import pytest
import torch

from l0drop import Engine, Gate, Gates, L0DropConfig, load, register_gate, sparsify
from l0drop.core.gates import LearnedGate
from l0drop.core.memory import GATINGS
from l0drop.decoding.gpu import encoding, plain
from l0drop.decoding.gpu.encoding import EncoderGraphs
from l0drop.decoding.gpu.slots import SLOTS, Slots
from l0drop.decoding.gpu.state import State
from l0drop.decoding.gpu.step import DecoderStep
from l0drop.models.families import positions_of
from tests.decoding.gpu.test_slots import FAMILIES
from tests.models import whispers, zoo

LENGTHS = (21, 17, 9, 20, 3)
"""Five sentences of up to 21 tokens are padded to six of 24."""


def sparse(family, attention="sdpa", **config):
    model = sparsify(zoo.build(family, attention), L0DropConfig(**{"gating": "zero", **config}))
    if config.get("gate", "learned") == "learned":
        zoo.spread_gates(model)
    return model.eval().double()


@pytest.fixture
def on_gpu(monkeypatch):
    """Engines do on the CPU what they do on a GPU, without kernels and graphs; returns the calls that used shapes."""
    used = []

    class Noted(EncoderGraphs):
        def _outputs(self, part, ids, mask):
            outputs = super()._outputs(part, ids, mask)
            if outputs is not None:
                used.append((part, *outputs.states.shape[:2]))
            return outputs

    monkeypatch.setattr(Engine, "_can_capture", lambda self: True)
    monkeypatch.setattr(Engine, "_groups_to_encode", lambda self, mask, dense: whole(mask, dense))
    monkeypatch.setattr("l0drop.decoding.encode.EncoderGraphs", functools.partial(Noted, capture=False))
    monkeypatch.setattr(Engine, "_fits_slots", lambda self, search: True)
    monkeypatch.setattr(Slots, "on_gpu", lambda model: Slots(model, plain, capture=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield used


def whole(mask, dense):
    """As on a GPU: one group, or one for the short and one for the dense sentences."""
    every = range(len(mask))
    if not isinstance(dense, list):
        return [[*every]]
    return [group for kind in (False, True) if (group := [i for i in every if dense[i] is kind])]


def same(one, two):
    for name in ("states", "bias", "index", "count"):
        close(getattr(one.memory, name), getattr(two.memory, name))
    close(one.kept, two.kept)
    assert (one.gates is None) == (two.gates is None)
    for left, right in zip(one.gates or (), two.gates or (), strict=True):
        assert (left is None) == (right is None)
        if left is not None:  # values behind the last token mean nothing
            close(left * one.real, right * one.real)
    assert list(one.checked_rows()) == list(two.checked_rows()) == two.rows.tolist()


def close(left, right):
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    if left.is_floating_point():
        assert torch.equal(left.isfinite(), right.isfinite())
        left, right = left.nan_to_num(neginf=0), right.nan_to_num(neginf=0)
        assert (left - right).abs().max() < 1e-12
    else:
        assert torch.equal(left, right)


def encoded(model, batch, **settings):
    found = Engine(model).encode(batch["input_ids"], batch["attention_mask"], **settings)
    object.__setattr__(found, "real", batch["attention_mask"].bool())
    return found


def both(model, on_gpu, batch=None, **settings):
    batch = batch or zoo.ragged_batch(LENGTHS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_can_capture", lambda self: False)
        expected = encoded(model, batch, **settings)
    assert not on_gpu
    same(expected, encoded(model, batch, **settings))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, attention, on_gpu):
    both(sparse(family, attention), on_gpu)
    assert on_gpu == [("short", 6, 25)]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
def test_gatings(gating, dense, on_gpu):
    both(sparse("marian", gating=gating), on_gpu, dense=dense)
    assert on_gpu == [("dense", 6, 24) if dense else ("short", 6, 24 + (gating in ("zero", "mean")))]


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("bias", [-50.0, 50.0])
def test_all_gates_closed_and_all_open(gating, bias, on_gpu):
    model = sparse("marian", gating=gating)
    with torch.no_grad():
        model.gate.bias.fill_(bias)
    both(model, on_gpu)
    assert on_gpu


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_models_without_gates(family, on_gpu):
    both(zoo.build(family, "sdpa").double(), on_gpu)
    model = sparse(family)
    model.config.l0drop.enabled = False
    on_gpu.clear()
    both(model, on_gpu)
    assert on_gpu == [("ungated", 6, 24)]


@register_gate("odd-positions")
class OddPositions(Gate):
    def forward(self, encodings, mask, input_ids=None, hints=None):
        odd = torch.arange(mask.shape[1], device=mask.device) % 2 == 1
        return Gates((odd & mask).to(encodings.dtype))


@register_gate("every-third")
class EveryThird(Gate):
    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.first = first

    def graph_key(self):
        return (self.first,)

    def forward(self, encodings, mask, input_ids=None, hints=None):
        kept = (mask.cumsum(1) + self.first) % 3 == 1
        return Gates((kept & mask).to(encodings.dtype))


class Silent(LearnedGate):
    """It may read values: it does not say that it can be captured."""

    def log_alpha(self, encodings):
        return super().log_alpha(encodings) * 2


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": 0.3},
        {"keep": [0.3, None, None, 1.0, 0.5]},
        {"max_memory": 5},
        {"shift": [1.0, None, -1.0, None, 0.0]},
        {"dense": [True, False, True, False, False]},
        {"gates": "given"},
        {"hints": "given"},
    ],
    ids=str,
)
def test_other_settings_replay_the_encoder_alone(settings, on_gpu):
    given = (torch.arange(21) % 2).double() * zoo.ragged_batch(LENGTHS)["attention_mask"]
    settings = {name: given if name == "gates" else value for name, value in settings.items()}
    settings = {name: {"tags": given} if name == "hints" else value for name, value in settings.items()}
    both(sparse("bart"), on_gpu, **settings)
    assert on_gpu[0][0] == "encodings"


@pytest.mark.parametrize("config", [{"gate": "odd-positions"}, {"always_keep": [5, 8, 13]}], ids=str)
def test_other_gates_replay_the_encoder_alone(config, on_gpu):
    both(sparse("m2m100", **config), on_gpu)
    assert on_gpu == [("encodings", 6, 24)]


def test_a_shortener_replays_the_encoder_alone(on_gpu):
    both(sparsify(zoo.build("m2m100").double(), L0DropConfig(shortener="merge")), on_gpu)
    assert on_gpu == [("encodings", 6, 24)]


def test_a_gate_that_says_so_is_part_of_the_graph(on_gpu):
    model = sparse("m2m100", gate="every-third")
    both(model, on_gpu)
    assert on_gpu == [("short", 6, 25)]  # with the zero row
    model.gate.first = 1
    on_gpu.clear()
    both(model, on_gpu)


def test_a_subclass_of_the_learned_gate_is_not_part_of_the_graph(on_gpu):
    model = sparse("m2m100")
    model.gate = Silent(width=model.config.d_model).double()
    zoo.spread_gates(model)
    both(model, on_gpu)
    assert {part for part, *_ in on_gpu} == {"encodings"}


def test_a_dial_of_the_caller_stays_in_effect(on_gpu):
    model = sparse("marian")
    for setting in ({"keep": 0.2}, {"dense": True}):
        on_gpu.clear()
        with model.dial(**setting):
            both(model, on_gpu)
        assert on_gpu[0][0] == ("dense" if "dense" in setting else "encodings")


@pytest.mark.parametrize("family", ["t5", "m2m100", "marian"])
def test_masks_with_padding_anywhere(family, on_gpu):
    batch = zoo.ragged_batch(LENGTHS)
    batch = {name: tensor.flip(1) for name, tensor in batch.items()}
    batch["attention_mask"][0, 4] = 0
    both(sparse(family), on_gpu, batch)
    assert on_gpu


def test_outputs_over_many_shapes(on_gpu):
    model = sparse("pegasus")
    engine = Engine(model)
    for seed, lengths in enumerate([(24, 17, 9), (3,), (64, 63), (5,) * 33, (20, 11, 7, 5, 24, 2), (3,)]):
        batch = zoo.ragged_batch(lengths, seed)
        given = {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        found = engine.generate(**given, num_beams=2, max_new_tokens=6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "_can_capture", lambda self: False)
            patch.setattr(Engine, "_fits_slots", lambda self, search: False)
            expected = Engine(model).generate(**given, num_beams=2, max_new_tokens=6)
        assert torch.equal(found.sequences, expected.sequences)
        assert (found.scores - expected.scores).abs().max() < 1e-6
    assert [shape[1:] for shape in on_gpu] == [(4, 25), (1, 9), (2, 65), (40, 9), (6, 25), (1, 9)]


def test_earlier_outputs_are_not_overwritten(on_gpu):
    engine, first = Engine(sparse("bart")), zoo.ragged_batch((20, 9), 1)
    one = engine.encode(first["input_ids"], first["attention_mask"])
    before = one.memory.states.clone()
    engine.encode(zoo.ragged_batch((20, 9), 2)["input_ids"])
    assert torch.equal(one.memory.states, before)
    assert not one.memory.states.is_inference()
    assert len(on_gpu) == 2


def test_shapes_are_few_and_close():
    model = sparse("t5")
    graphs = EncoderGraphs(model, capture=False)
    lengths = {graphs.shape_for(1, length)[1] for length in range(1, 2049)}
    assert len(lengths) < 50
    for length in range(1, 2049):
        B, N = graphs.shape_for(1, length)
        assert (B, N % 8) == (1, 0)
        assert 0 <= N - length < max(8, length / 8 + 1)
    assert {graphs.shape_for(size, 9)[0] for size in range(1, 257)} == set(SLOTS)
    assert graphs.shape_for(257, 9) is None
    assert graphs.shape_for(16, 1025) is None
    assert graphs.shape_for(1, 1 << 14) is None, "relative positions need all scores at once"
    bart = sparse("bart")
    assert EncoderGraphs(bart, capture=False).shape_for(2, 63) == (2, positions_of(bart, "encoder"))


def test_broken_weights_raise_the_error_of_the_plain_path(on_gpu):
    batch = zoo.ragged_batch(LENGTHS)
    for name in ("encoder", "gate"):
        model = sparse("marian")
        weight = model.gate.weight if name == "gate" else model.get_encoder().layers[0].fc1.weight
        with torch.no_grad():
            weight[:] = torch.nan
        with pytest.raises(ValueError, match="NaN"):
            Engine(model).generate(batch["input_ids"], batch["attention_mask"], num_beams=2, max_new_tokens=4)
    assert on_gpu


@pytest.mark.parametrize("family", FAMILIES)
def test_float16(family, on_gpu):
    """Layers that look at their values in float16, with values that fit and with values that do not."""
    model, batch = sparse(family).half(), zoo.ragged_batch(LENGTHS)
    graphs = EncoderGraphs(model, capture=False)
    with torch.no_grad():
        expected = model.base_class.get_encoder(model)(**batch).last_hidden_state
        real = batch["attention_mask"].bool()
        found = graphs.encodings(batch["input_ids"], real)
        assert (found - expected)[real].abs().max() < 0.02 * expected[real].abs().max()
        layer = (model.get_encoder().block if "t5" in family else model.get_encoder().layers)[-1]
        (layer.layer[-1].layer_norm if "t5" in family else layer.final_layer_norm).weight.fill_(torch.inf)
        assert graphs.encodings(batch["input_ids"], real) is None


def test_changes_of_the_model_are_noticed(on_gpu):
    model, batch = sparse("marian"), zoo.ragged_batch(LENGTHS)
    engine, made = Engine(model), []
    for change in (
        lambda: None,
        lambda: setattr(model.gate, "epsilon", 0.2),
        lambda: model.set_attn_implementation("eager"),
        lambda: setattr(model, "gate", sparse("bart").gate),
        lambda: model.gate.close_at(0.5),
        lambda: model.get_encoder().layers[0].fc1.weight.detach().mul_(-1),
    ):
        change()
        found = engine.encode(batch["input_ids"], batch["attention_mask"])
        made.append(engine._made_graphs.latest)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "_can_capture", lambda self: False)
            expected = Engine(model).encode(batch["input_ids"], batch["attention_mask"])
        assert (found.memory.states - expected.memory.states).abs().max() < 1e-12
    assert len({*map(id, made)}) == len(made)


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_encoders_with_code_of_others_are_not_captured():
    def can(model):
        return encoding.can_capture(model, getattr(model, "base_class", type(model)).get_encoder(model))

    model = sparse("bart").float()
    assert can(model)
    assert can(zoo.build("t5"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not can(model)
    handle = model.get_encoder().layers[0].register_forward_hook(lambda *_: None)
    assert not can(model)
    handle.remove()
    assert can(model)
    model.base_class.get_encoder(model)(torch.ones(1, 3, dtype=torch.long), output_hidden_states=True)
    assert can(model), "Hugging Face's own hooks"
    model.get_encoder().layers[0].fc1 = Doubled(32, 64)
    assert not can(model)
    assert not can(sparse("bart"))  # float64
    assert not can(zoo.build("led"))
    assert not can(whispers.build())
    assert not can(sparse("bart", layerwise=True).float())
    assert can(sparsify(zoo.build("bart"), L0DropConfig(shortener="mean_pool")))
    assert not can(sparsify(zoo.build("bart"), L0DropConfig(shortener="top_attention"))), "it reads the last layer"


# --- out of memory -----------------------------------------------------------------------------------------------


def no_memory(*args, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def failing_once(real, at):
    calls = []

    def function(*args, **kwargs):
        calls.append(1)
        return no_memory() if len(calls) == at else real(*args, **kwargs)

    return function


class _Torch:
    """torch for `slots.py`, whose `empty` fails at a call for a tensor with so many dimensions."""

    def __init__(self, dimensions, at):
        self.dimensions, self.left = dimensions, at

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, shape, **settings):
        if shape:
            self.left -= (len(shape) if isinstance(shape, tuple) else 1) == self.dimensions
            if self.left == 0:
                self.left = -1
                no_memory()
        return torch.empty(shape, **settings)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("where", ["encoder", "arena", "bias", "state", "projection"])
def test_an_engine_is_usable_after_memory_ran_out(where, at, on_gpu, sparse_folder, monkeypatch):
    """Wherever an allocation fails, the halved batches give the same outputs."""
    texts = [f"the {one} sees a {two} ." for one in ("dog", "cat", "bird") for two in ("road", "river the stone")]
    model = load(sparse_folder, "cpu", "float64")
    settings = {"num_beams": 2, "max_new_tokens": 8}
    wanted = {text: model.generate([text], **settings)[0] for text in texts}
    model = load(sparse_folder, "cpu", "float64")
    monkeypatch.setattr("l0drop.decoding.gpu.slots.ARENA", 1)  # so that it grows with every batch
    if where == "encoder":
        monkeypatch.setattr(EncoderGraphs, "_compute", failing_once(EncoderGraphs._compute, at))
    elif where == "state":
        monkeypatch.setattr(State, "empty", failing_once(State.empty, at))
    elif where == "projection":
        monkeypatch.setattr(DecoderStep, "project", failing_once(DecoderStep.project, at))
    else:
        monkeypatch.setattr("l0drop.decoding.gpu.slots.torch", _Torch(3 if where == "arena" else 1, at))
    halved = []
    for batch in (texts[:2], texts[:4], texts):
        sources = model.encode(batch)
        found = model.decode(sources, model.settings(None, settings), lambda sources: halved.append(len(sources)))
        for text, result in zip(batch, found, strict=True):
            assert result.text == wanted[text].text
            assert result.kept == wanted[text].kept
            assert abs(result.score - wanted[text].score) < 1e-6
    assert halved == ([] if where == "encoder" else [(2, 4, 6)[at - 1]])  # an encoder goes on without graphs


def test_buffers_are_freed_when_memory_runs_out(on_gpu, monkeypatch):
    engine, batch = Engine(sparse("marian")), zoo.ragged_batch(LENGTHS)
    given = {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    engine.generate(**given, num_beams=2, max_new_tokens=4)
    slots, graphs = engine._made_slots.latest, engine._made_graphs.latest
    assert slots.arena.numel() * len(slots.captured)
    assert graphs._given is not None
    monkeypatch.setattr(DecoderStep, "project", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        engine.generate(**given, num_beams=2, max_new_tokens=4)
    assert not slots.arena.numel() + slots.bias.numel() + len(slots.captured)
    assert graphs._given is graphs._staged is graphs._states is None
