"""Tables of decoding speed on a GPU."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from l0drop.report.benchmark import brief
from l0drop.report.gpu_benchmark import (
    encode_table,
    floor_table,
    memory_table,
    ratio_table,
    step_table,
)
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuShape, GpuSystem, GpuTextBenchmark
from l0drop.runs.precision import Precision
from l0drop.runs.table import Table

NAMES = {
    "engine-short": "engine (short)",
    "engine-dense": "engine (dense)",
    "engine-baseline": "engine (dense baseline)",
    "ct2-bfloat16": "CTranslate2 bfloat16",
    "ct2-float16": "CTranslate2 float16",
    "hf-short": "`generate` (short)",
    "hf-dense": "`generate` (dense)",
}
WHISPERS = ("tiny", "small", "turbo", "large-v3")
LONGEST_KERNELS = 14
WHOLE = {"step": "whole step", "busy": "kernels together", "floor": "floor by bytes"}


def gpu_tables(result: GpuDecodeBenchmark) -> dict[str, Table]:
    """Speed-ups, milliseconds per step, encoding, floors and memory, a row per shape."""
    makers = {
        "gpu": ratio_table,
        "gpu-steps": step_table,
        "gpu-encode": encode_table,
        "gpu-floor": floor_table,
        "gpu-memory": memory_table,
    }
    labels = [_label(shape) for shape in result.shapes.values()]
    found = {}
    for name, make in makers.items():
        _, table = make(result)
        rows = [[label, *row[1:]] for label, row in zip(labels, table.rows, strict=True)]
        found[name] = Table(["shape", *map(_renamed, table.head[1:])], rows)
    return found


def _label(shape: GpuShape) -> str:
    one = shape.shape
    return f"{one.batch} × {one.source:,} tokens, {one.dropped:.1%} dropped"


def _renamed(head: str) -> str:
    for name, words in NAMES.items():
        head = head.replace(name, words)
    return head


def gpu_text_table(result: GpuTextBenchmark) -> Table:
    """Lines of text: sentences per second, our engine's speed-ups, and the latency of lines decoded alone."""
    rows = []
    for name, system in result.systems.items():
        times = {one.by: f"{one.times:.2f}" for one in result.ratios if one.system == name}
        latency = system.latency_ms
        alone = ["-", "-"] if latency is None else [f"{latency.p50:.1f}", f"{latency.p99:.1f}"]
        faster = [times.get(by, "-") for by in ("engine-short", "engine-dense")]
        rows.append([NAMES[name], f"{system.sentences_per_second:,.0f}", *faster, *alone])
    speed_ups = ["speed-up of engine (short)", "speed-up of engine (dense)"]
    return Table(["system", "sentences per second", *speed_ups, "one line, P50, ms", "one line, P99, ms"], rows)


def gpu_whisper_tables(result: GpuDecodeBenchmark) -> dict[str, Table]:
    """Random Whispers: speed-ups, times, memory; a row per size, batch and beam, the smallest first."""
    shapes = sorted(
        result.shapes.items(),
        key=lambda item: (WHISPERS.index(item[1].whisper or ""), item[1].shape.batch, item[1].generation["num_beams"]),
    )
    labels = {name: _whisper_label(shape) for name, shape in shapes}
    _, table = ratio_table(result)
    ratios = {row[0]: row for row in table.rows}
    compared = [column for column in range(1, len(table.head)) if any(row[column] for row in table.rows)]

    def times(system: str, phase: str) -> list[str]:
        return [_milliseconds(shape.systems.get(system), phase) for _, shape in shapes]

    seconds = {
        "encode": times("engine-short", "encode"),
        "search: short": times("engine-short", "search"),
        "search: dense": times("engine-dense", "search"),
        "decode: short": times("engine-short", "decode"),
        "decode: `generate`": times("hf-dense", "decode"),
    }
    held = {
        NAMES[system]: [_mebibytes(shape.systems.get(system)) for _, shape in shapes]
        for system in ("engine-short", "engine-dense", "hf-dense")
    }
    return {
        "gpu-whisper": Table(
            ["Whisper", *(_renamed(table.head[column]) for column in compared)],
            [[label, *(ratios[name][column] for column in compared)] for name, label in labels.items()],
        ),
        "gpu-whisper-ms": _by_column("Whisper", labels.values(), seconds),
        "gpu-whisper-memory": _by_column("Whisper", labels.values(), held),
    }


def _whisper_label(shape: GpuShape) -> str:
    batch = shape.shape.batch
    return f"{shape.whisper}, {batch} clip{'s' if batch > 1 else ''}, beam {shape.generation['num_beams']}"


def _milliseconds(system: GpuSystem | None, phase: str) -> str:
    return "-" if system is None else brief(1000 * system.median[phase])


def _mebibytes(system: GpuSystem | None) -> str:
    return "-" if system is None else brief(system.peak_memory / 2**20)


def _by_column(first: str, labels: Iterable[str], columns: Mapping[str, list[str]]) -> Table:
    return Table([first, *columns], [list(row) for row in zip(labels, *columns.values(), strict=True)])


def precision_tables(result: Precision, name: str) -> dict[str, Table]:
    """Outputs in low precision, and in other batches; a row per type and memory."""
    labels = [f"{row.dtype}, {row.memory}" for row in result.rows]
    outputs = {
        f"outputs as in {result.reference}": [f"{row.same:.1%}" for row in result.rows],
        "chrF of the other outputs": [
            "-" if one.differing is None else f"{one.differing.value:.1f}" for one in result.rows
        ],
        "BLEU": [f"{row.score.value:.2f}" for row in result.rows],
        f"BLEU less {result.reference}'s": [f"{row.difference:+.2f}" for row in result.rows],
        "outputs as on the dense memory": [
            "-" if one.same_as_dense is None else f"{one.same_as_dense:.1%}" for one in result.rows
        ],
    }
    ways = {way: batching for way, batching in result.batches.items() if way != "own"}
    changed = {
        "decoded alone" if way == "alone" else f"random batches of {batching.largest}": [
            f"{row.changed[way]:.1%}" for row in result.rows
        ]
        for way, batching in ways.items()
    }
    first = "type, memory"
    return {name: _by_column(first, labels, outputs), f"{name}-batches": _by_column(first, labels, changed)}


def gpu_profile_table(profile: Mapping[str, Any], shapes: Iterable[str]) -> Table:
    """Microseconds of a step by kernel, on both memories of these shapes; the longest kernels and the others."""
    steps = profile["microseconds_per_step"]
    columns = {name: steps[name] for shape in shapes for name in (f"{shape}, dense", f"{shape}, short")}
    times = {name: _by_kernel(one["kernels"]) for name, one in columns.items()}
    known = {name for found in times.values() for name in found} - {"others"}
    longest = {name: max(found.get(name, 0.0) for found in times.values()) for name in known}
    names = sorted(longest, key=lambda name: (-longest[name], name))[:LONGEST_KERNELS]
    rows = [[label, *(f"{one[key]:.0f}" for one in columns.values())] for key, label in WHOLE.items()]
    rows += [[f"`{name}`", *(f"{found.get(name, 0.0):.1f}" for found in times.values())] for name in names]
    rest = (sum(found.values()) - sum(found.get(name, 0.0) for name in names) for found in times.values())
    rows.append(["other kernels", *(f"{time:.1f}" for time in rest)])
    return Table(["µs per step", *columns], rows)


def _by_kernel(kernels: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Microseconds by the short names of kernels."""
    found: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        found[short_name(kernel["name"])] += kernel["microseconds"]
    return found


def short_name(kernel: str) -> str:
    """A kernel's name without its return type, arguments, template arguments and namespaces."""
    name, depth, shown = kernel.removeprefix("void "), 0, ""
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter == "(" and not depth:
            break
        depth -= letter == ">" and depth > 0
        shown += letter if not depth and letter != ">" else ""
        depth += letter == "<"
        shown = shown.removesuffix("<")
    last = re.split("::", shown)[-1].strip()
    return (last or kernel)[:48]
