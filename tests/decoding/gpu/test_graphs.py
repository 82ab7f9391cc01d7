"""What graphs read stays alive, their number and memory stay bounded, and the engine survives when capturing fails.

There is no GPU here: a stand-in for `Graphs` repeats the computation where a GPU would replay it. It notes the tensors
that were read while it captured, and a replay fails if one of them was freed since.
"""

import gc
import inspect
import sys
import threading
import warnings
import weakref
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from l0drop import Engine, L0DropConfig, load, sparsify
from l0drop.decoding.gpu import plain
from l0drop.decoding.gpu.graphs import Graphs
from l0drop.decoding.gpu.slots import Slots
from l0drop.decoding.gpu.step import DecoderStep
from tests.models import zoo

ON_GPU = Slots.on_gpu


class Inputs(TorchDispatchMode):
    """Notes the memory that a computation reads or writes and did not allocate itself."""

    def __init__(self):
        super().__init__()
        self.storages, self._own = {}, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {storage._cdata: storage for storage in storages_of((args, kwargs))}
        if function == torch.ops.aten.lift_fresh.default:  # a new tensor from numbers
            self._own |= set(given)
        for key, storage in given.items():
            if key not in self._own:
                self.storages[key] = StorageWeakRef(storage)
        result = function(*args, **(kwargs or {}))
        self._own |= {storage._cdata for storage in storages_of(result)} - set(self.storages)
        return result


def storages_of(tree):
    return [leaf.untyped_storage() for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


class Replay:
    """A captured computation. Its outputs stay where they were while it was captured."""

    def __init__(self, run, owner, inputs):
        self.run, self.owner, self.inputs = run, owner, inputs
        self.made = inspect.getclosurevars(run).nonlocals.get("made")
        self.outputs = None if self.made is None else self.made[0]

    def __call__(self):
        if self.owner.fails("replay"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert not [ref for ref in self.inputs if ref.expired()], "a graph reads memory that was freed"
        assert self.owner.busy.acquire(blocking=False), "graphs that share memory run at the same time"
        try:
            self.run()
            if self.made is not None:
                for old, new in zip(tensors_of(self.outputs), tensors_of(self.made[0]), strict=True):
                    old.copy_(new)
        finally:
            self.owner.busy.release()


def tensors_of(outputs):
    memory = vars(outputs.memory).values() if outputs.memory else ()
    parts = (outputs.states, outputs.numbers, *memory, *(outputs.gates or ()))
    return [part for part in parts if part is not None]


class Stand(Graphs):
    """The stand-in. failing: kinds of calls that fail, with the number of the call."""

    every: ClassVar = weakref.WeakSet()
    failing: ClassVar = {}

    def __init__(self, device):
        super().__init__(device)
        self.busy, self.waits = threading.Lock(), 0
        self.graphs = weakref.WeakSet()
        Stand.every.add(self)

    def fails(self, kind):
        left = Stand.failing.get(kind)
        if left is None:
            return False
        Stand.failing[kind] = left - 1
        return left == 1

    def capture(self, run):
        self._pool = self._pool or SimpleNamespace(graphs=weakref.WeakSet(), used=False)
        run()
        run()
        assert len(self._pool.graphs) or not self._pool.used, "torch refuses a pool whose graphs are all gone"
        self._pool.used = True
        with Inputs() as inputs:
            run()
        if self.fails("capture"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        replay = Replay(run, self, list(inputs.storages.values()))
        self._pool.graphs.add(replay)
        self.graphs.add(replay)
        return replay

    def wait(self):
        self.waits += 1


@pytest.fixture
def on_gpu(monkeypatch):
    """Engines capture everything, on the CPU."""
    Stand.failing.clear()
    Stand.every.clear()
    monkeypatch.setattr("l0drop.decoding.gpu.encoding.Graphs", Stand)
    monkeypatch.setattr("l0drop.decoding.gpu.slots.Graphs", Stand)
    monkeypatch.setattr(Engine, "_can_capture", lambda self: True)
    monkeypatch.setattr(Engine, "_groups_to_encode", lambda self, mask, dense: [list(range(len(mask)))])
    monkeypatch.setattr(Engine, "_fits_slots", lambda self, search: True)
    monkeypatch.setattr(Slots, "on_gpu", lambda model: Slots(model, plain))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def plainly(model, batch, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_can_capture", lambda self: False)
        patch.setattr(Engine, "_fits_slots", lambda self, search: False)
        return Engine(model).generate(**inputs_of(batch), **settings)


def inputs_of(batch):
    return {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def sparse(family):
    model = sparsify(zoo.build(family, "sdpa"), L0DropConfig(gating="zero"))
    zoo.spread_gates(model)
    return model.eval().double()


def same(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    assert (found.scores - expected.scores).abs().max() < 1e-6


def random_batches(count):
    draw = torch.Generator().manual_seed(0)

    def random(low, high):
        return int(torch.randint(low, high, (), generator=draw))

    for number in range(count):
        batch = zoo.ragged_batch(tuple(random(2, 25) for _ in range(random(1, 8))), number)
        yield batch, {"num_beams": random(1, 4), "max_new_tokens": 32 if number % 8 == 0 else random(2, 7)}


@pytest.mark.slow
def test_graphs_and_their_memory_are_bounded(on_gpu, monkeypatch):
    """Batches of random shapes, with room for few graphs and a growing arena, have the plain path's outputs."""
    monkeypatch.setattr("l0drop.decoding.gpu.slots.CAPTURED", 4)
    monkeypatch.setattr("l0drop.decoding.gpu.encoding.CAPTURED", 3)
    monkeypatch.setattr("l0drop.decoding.gpu.slots.ARENA", 1)
    model = sparse("marian")
    engine, most, arenas, states = Engine(model), 400_000, set(), []
    monkeypatch.setattr(Slots, "_most_state_bytes", lambda self: most)
    for number, (batch, settings) in enumerate(random_batches(32)):
        found = engine.generate(**inputs_of(batch), **settings)
        slots, graphs = engine._made_slots.latest, engine._made_graphs.latest
        states.append(sum(one.state.nbytes for one in slots.captured.values()))
        assert states[-1] <= 1.05 * most or len(slots.captured) == 1
        assert len(slots.captured) <= 4
        assert len(graphs.captured) <= 3
        gc.collect()
        assert len(slots._graphs.graphs) == len(slots.captured)
        assert len(graphs._graphs.graphs) == len(graphs.captured)
        arenas.add(slots.arena.shape[1])
        if number % 4 == 0:
            same(found, plainly(model, batch, **settings))
    assert len(arenas) > 1
    assert len(graphs.captured) == 3
    assert max(states) > most / 2


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_steps_are_captured_again_when_the_arena_grows(family, on_gpu, monkeypatch):
    """They read the one before, which was freed."""
    monkeypatch.setattr("l0drop.decoding.gpu.slots.ARENA", 1)
    model, settings = sparse(family), {"num_beams": 2, "max_new_tokens": 5}
    engine, made = Engine(model), []
    for lengths in ((5, 4), (24, 20), (5, 4)):
        batch = zoo.ragged_batch(lengths)
        same(engine.generate(**inputs_of(batch), **settings), plainly(model, batch, **settings))
        made.append(list(engine._made_slots.latest.captured.values()))
    assert list(map(len, made)) == [1, 1, 1]
    assert made[0] != made[1] == made[2]


def test_graphs_of_changed_weights_are_not_replayed(on_gpu):
    """The old weights were freed."""
    model, batch = sparse("bart"), zoo.ragged_batch()
    engine, settings = Engine(model), {"num_beams": 2, "max_new_tokens": 6}
    for change in (lambda: None, lambda: model.float().double(), lambda: model.get_encoder().to(torch.float64)):
        change()
        for _ in range(3):
            same(engine.generate(**inputs_of(batch), **settings), plainly(model, batch, **settings))


def test_threads_share_graphs(on_gpu):
    model = sparse("marian")
    engine, settings = Engine(model), {"num_beams": 2, "max_new_tokens": 6}
    batches = [zoo.ragged_batch(tuple(range(3, 3 + size)), seed) for seed, size in enumerate((3, 5, 3, 6))]
    expected = [plainly(model, batch, **settings) for batch in batches]
    failed = []

    def work(index):
        try:
            for _ in range(4):
                same(engine.generate(**inputs_of(batches[index]), **settings), expected[index])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert engine._made_graphs.latest.captured


# --- when capturing fails ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["capture", "replay"])
def test_memory_runs_out(kind, at, on_gpu, sparse_folder):
    """Wherever it runs out, batches are halved, or encoded without a graph, and outputs are the same."""
    texts = [f"the {one} sees a {two} ." for one in ("dog", "cat", "bird") for two in ("road", "river the stone")]
    settings = {"num_beams": 2, "max_new_tokens": 8}
    model = load(sparse_folder, "cpu", "float64")
    wanted = {text: model.generate([text], **settings)[0] for text in texts}
    model, halved = load(sparse_folder, "cpu", "float64"), []
    Stand.failing[kind] = at
    for _ in range(2):
        for batch in (texts[:4], texts):
            found = model.decode(model.encode(batch), model.settings(None, settings), halved.append)
            for text, result in zip(batch, found, strict=True):
                assert result.text == wanted[text].text
                assert abs(result.score - wanted[text].score) < 1e-6
    assert Stand.failing[kind] <= 0, "nothing failed"
    assert len(halved) <= 1
    if kind == "replay":
        assert halved
    assert sum(one.waits for one in Stand.every) >= (not halved or kind == "capture")
    assert model.engine._made_slots.latest.captured


@pytest.mark.parametrize("error", [RuntimeError("Failed to find C compiler."), TypeError("no such kernel")], ids=str)
def test_steps_that_cannot_be_captured_run_plainly_and_say_so_once(error, on_gpu, monkeypatch):
    model, batch, settings = sparse("marian"), zoo.ragged_batch(), {"num_beams": 2, "max_new_tokens": 6}
    expected, tried = plainly(model, batch, **settings), []

    def capture(self, run):
        tried.append(1)
        raise error

    monkeypatch.setattr(Stand, "capture", capture)
    monkeypatch.setattr(Engine, "_can_capture", lambda self: False)
    engine = Engine(model)
    with pytest.warns(UserWarning, match=f"cannot be captured.*{error}.*slower") as found:
        same(engine.generate(**inputs_of(batch), **settings), expected)
    assert found[0].filename == __file__
    same(engine.generate(**inputs_of(batch), **settings), expected)  # a second warning would be an error
    assert len(tried) == 1
    slots = engine._made_slots.latest
    assert not slots.arena.numel() + len(slots.captured)
    monkeypatch.undo()


def test_a_broken_triton_is_named_once(on_gpu, monkeypatch):
    model, batch, settings = sparse("marian"), zoo.ragged_batch(), {"num_beams": 2, "max_new_tokens": 6}
    expected, engine = plainly(model, batch, **settings), Engine(model)
    monkeypatch.setattr(Slots, "on_gpu", ON_GPU)
    monkeypatch.setitem(sys.modules, "l0drop.decoding.gpu.kernels", None)
    monkeypatch.delattr("l0drop.decoding.gpu.kernels", raising=False)
    with pytest.warns(UserWarning, match="cannot be captured.*ModuleNotFoundError.*kernels.*slower"):
        same(engine.generate(**inputs_of(batch), **settings), expected)
    same(engine.generate(**inputs_of(batch), **settings), expected)  # a second warning would be an error


def test_the_gpu_is_idle_before_buffers_are_used_after_an_error(on_gpu, monkeypatch):
    engine, batch = Engine(sparse("marian")), zoo.ragged_batch()
    settings = {"num_beams": 2, "max_new_tokens": 6}
    engine.generate(**inputs_of(batch), **settings)
    graphs = engine._made_slots.latest._graphs

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DecoderStep, "project", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(**inputs_of(batch), **settings)
    assert graphs.waits == 1
    engine.generate(**inputs_of(batch), **settings)
    assert graphs.waits == 1


def test_the_gpu_is_idle_before_buffers_are_freed(on_gpu):
    """Another thread's stream may still copy the outputs of a graph."""
    engine, batch = Engine(sparse("marian")), zoo.ragged_batch()
    engine.encode(**inputs_of(batch))
    engine.encode(**inputs_of(batch))
    graphs, held = engine._made_graphs.latest, []
    real = graphs._graphs.wait
    graphs._graphs.wait = lambda: (held.append(graphs._states is not None), real())
    engine.free()
    assert held == [True]
    assert graphs._states is None


def test_the_stream_of_captures_is_waited_for_even_if_the_computation_fails(monkeypatch):
    """Its caller frees buffers that the stream may still write to."""
    waited = []
    main = SimpleNamespace(wait_stream=waited.append)
    side = SimpleNamespace(wait_stream=lambda stream: None)
    nothing = lambda *_: warnings.catch_warnings()  # noqa: E731 - a context that does nothing
    fakes = {"Stream": lambda device: side, "current_stream": lambda device: main, "graph_pool_handle": object}
    for name, fake in {**fakes, "device": nothing, "stream": nothing}.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def run():
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Graphs(torch.device("cuda", 1)).capture(run)
    assert waited == [side]
