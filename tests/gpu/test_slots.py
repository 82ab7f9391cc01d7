"""Search in captured steps on a GPU: tokens, refilled slots, threads, memory, memory checkers."""

import copy
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import transformers as hf

pytest.importorskip("l0drop", reason="needs the dependencies of l0drop")

from l0drop import Engine, L0DropConfig, sparsify
from tests.decoding.gpu.test_slots import FAMILIES, SETTINGS, raise_eos
from tests.models import whispers, zoo

ROOT = Path(__file__).parents[2]


def sparse(family, device="cpu", dtype=torch.float32):
    model = sparsify(zoo.build(family, "sdpa"), L0DropConfig(gating="zero"))
    zoo.spread_gates(model)
    raise_eos(model, 2.5)
    return model.eval().to(device, dtype)


def same_up_to_ties(here, there):
    """Equal tokens, or scores within 1e-4: float32 rounds differently on a GPU."""
    for row, (one, two) in enumerate(zip(here.sequences.tolist(), there.sequences.tolist(), strict=True)):
        difference = abs(float(here.scores[row]) - float(there.scores[row]))
        assert one == two or difference < 1e-4, (row, one, two)
        assert difference < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    batch = zoo.ragged_batch()
    models = sparse(family), sparse(family, "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs plainly
        results = [Engine(model).generate(**inputs(batch), num_beams=4, max_new_tokens=20) for model in models]
    same_up_to_ties(*results)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings(settings):
    batch = zoo.ragged_batch()
    same_up_to_ties(
        *(Engine(m).generate(**inputs(batch), **settings) for m in (sparse("marian"), sparse("marian", "cuda")))
    )


def inputs(batch):
    return {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]}


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_refilled_slots(slots):
    batch = zoo.ragged_batch(lengths=tuple(int(x) for x in torch.randint(2, 25, (40,))))
    engine = Engine(sparse("bart", "cuda"))
    encoded = engine.encode(**inputs(batch))
    search = engine.search(num_beams=3, max_new_tokens=20)
    whole = engine.run_search(encoded, search)
    found, _ = engine._made_slots.latest.search(encoded.memory, encoded.rows.tolist(), search, None, most=slots)
    assert (found.scores.flatten() - whole.scores).abs().max() < 1e-4
    assert torch.equal(found.tokens.flatten(0, 1)[:, : whole.sequences.shape[1]], whole.sequences)


def test_other_settings_run_plainly_and_say_so_once():
    engine = Engine(sparse("marian", "cuda"))
    batch = zoo.ragged_batch()
    with pytest.warns(UserWarning, match="do_sample"):
        engine.generate(**inputs(batch), do_sample=True, max_new_tokens=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate(**inputs(batch), do_sample=True, max_new_tokens=8)


def test_autocast_runs_plainly():
    engine, batch = Engine(sparse("marian", "cuda")), zoo.ragged_batch()
    with torch.autocast("cuda", torch.bfloat16), pytest.warns(UserWarning, match="autocast"):
        found = engine.generate(**inputs(batch), num_beams=2, max_new_tokens=8)
    assert found.scores.isfinite().all()
    assert engine._made_slots.latest is None


@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_t5_in_float16_keeps_some_weights_in_float32(family, tmp_path):
    """As `from_pretrained` loads it."""
    exact = sparse(family)
    exact.get_output_embeddings().bias = None
    exact.save_pretrained(tmp_path)
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float16).eval().to("cuda")
    assert model.get_decoder().block[0].layer[-1].DenseReluDense.wo.weight.dtype == torch.float32
    settings = {"num_beams": 1, "max_new_tokens": 6, "min_new_tokens": 6}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here, there = (Engine(one).generate(**inputs(zoo.ragged_batch()), **settings) for one in (exact, model))
    assert (here.scores - there.scores.cpu()).abs().max() < 0.05


def test_broken_weights_raise_the_error_of_the_plain_search():
    model = sparse("marian", "cuda")
    with torch.no_grad():
        model.get_decoder().layers[0].fc1.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite scores"):
        Engine(model).generate(**inputs(zoo.ragged_batch()), num_beams=2, max_new_tokens=8)


def test_changed_weights_are_noticed():
    model = sparse("marian", "cuda")
    engine, batch = Engine(model), zoo.ragged_batch()
    before = engine.generate(**inputs(batch), num_beams=2, max_new_tokens=8)
    with torch.no_grad():
        model.get_decoder().layers[0].fc1.weight.mul_(-2.0)
    after = engine.generate(**inputs(batch), num_beams=2, max_new_tokens=8)
    assert not torch.equal(before.scores, after.scores)
    fresh = Engine(model).generate(**inputs(batch), num_beams=2, max_new_tokens=8)
    assert torch.equal(after.scores, fresh.scores)


def test_threads_share_an_engine():
    engine = Engine(sparse("marian", "cuda"))
    batches = [zoo.ragged_batch((20, 5, 9), seed) for seed in range(8)]
    alone = [engine.generate(**inputs(batch), num_beams=2, max_new_tokens=12) for batch in batches]
    found = [None] * len(batches)

    def work(index):
        found[index] = engine.generate(**inputs(batches[index]), num_beams=2, max_new_tokens=12)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, two in zip(alone, found, strict=True):
        assert torch.equal(one.sequences, two.sequences)


def test_memory_is_flat_over_many_batches_of_random_shapes():
    """10,000 batches; the captured steps stay bounded, and so does the memory."""
    engine = Engine(sparse("marian", "cuda"))
    draw = torch.Generator().manual_seed(0)
    random = lambda low, high: int(torch.randint(low, high, (), generator=draw))  # noqa: E731
    used = []
    for number in range(10_000):
        lengths = tuple(random(2, 25) for _ in range(random(1, 14)))
        batch = zoo.ragged_batch(lengths, number)
        engine.generate(**inputs(batch), num_beams=random(1, 4), max_new_tokens=random(2, 9))
        if number % 1000 == 999:
            used.append(torch.cuda.memory_reserved())
    assert len(engine._made_slots.latest.captured) <= 64
    assert used[-1] <= used[2] * 1.05, used


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_are_clean(tool):
    checker = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if checker is None:
        pytest.skip("needs compute-sanitizer")
    command = [checker, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "tests.gpu.every_kernel"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("settings", [{"num_beams": 3}, {"return_timestamps": True}], ids=str)
def test_whisper(settings):
    model = sparsify(whispers.build(), L0DropConfig(gating="zero"))
    whispers.spread_gates(model)
    features = whispers.features()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here, there = (
            Engine(copy.deepcopy(model).to(device)).generate(features, language="en", **settings)
            for device in ("cpu", "cuda")
        )
    same_up_to_ties(here, there)
