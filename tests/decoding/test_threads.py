"""One model and one engine used by several threads: every answer is the one that a single thread gets."""

import asyncio
import copy
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from l0drop import Engine, L0DropConfig, load, sparsify
from l0drop.core.gates import Gate, Gates
from l0drop.decoding.engine import Generation
from tests.decoding import folders
from tests.models import zoo

THREADS, ROUNDS = 8, 3
DIALS: tuple[dict[str, Any], ...] = (
    {}, {"keep": 0.3}, {"keep": 1.0}, {"shift": 2.0}, {"max_memory": 5}, {"dense": True},
    {"keep": 0.3, "dense": True}, {"shift": -2.0},
)  # fmt: skip
DECODING: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 6}


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Let threads interrupt each other every few operations."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def gated(family: str, **config: Any) -> Any:
    torch.manual_seed(1)
    return zoo.spread_gates(sparsify(zoo.build(family), L0DropConfig(**config)))


def in_threads(call: Callable[[int], Any]) -> list[Any]:
    """The results of `call(0)`, `call(1)`, ... from threads that start together."""
    together = threading.Barrier(THREADS)

    def run(number: int) -> list[Any]:
        together.wait()
        return [call(number) for _ in range(ROUNDS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for results in pool.map(run, range(THREADS)) for result in results]


def state_of(model: Any) -> dict[str, tuple[int, bool]]:
    return {name: (id(module), module.training) for name, module in model.named_modules()}


def assert_same(found: Generation, wanted: Generation) -> None:
    assert torch.equal(found.sequences, wanted.sequences)
    assert torch.equal(found.scores, wanted.scores)
    assert torch.equal(found.kept, wanted.kept)


def check_threads(model: Any, engine: Engine) -> None:
    """Mixed settings in 8 threads give the answers of one thread, on an engine that has made nothing yet."""
    batch, state = zoo.ragged_batch(), state_of(model)
    inputs = batch["input_ids"], batch["attention_mask"]
    serial = Engine(model)
    serial.linears = engine.linears
    wanted = [serial.generate(*inputs, **dial, **DECODING) for dial in DIALS]
    found = in_threads(lambda number: engine.generate(*inputs, **DIALS[number], **DECODING))
    for index, generation in enumerate(found):
        assert_same(generation, wanted[index // ROUNDS])
    assert not torch.equal(wanted[1].kept, wanted[2].kept), "otherwise the settings cannot be confused"
    assert state_of(model) == state
    assert_same(engine.generate(*inputs, **DECODING), wanted[0])


# --- the engine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_plain_layers(family: str) -> None:
    model = gated(family).double()
    check_threads(model, Engine(model))


@pytest.mark.parametrize("gating", ["mask", "zero"])
def test_gates_between_layers(gating: str) -> None:
    model = gated("marian", layerwise=True, gating=gating).double()
    check_threads(model, Engine(model))


@pytest.mark.parametrize("family", ["marian", "t5"])
@pytest.mark.parametrize("made", [{"linears": "packed"}, {"dtype": "int8"}], ids=["packed", "int8"])
def test_packed_layers(family: str, made: dict[str, str]) -> None:
    model = gated(family).float()
    check_threads(model, Engine(model, **made))


def test_weights_are_packed_once_for_all_threads() -> None:
    model, batch = gated("marian").float(), zoo.ragged_batch()
    engine = Engine(model, linears="packed")
    decoders = in_threads(lambda _: engine._decoder())
    assert all(decoder is decoders[0] for decoder in decoders)
    engine.encode(batch["input_ids"], batch["attention_mask"])
    made = engine._made_encoder.latest
    engine.encode(batch["input_ids"], batch["attention_mask"])
    assert engine._made_encoder.latest is made


def test_engines_of_several_models_are_made_together() -> None:
    """Packing int8 weights and building modules set global state of torch, which must be as before afterwards."""
    models = [gated("marian").float() for _ in range(THREADS)]
    batch = zoo.ragged_batch()
    setting, initializer = torch.backends.quantized.engine, torch.nn.init.normal_
    wanted = Engine(models[0], dtype="int8").generate(batch["input_ids"], batch["attention_mask"], **DECODING)
    found = in_threads(
        lambda number: Engine(models[number], dtype="int8").generate(
            batch["input_ids"], batch["attention_mask"], **DECODING
        )
    )
    for generation in found:
        assert_same(generation, wanted)
    assert torch.backends.quantized.engine == setting
    assert torch.nn.init.normal_ is initializer


def test_led_decodes_through_generate() -> None:
    model = gated("led").double()
    check_threads(model, Engine(model))


# --- what decoding leaves alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["marian", "t5", "led"])
def test_a_model_in_training_mode_decodes_as_in_eval_mode(family: str) -> None:
    model, batch = gated(family).float(), zoo.ragged_batch()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.5
    inputs = batch["input_ids"], batch["attention_mask"]
    engine = Engine(model)
    wanted = [engine.generate(*inputs, **dial, **DECODING) for dial in DIALS]
    model.train()
    model.gate.eval()  # a mode that `train` would not restore
    state = state_of(model)
    for dial, generation in zip(DIALS, wanted, strict=True):
        assert_same(engine.generate(*inputs, **dial, **DECODING), generation)
    assert state_of(model) == state
    explained = model.explain(**batch)
    assert [e.kept for e in explained] == [row.nonzero().flatten().tolist() for row in wanted[0].kept]
    assert state_of(model) == state


class Fails(Gate):
    """Raises until it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = True

    def forward(self, encodings: Tensor, mask: Tensor, input_ids: Any = None, hints: Any = None) -> Gates:
        if self.fails:
            raise RuntimeError("the gate failed")
        values = mask.to(encodings.dtype)
        return Gates(values, values, encodings.sum(-1))


@pytest.mark.parametrize("made", [{}, {"linears": "packed"}, {"dtype": "int8"}], ids=["plain", "packed", "int8"])
@pytest.mark.parametrize("layerwise", [False, True])
def test_an_error_leaves_model_and_engine_as_they_were(made: dict[str, str], layerwise: bool) -> None:
    model, batch = gated("marian", layerwise=layerwise, gating="mask").float(), zoo.ragged_batch()
    inputs = batch["input_ids"], batch["attention_mask"]
    engine = Engine(model, **made)
    wanted, learned = engine.generate(*inputs, keep=0.5, **DECODING), model.gate
    model.gate = Fails()
    state = state_of(model)

    def fails(_: int) -> None:
        with pytest.raises(RuntimeError, match="the gate failed"):
            engine.generate(*inputs, keep=0.3, **DECODING)
        assert model.current_dial.keep is None

    in_threads(fails)
    assert state_of(model) == state
    model.gate.fails = False  # the gate's attributes are read at every call
    assert int(engine.generate(*inputs, keep=0.3, **DECODING).kept.sum()) > 0
    model.gate = learned
    assert_same(engine.generate(*inputs, keep=0.5, **DECODING), wanted)


def test_a_gate_that_replaces_another_is_used() -> None:
    model, batch = gated("marian").double(), zoo.ragged_batch()
    inputs = batch["input_ids"], batch["attention_mask"]
    engine = Engine(model)
    assert 0 < int(engine.encode(*inputs).kept.sum()) < int(batch["attention_mask"].sum())
    model.gate = Fails()
    model.gate.fails = False
    assert torch.equal(engine.encode(*inputs).kept, batch["attention_mask"].bool())


def test_hooks_of_the_model_are_called() -> None:
    model, batch = gated("marian").float(), zoo.ragged_batch((12,))
    engine = Engine(model, linears="packed")
    called: list[int] = []
    hook = model.model.encoder.layers[0].register_forward_hook(lambda *_: called.append(1))
    engine.encode(batch["input_ids"], batch["attention_mask"])
    hook.remove()
    engine.encode(batch["input_ids"], batch["attention_mask"])
    assert called == [1]


# --- the dial ----------------------------------------------------------------------------------------------------


def kept_by(model: Any) -> int:
    batch = zoo.ragged_batch()
    with torch.no_grad():
        return int((model.get_encoder()(**batch).gates.values != 0).sum())


def test_the_dial_of_a_thread_is_its_own() -> None:
    model = gated("marian", layerwise=True, gating="mask").double()
    wanted = []
    for dial in DIALS:
        with model.dial(**dial):
            wanted.append(kept_by(model))

    def kept(number: int) -> tuple[int, int]:
        with model.dial(**DIALS[number]):
            return kept_by(model), number

    assert len(set(wanted)) > 3
    with model.dial(keep=0.5):
        inside = kept_by(model)
        assert in_threads(kept) == [(wanted[number], number) for number in range(THREADS) for _ in range(ROUNDS)]
        assert kept_by(model) == inside
    assert kept_by(model) == wanted[0]


def test_one_dial_object_in_several_threads() -> None:
    model = gated("marian").double()
    free, dial = kept_by(model), model.dial(keep=0.3)
    with dial:
        wanted = kept_by(model)

    def kept(_: int) -> tuple[int, int]:
        with dial:
            inside = kept_by(model)
        return inside, kept_by(model)

    assert wanted != free
    assert set(in_threads(kept)) == {(wanted, free)}


def test_the_dial_of_an_asyncio_task_is_its_own() -> None:
    model = gated("marian").double()
    found = {}

    async def task(keep: float) -> None:
        for _ in range(3):
            with model.dial(keep=keep):
                await asyncio.sleep(0)
                found.setdefault(keep, set()).add(kept_by(model))
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task(0.3), task(1.0))

    asyncio.run(both())
    real = int(zoo.ragged_batch()["attention_mask"].sum())
    assert found[1.0] == {real}
    assert len(found[0.3]) == 1
    assert max(found[0.3]) < 0.4 * real
    assert model.current_dial.keep is None


def test_nested_dials_and_errors_restore_the_outer_one() -> None:
    model, other = gated("marian").double(), gated("t5").double()
    with model.dial(keep=0.3):
        with model.dial(keep=0.9), other.dial(keep=0.1):
            assert (model.current_dial.keep, other.current_dial.keep) == (0.9, 0.1)
        assert (model.current_dial.keep, other.current_dial.keep) == (0.3, None)
        with pytest.raises(ValueError, match="attention_mask: expected shape"), model.dial(keep=0.9):
            model.explain(zoo.ragged_batch()["input_ids"], torch.ones(1, 1))
        assert (model.current_dial.keep, other.current_dial.keep) == (0.3, None)
        first, second = model.dial(keep=0.5), model.dial(keep=0.6)
        first.__enter__()
        second.__enter__()
        first.__exit__()
        assert model.current_dial.keep == 0.6
        second.__exit__()
        assert model.current_dial.keep == 0.3
    assert model.current_dial.keep is None


def test_copies_have_their_own_dial() -> None:
    model = sparsify(zoo.build("marian"))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with model.dial(keep=0.3), other.dial(keep=0.6):
            assert (model.current_dial.keep, other.current_dial.keep) == (0.3, 0.6)
        with model.dial(keep=0.3):
            assert other.current_dial.keep is None


# --- text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_a_loaded_model_in_threads(sparse_folder: Path, dtype: str) -> None:
    wanted = [load(sparse_folder, "cpu", dtype).generate(folders.SENTENCES, **dial, **DECODING) for dial in DIALS]
    model = load(sparse_folder, "cpu", dtype)
    found = in_threads(lambda number: model.generate(folders.SENTENCES, **DIALS[number], **DECODING))
    assert found == [results for results in wanted for _ in range(ROUNDS)]
    assert wanted[1] != wanted[2]
    explained = in_threads(lambda number: model.explain(folders.SENTENCES[number % 3], **DECODING))
    for index, one in enumerate(explained):
        assert one.text == wanted[0][index // ROUNDS % 3].text


def test_each_thread_has_its_source_language(sparse_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(sparse_folder, "cpu")
    tokenizer = model.tokenizers.source

    class Multilingual:
        src_lang = "aa"

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, texts: Any, **kwargs: Any) -> Any:
            time.sleep(0.001)  # another thread may set its language
            return tokenizer([f"{'the dog' if self.src_lang == 'aa' else 'a cat'} {text}" for text in texts], **kwargs)

    multilingual: Any = Multilingual()
    monkeypatch.setattr(model, "tokenizers", type(model.tokenizers)(multilingual, tokenizer))
    monkeypatch.setattr(model, "_source_lang", "aa")
    monkeypatch.setattr("l0drop.decoding.text.language_id", lambda *_: 0)

    def ids(number: int) -> list[int]:
        (source,) = model.encode(["sees a river"], source_lang="ab"[number % 2] * 2)
        return list(source.ids)

    wanted = [ids(0), ids(1)]
    assert wanted[0] != wanted[1]
    assert in_threads(ids) == [wanted[number % 2] for number in range(THREADS) for _ in range(ROUNDS)]
