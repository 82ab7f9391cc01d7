"""Where the time of a decoding step goes, and its lower bound.

    python scripts/profile_step.py --shape cnndm --json profile.json

Decode a shape of `l0drop bench decode` on one thread, once by the clock and once under torch's profiler, and group the
operations by purpose. The bounds are measured on this machine: a large matrix product gives its arithmetic rate, a sum
over more than the caches hold its memory bandwidth.
"""

import argparse
import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l0drop.bench.workloads import SHAPES, RandomModel
from l0drop.decoding.engine import Engine
from l0drop.runs.provenance import provenance

KINDS = {
    "linear layers": ("linear", "addmm", "_linear_pointwise", "_mkl_linear", "aten::mm"),
    "attention": ("bmm", "aten::_softmax", "scaled_dot_product"),
    "vocabulary": ("_log_softmax", "topk", "amax", "sort"),
    "copies": ("copy_", "index_select", "index_copy", "gather", "cat", "aten::index"),
}
"""Kinds of operations, by parts of their names; the first match counts. The rest are `other operations`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="cnndm", choices=sorted(SHAPES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workload = RandomModel(SHAPES[arguments.shape])
    model, (batch,) = workload.load()
    engines = {"float32": Engine(model)}
    with suppress(TypeError):  # older engines have no int8; the same script must measure them too
        engines["int8"] = Engine(model, dtype="int8")
    steps = workload.shape.target
    rows: dict[str, dict[str, float]] = {}
    for dtype, engine in engines.items():
        for dense in (False, True):
            encoded = engine.encode(batch.input_ids, batch.attention_mask, dense=dense)
            engine.decode(encoded, **workload.generation)
            start = time.process_time()
            engine.decode(encoded, **workload.generation)
            whole = (time.process_time() - start) / steps
            with torch.profiler.profile() as profile:
                engine.decode(encoded, **workload.generation)
            found: Counter[str] = Counter()
            for event in profile.key_averages():
                found[_kind(event.key)] += event.self_cpu_time_total / 1e6 / steps
            rest = max(0.0, whole - sum(found.values()))
            rows[f"{dtype}, {'dense' if dense else 'short'}"] = {
                "step": whole, **{kind: found[kind] for kind in (*KINDS, "other operations")}, "between them": rest,
            }  # fmt: skip
    result = {
        "shape": arguments.shape,
        "seconds_per_step": rows,
        "bounds": bounds(model, workload),
        **vars(provenance()),
    }
    for name, kinds in rows.items():
        print(name, {kind: f"{1000 * seconds:.1f} ms" for kind, seconds in kinds.items()})
    print(result["bounds"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _kind(name: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other operations")


def bounds(model: Any, workload: RandomModel) -> dict[str, float]:
    """Rates of this machine, and lower bounds for a step of the shape: seconds for its products and its bytes."""
    shape, config = workload.shape, model.config
    a, large = torch.randn(2048, 2048), torch.randn(1 << 26)
    flops = 2 * 2048**3 / _least(lambda: a @ a)
    bandwidth = large.nbytes / _least(large.sum)
    width, layers = config.d_model, config.decoder_layers
    weights = layers * (6 * width**2 + 2 * width * config.decoder_ffn_dim) + config.vocab_size * width
    rows = shape.batch * workload.beams
    found = {"gflops": flops / 1e9, "gigabytes_per_second": bandwidth / 1e9}
    found["linear_layers"] = max(2 * weights * rows / flops, 4 * weights / bandwidth)
    kept = round((1 - shape.dropped) * shape.source) + 1
    for name, keys in (("short", kept), ("dense", shape.source)):
        read = 2 * layers * shape.batch * keys * width * 4
        found[f"cross_attention_{name}"] = max(read / bandwidth, read * workload.beams / 2 / flops)
    return found


def _least(run: Any) -> float:
    run()
    times = []
    for _ in range(5):
        start = time.process_time()
        kept: Tensor = run()
        times.append(time.process_time() - start)
        del kept
    return min(times)


if __name__ == "__main__":
    main()
