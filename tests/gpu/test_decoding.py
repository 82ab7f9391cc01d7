"""Decoding on a GPU: the engine against the CPU, and in low precision short against dense."""

import pytest
import torch

pytest.importorskip("l0drop", reason="needs the dependencies of l0drop")

from l0drop import Engine, L0DropConfig, sparsify
from tests.models import zoo

FAMILIES = ["marian", "bart", "t5"]
SETTINGS = {"num_beams": 3, "max_new_tokens": 8, "length_penalty": 0.6}


def sparse(family, device="cpu", dtype=torch.float32):
    model = sparsify(zoo.build(family, "sdpa"), L0DropConfig(gating="zero"))
    zoo.spread_gates(model)
    return model.eval().to(device, dtype)


def decoded(model, **settings):
    batch = zoo.ragged_batch()
    return Engine(model).generate(batch["input_ids"], batch["attention_mask"], **SETTINGS, **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_gpu_and_cpu_outputs_are_equal(family):
    here, there = decoded(sparse(family)), decoded(sparse(family, "cuda"))
    assert torch.equal(here.sequences, there.sequences.cpu())
    assert (here.scores - there.scores.cpu()).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_low_precision(family, dtype):
    model = sparse(family, "cuda", dtype)
    short, dense = decoded(model), decoded(model, dense=True)
    assert (short.scores.float() - dense.scores.float()).abs().mean() < 0.1
    batch = {name: value.to("cuda") for name, value in zoo.ragged_batch().items()}
    assert model.generate(**batch, num_beams=3, max_new_tokens=8).shape[0] == 6
