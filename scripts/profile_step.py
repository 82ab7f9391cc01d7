"""Where the time of a decoding step goes, and its lower bound.

    python scripts/profile_step.py --shape cnndm --json profile.json
    python scripts/profile_step.py --device cuda --shape b10-n2048,b256-n2048 --json profile-gpu.json

On a CPU: decode a shape of `l0drop bench decode` on one thread, once by the clock and once under torch's profiler, and
group the operations by purpose. The bounds are measured on this machine: a large matrix product gives its arithmetic
rate, a sum over more than the caches hold its memory bandwidth.

On a GPU: decode shapes of `l0drop bench decode --device cuda` in bfloat16, several times by the clock and once under
torch's profiler, and list the kernels of a step. The bound is the time to move the bytes that a step cannot avoid.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l0drop.bench.gpu_race import COPIED, copy_rate, least_bytes
from l0drop.bench.timing import Stopwatch, wait_for
from l0drop.bench.workloads import GPU_SHAPES, SHAPES, RandomModel, chosen_gpu_shapes, peaked_base
from l0drop.decoding.engine import Engine
from l0drop.models.quiet import quiet_libraries
from l0drop.runs.benchmark import Shape
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
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", help=f"one of {', '.join(SHAPES)}; on a GPU some of {', '.join(GPU_SHAPES)}")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        result = profile_on_gpu(chosen_gpu_shapes((arguments.shape or "gpu").split(",")))
    elif arguments.shape not in (None, *SHAPES):
        parser.error(f"--shape: expected one of {', '.join(SHAPES)}, got {arguments.shape}")
    else:
        result = profile_on_cpu(arguments.shape or "cnndm")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


# --- on a GPU ----------------------------------------------------------------------------------------------------


def profile_on_gpu(
    shapes: Mapping[str, Shape],
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    changes: Mapping[str, Any] | None = None,
    copied: int = COPIED,
) -> dict[str, Any]:
    """The kernels of a step, by shape and memory, the slowest first; microseconds are per step."""
    quiet_libraries()
    base: Any = peaked_base(**(changes or {}))
    base.to(device, dtype)
    rate = copy_rate(device, copied)
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        workload = RandomModel(shape, changes=changes or {})
        model, batch = workload.on(base)
        engine = Engine(model)
        for dense in (True, False):
            encoded = engine.encode(batch.input_ids, batch.attention_mask, dense=dense)
            least = least_bytes(model, shape, int(encoded.rows.max()), workload.beams)
            clocks = []
            for _ in range(5):
                with (watch := Stopwatch(device)):
                    engine.decode(encoded, **workload.generation)
                clocks.append(watch.seconds.wall)
            found[f"{name}, {'dense' if dense else 'short'}"] = {
                "step": 1e6 * statistics.median(clocks[2:]) / shape.target,
                "floor": 1e6 * least.total / rate,
                "bytes": {**vars(least), "total": least.total},
                **_kernels(lambda: engine.decode(encoded, **workload.generation), shape.target, device),  # noqa: B023
            }
            _show(found)
    return {"bytes_per_second": rate, "microseconds_per_step": found, **vars(provenance(device))}


def _kernels(decode: Any, steps: int, device: str, most: int = 40) -> dict[str, Any]:
    """busy: microseconds of a step in which the device works; the longest kernels, and the others together."""
    kind = device.upper()
    clock = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    with torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, kind)]) as profile:
        decode()
        wait_for(torch.device(device))
    where = getattr(torch.autograd.DeviceType, kind)
    events = [event for event in profile.key_averages() if event.device_type == where and getattr(event, clock) > 0]
    events.sort(key=lambda event: -getattr(event, clock))
    busy = sum(getattr(event, clock) for event in events)

    def summary(name: str, chosen: Any) -> dict[str, Any]:
        time = sum(getattr(event, clock) for event in chosen)
        count = sum(event.count for event in chosen)
        return {"name": name, "calls": count / steps, "microseconds": time / steps, "share": time / busy}

    kernels = [summary(event.key[:160], [event]) for event in events[:most]]
    if events[most:]:
        kernels.append(summary("others", events[most:]))
    return {"busy": busy / steps, "kernels": kernels}


def _show(found: Mapping[str, Any]) -> None:
    name, profile = list(found.items())[-1]
    print(f"{name}: {profile['step']:.0f} us a step, busy {profile['busy']:.0f}, floor {profile['floor']:.0f}")
    for one in profile["kernels"][:12]:
        print(f"  {one['microseconds']:8.1f} us {one['share']:6.1%} {one['calls']:6.1f} x  {one['name'][:90]}")


# --- on a CPU ----------------------------------------------------------------------------------------------------


def profile_on_cpu(name: str) -> dict[str, Any]:
    """Seconds of a step by kind of operation, and lower bounds."""
    torch.set_num_threads(1)
    workload = RandomModel(SHAPES[name])
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
        "shape": name,
        "seconds_per_step": rows,
        "bounds": bounds(model, workload),
        **vars(provenance()),
    }
    for system, kinds in rows.items():
        print(system, {kind: f"{1000 * seconds:.1f} ms" for kind, seconds in kinds.items()})
    print(result["bounds"])
    return result


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
