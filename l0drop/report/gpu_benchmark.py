"""The tables of benchmarks on a GPU, each with its title."""

from collections.abc import Callable, Sequence

from l0drop.report.benchmark import Titled, brief
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuShape, GpuSystem, GpuTextBenchmark, TokenCheck
from l0drop.runs.table import Table

RATIOS = {
    "decode: engine-dense over ct2-bfloat16": ("decode", "ct2-bfloat16", "engine-dense"),
    "decode: engine-short over ct2-bfloat16": ("decode", "ct2-bfloat16", "engine-short"),
    "encode + decode: engine-short over ct2-bfloat16": ("end_to_end", "ct2-bfloat16", "engine-short"),
    "decode: engine-short over engine-dense": ("decode", "engine-dense", "engine-short"),
    "encode + decode: engine-short over hf-dense": ("end_to_end", "hf-dense", "engine-short"),
}
WHISPER_RATIOS = {
    "search: short over dense": ("search", "engine-dense", "engine-short"),
    "decode: short over dense": ("decode", "engine-dense", "engine-short"),
    "encode + decode: short over dense": ("end_to_end", "engine-dense", "engine-short"),
    "encode + decode: engine-short over hf-dense": ("end_to_end", "hf-dense", "engine-short"),
    "decode: engine-short over ct2-float16": ("decode", "ct2-float16", "engine-short"),
}
TIMED = ("engine-short", "engine-dense", "ct2-bfloat16", "ct2-float16", "hf-dense")
"""The systems in tables with a column per system."""


def shape_table(name: str, result: GpuShape, dtype: str) -> Titled:
    """A row per system: times, distance from the floor, memory, and tokens in common with the reference."""
    rows = [
        [
            system,
            *(brief(1000 * found.median[phase]) for phase in ("encode", "decode")),
            f"{found.milliseconds_per_step:.3f}",
            "" if found.times_floor is None else f"{found.times_floor:.2f}",
            brief(found.peak_memory / 2**20),
            "" if found.same_tokens is None else f"{found.same_tokens.sentences} ({found.same_tokens.tokens:.0%})",
        ]
        for system, found in result.systems.items()
    ]
    note = " ".join(_floor(system, found) for system, found in result.systems.items() if found.least_bytes is not None)
    note += "".join(f" {system} is left out: {reason}." for system, reason in result.left_out.items())
    shape, read = result.shape, "tokens" if result.whisper is None else "rows"
    title = (
        f"{name}: {shape.batch} x {shape.source} {read}, {shape.dropped:.1%} dropped, {shape.target} new tokens, beam "
        f"{result.generation['num_beams']}, {dtype}"
    )
    head = ["", "encode ms", "decode ms", "ms/step", "x floor", "peak MiB", "same sentences (tokens)"]
    return title, Table(head, rows, note)


def _floor(name: str, system: GpuSystem) -> str:
    least = system.least_bytes
    assert least is not None
    assert system.times_floor is not None
    parts = {"memory": least.cross_cache, "target": least.self_cache, "weights": least.weights, "logits": least.logits}
    shown = ", ".join(f"{part} {brief(size / 1e6)}" for part, size in parts.items())
    return f"{name}: floor {_floor_of(system)} ms ({shown} MB)."


def _floor_of(system: GpuSystem) -> str:
    assert system.times_floor is not None
    return f"{system.milliseconds_per_step / system.times_floor:.3f}"


def ratio_table(result: GpuDecodeBenchmark) -> Titled:
    """A row per shape: speed-ups. Shapes of a Whisper have their own."""
    ratios = WHISPER_RATIOS if any(shape.whisper for shape in result.shapes.values()) else RATIOS
    rows = []
    for name, shape in result.shapes.items():
        times = (shape.times(*pair) for pair in ratios.values())
        rows.append([name, *("" if one is None else f"{one:.2f}" for one in times)])
    return "Speed-ups by wall time, medians over rounds", Table(["", *ratios], rows)


def step_table(result: GpuDecodeBenchmark) -> Titled:
    """Milliseconds per decoding step."""
    return "Milliseconds per step", _per_system(result, TIMED, lambda one: f"{one.milliseconds_per_step:.2f}")


def encode_table(result: GpuDecodeBenchmark) -> Titled:
    """Milliseconds of encoding."""
    return "Encoding, ms", _per_system(result, TIMED, lambda one: brief(1000 * one.median["encode"]))


def memory_table(result: GpuDecodeBenchmark) -> Titled:
    """Peak memory."""
    return "Peak memory beyond the weights, MiB", _per_system(result, TIMED, lambda one: brief(one.peak_memory / 2**20))


def floor_table(result: GpuDecodeBenchmark) -> Titled:
    """The floor of a step, and the measured time as a multiple of it."""
    rows = []
    for name, shape in result.shapes.items():
        row = [name]
        for system in ("engine-dense", "engine-short"):
            found = shape.systems.get(system)
            row += ["", ""] if found is None else [_floor_of(found), f"{found.times_floor:.2f}"]
        rows.append(row)
    head = ["", "dense: floor, ms", "dense: step / floor", "short: floor, ms", "short: step / floor"]
    return "Floor of a step by bytes", Table(head, rows)


def _per_system(result: GpuDecodeBenchmark, systems: Sequence[str], cell: Callable[[GpuSystem], str]) -> Table:
    rows = [
        [name, *(cell(shape.systems[system]) if system in shape.systems else "" for system in systems)]
        for name, shape in result.shapes.items()
    ]
    return Table(["", *systems], rows)


def check_table(check: TokenCheck) -> Titled:
    """Whether the systems find the same tokens in float32."""
    rows: list[list[str]] = []
    styles: dict[str, str] = {}
    for name, found in check.agreement.items():
        if found is None:
            rows.append([name, "-", "", "", ""])
            continue
        different = f"{found.different}{' !' if found.different and found.must_agree else ''}"
        styles |= {different: "bad"} if different.endswith("!") else {}
        gap = "" if found.largest_score_gap is None else f"{found.largest_score_gap:.1e}"
        rows.append(
            [name, found.reference, f"{found.same}/{check.shape.batch}", str(found.tied), f"{different}  {gap}"]
        )
    head = ["", "compared with", "same tokens", "ties", "different, largest gap"]
    return "Tokens in float32", Table(head, rows, styles=styles, prose=frozenset({"compared with"}))


def text_table(result: GpuTextBenchmark) -> Titled:
    """A row per system: sentences per second, speed-up of our engine, latency."""
    rows = []
    for name, system in result.systems.items():
        times = {one.by: one.times for one in result.ratios if one.system == name}
        latency = system.latency_ms
        rows.append(
            [
                name,
                f"{system.sentences_per_second:,.0f}",
                *(f"{times[by]:.2f}" if by in times else "" for by in ("engine-short", "engine-dense")),
                "" if system.batch_tokens is None else f"{system.batch_tokens:,}",
                f"{system.output_tokens:,}",
                *(["", ""] if latency is None else [f"{latency.p50:.1f}", f"{latency.p99:.1f}"]),
            ]
        )
    dropped = "" if result.sparsity is None else f", {result.sparsity:.1%} dropped"
    title = f"{result.sentences} lines, {result.source_tokens / result.sentences:.0f} tokens on average{dropped}"
    faster = ["speed-up, engine-short", "speed-up, engine-dense"]
    head = ["", "sent./s", *faster, "batch tokens", "output tokens", "P50 ms", "P99 ms"]
    note = "".join(f"{name} is left out: {reason}. " for name, reason in result.left_out.items())
    note += "".join(f"{limit}. " for limit in result.limited)
    return f"{title}, beam {result.generation['num_beams']}, {result.dtype}", Table(head, rows, note)
