"""Captured encoders on a GPU: memories, changed weights, threads, memory, and what happens when memory runs out."""

import threading
import warnings

import pytest
import torch
import transformers as hf

pytest.importorskip("l0drop", reason="needs the dependencies of l0drop")

from l0drop import Engine, L0DropConfig, load, sparsify
from l0drop.decoding.engine import Engine as EngineClass
from tests.decoding.gpu.test_slots import FAMILIES
from tests.models import zoo

LENGTHS = (21, 17, 9, 20, 3)


def sparse(family, dtype=torch.float32, attention="sdpa"):
    model = sparsify(zoo.build(family, attention), L0DropConfig(gating="zero"))
    zoo.spread_gates(model)
    return model.eval().to("cuda", dtype)


def encode(engine, batch, **settings):
    return engine.encode(batch["input_ids"], batch["attention_mask"], **settings)


def plainly(model, batch, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineClass, "_can_capture", lambda self: False)
        return encode(Engine(model), batch, **settings)


def captured(model):
    """An engine whose shapes for LENGTHS are captured."""
    engine = Engine(model)
    for _ in range(2):
        encode(engine, zoo.ragged_batch(LENGTHS))
    assert [key[1:] for key in engine._made_graphs.latest.captured] == [(6, 24)]
    return engine


def close(found, expected, error=1e-5):
    one, two = found.memory, expected.memory
    for name in ("index", "count"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert torch.equal(one.bias, two.bias)
    assert torch.equal(found.kept, expected.kept)
    assert one.states.shape == two.states.shape
    assert one.states.dtype == two.states.dtype
    assert (one.states - two.states).double().norm() <= error * two.states.double().norm()
    assert list(found.checked_rows()) == expected.rows.tolist()


@pytest.fixture(autouse=True)
def every_encoder_is_captured():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be captured")
        yield


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, attention):
    """Ragged batches of different lengths, all in one shape."""
    model = sparse(family, attention=attention)
    engine = captured(model)
    for seed, lengths in enumerate([LENGTHS, (24, 1, 7, 22, 6), (18, 17, 17, 2, 9, 4)]):
        batch = zoo.ragged_batch(lengths, seed)
        close(encode(engine, batch), plainly(model, batch))
    assert len(engine._made_graphs.latest.captured) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_low_precision(family, dtype):
    model = sparse(family, dtype)
    with torch.no_grad():
        model.gate.bias.fill_(50.0)  # all gates open: rounding must not decide which rows there are
    batch = zoo.ragged_batch(LENGTHS)
    close(encode(captured(model), batch), plainly(model, batch), error=0.1)


@pytest.mark.parametrize(
    "settings",
    [{"dense": True}, {"keep": 0.4}, {"max_memory": 5}, {"dense": [True, False, False, True, False]}],
    ids=str,
)
def test_settings(settings):
    model, batch = sparse("bart"), zoo.ragged_batch(LENGTHS)
    engine = Engine(model)
    for _ in range(3):
        close(encode(engine, batch, **settings), plainly(model, batch, **settings))
    assert engine._made_graphs.latest.captured


def test_models_without_gates():
    model, batch = zoo.build("marian", "sdpa").to("cuda"), zoo.ragged_batch(LENGTHS)
    engine = captured(model)
    close(encode(engine, batch), plainly(model, batch))


def test_inputs_on_the_gpu_and_in_inference_mode():
    model, batch = sparse("marian"), zoo.ragged_batch(LENGTHS)
    expected = plainly(model, batch)
    with torch.inference_mode():
        engine = captured(model)
        close(encode(engine, batch), expected)
    close(encode(engine, batch), expected)
    close(encode(engine, {name: tensor.cuda() for name, tensor in batch.items()}), expected)
    close(engine.encode(batch["input_ids"][:1]), plainly(model, {n: t[:1] for n, t in batch.items()}))


def test_earlier_memories_are_not_overwritten():
    engine = captured(sparse("marian"))
    first, second = zoo.ragged_batch(LENGTHS, 1), zoo.ragged_batch(LENGTHS, 2)
    one = encode(engine, first)
    before = one.memory.states.clone()
    encode(engine, second)
    assert torch.equal(one.memory.states, before)


def test_changed_weights_are_noticed():
    model, batch = sparse("marian"), zoo.ragged_batch(LENGTHS)
    engine = captured(model)
    for change in (
        lambda: model.get_encoder().layers[0].fc1.weight.detach().mul_(0.5),
        lambda: model.get_encoder().layers[1].fc1.weight.data.mul_(0.5),
        lambda: model.gate.close_at(0.5),
        lambda: model.to(torch.bfloat16).to(torch.float32),
    ):
        before = encode(engine, batch)
        change()
        expected = plainly(model, batch)
        for _ in range(3):
            after = encode(engine, batch)
            close(after, expected)
        same = before.memory.states.shape == after.memory.states.shape
        assert not same or not torch.equal(before.memory.states, after.memory.states)


def test_the_host_waits_once_for_a_memory():
    engine, batch = captured(sparse("marian")), zoo.ragged_batch(LENGTHS)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            encode(engine, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places = [f"{wait.filename}:{wait.lineno}" for wait in waits if "synchroniz" in str(wait.message)]
    assert len(places) == 1, places


def test_threads_share_graphs():
    """Threads with streams of their own, while graphs are captured and replayed."""
    model = sparse("marian")
    engine = Engine(model)
    batches = [
        zoo.ragged_batch(tuple(range(3, 3 + size)), seed) for seed, size in enumerate((5, 5, 6, 9, 17, 20, 5, 9))
    ]
    expected = [plainly(model, batch) for batch in batches]
    failed = []

    def work(index):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    close(encode(engine, batches[index]), expected[index])
        except BaseException as error:
            failed.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_whole_searches_in_threads():
    engine = Engine(sparse("marian"))
    batches = [zoo.ragged_batch((20, 5, 9), seed) for seed in range(6)]
    given = [{"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]} for batch in batches]
    alone = [Engine(engine.model).generate(**one, num_beams=2, max_new_tokens=12) for one in given]
    found = [None] * len(given)

    def work(index):
        for _ in range(5):
            found[index] = engine.generate(**given[index], num_beams=2, max_new_tokens=12)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, two in zip(alone, found, strict=True):
        assert (one.scores - two.scores).abs().max() < 1e-4


def test_graphs_are_bounded_and_memory_is_flat(monkeypatch):
    monkeypatch.setattr("l0drop.decoding.gpu.encoding.CAPTURED", 6)
    engine = Engine(sparse("marian"))
    draw = torch.Generator().manual_seed(0)
    random = lambda low, high: int(torch.randint(low, high, (), generator=draw))  # noqa: E731
    used = []
    for number in range(1200):
        lengths = tuple(random(2, 41) for _ in range(random(1, 9)))
        encode(engine, zoo.ragged_batch(lengths, number))
        if number % 200 == 199:
            used.append(torch.cuda.memory_reserved())
    assert len(engine._made_graphs.latest.captured) == 6
    assert used[-1] <= used[2] * 1.05, used


def test_a_batch_that_does_not_fit_is_halved(baseline, tmp_path, monkeypatch):
    """With little memory, a batch of 32,000 texts gives the outputs of small batches, and the engine stays usable."""
    tokenizer = hf.AutoTokenizer.from_pretrained(baseline / "model")
    nouns = ("dog", "cat", "bird", "river", "tree", "house", "road", "stone")
    texts = [" ".join(f"the {one} sees a {two} ." for two in (other, one, other)) for one in nouns for other in nouns]
    model = sparsify(hf.AutoModelForSeq2SeqLM.from_pretrained(baseline / "model"), L0DropConfig()).eval()
    zoo.spread_gates(model, batch=tokenizer(texts, return_tensors="pt", padding=True))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    text = load(tmp_path, "cuda")
    settings = {"num_beams": 2, "max_new_tokens": 6}
    for _ in range(2):
        wanted = text.generate(texts, **settings)
    freed = []
    real = text.engine.free
    monkeypatch.setattr(text.engine, "free", lambda: (freed.append(1), real()))
    text.engine.free()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (300 << 20)) / total)
    try:
        found = text.generate(texts * 500, batch_tokens=1 << 30, **settings)
        again = text.generate(texts, **settings)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(freed) > 1, "everything fitted"
    for index, result in enumerate([*found, *again]):
        expected = wanted[index % len(texts)]
        assert abs(result.score - expected.score) < 1e-4
        assert result.text == expected.text or abs(result.score - expected.score) < 1e-5
