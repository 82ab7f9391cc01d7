"""Tables of decoding and training speed."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from l0drop.runs.benchmark import DecodeBenchmark
from l0drop.runs.prediction import SpeedPrediction
from l0drop.runs.table import Table
from l0drop.runs.training_benchmark import TrainingSpeed

SHAPES = {"mt": "30 tokens (`mt`)", "cnndm": "400 tokens (`cnndm`)", "wikisum": "2,048 tokens (`wikisum`)"}


class Comparison(NamedTuple):
    """The speed-up of a system over a reference in one phase."""

    phase: str
    system: str
    reference: str

    @property
    def label(self) -> str:
        return f"{PHASES[self.phase]}: {NAMES[self.system]} over {NAMES[self.reference]}"


PHASES = {"decode": "decoding", "end_to_end": "end to end"}
NAMES = {
    "engine-short": "engine (short)",
    "engine-dense": "engine (dense)",
    "engine-int8-short": "engine int8 (short)",
    "engine-int8-dense": "engine int8 (dense)",
    "hf-dense": "Hugging Face `generate` (dense)",
    "ct2-float32": "CTranslate2 float32 (dense)",
    "ct2-int8": "CTranslate2 int8 (dense)",
}
ALONE = (
    Comparison("end_to_end", "engine-short", "engine-dense"),
    Comparison("end_to_end", "engine-int8-short", "engine-int8-dense"),
)
"""What dropping alone brings: the same engine on the dense and on the short memory."""
OTHERS = (
    Comparison("end_to_end", "engine-short", "ct2-float32"),
    Comparison("end_to_end", "engine-int8-short", "ct2-int8"),
)
SHORT = (*ALONE, *OTHERS)
ALL = (
    *ALONE,
    Comparison("decode", "engine-short", "engine-dense"),
    Comparison("decode", "engine-int8-short", "engine-int8-dense"),
    *OTHERS,
    Comparison("end_to_end", "engine-short", "hf-dense"),
    Comparison("decode", "engine-dense", "ct2-float32"),
    Comparison("decode", "engine-int8-dense", "ct2-int8"),
)
WHISPER_PEERS = {"engine": "ct2-float32", "engine-int8": "ct2-int8"}
"""Our engine, and the peer with weights of the same type."""
UNCOMPARED = dict.fromkeys(("engine-int8-short", "engine-int8-dense", "ct2-int8"), "not compared")
"""Systems that ran apart from the reference."""
SHORTEST = 64
"""The shortest source in the table of predictions; below it there is nothing to gain."""
STEP = ("step", "linear layers", "attention", "vocabulary", "copies", "other operations", "between them")
"""Parts of a decoding step, as `scripts/profile_step.py` writes them."""
PARTS = {"step": "whole step", "between them": "between operations (Python)"}


def speed_table(shapes: Mapping[str, DecodeBenchmark], comparisons: Iterable[Comparison] = ALL) -> Table:
    """Speed-ups at every shape."""
    rows = [[one.label, *(ratio(shapes[shape], *one) for shape in SHAPES)] for one in comparisons]
    return Table(["speed-up, CPU time", *SHAPES.values()], rows)


def ratio(result: DecodeBenchmark, phase: str, system: str, reference: str) -> str:
    """The speed-up of a system: the reference's CPU time divided by its own, the median over rounds that both ran."""
    systems = result.systems
    if not {system, reference} <= set(systems):
        return "-"
    times = (systems[name].seconds[phase].cpu for name in (reference, system))
    return f"{statistics.median(slow / fast for slow, fast in zip(*times, strict=False)):.2f}"


def threads_table(shapes: Mapping[str, DecodeBenchmark]) -> Table:
    """The same with several threads, by wall time too: CPU time counts threads that wait for each other."""
    rows = []
    for comparison in ALL:
        phase, system, reference = comparison
        if not all({system, reference} <= set(shapes[shape].systems) for shape in SHAPES):
            continue
        row = [comparison.label]
        for shape in SHAPES:
            walls = [shapes[shape].systems[name].median[phase].wall for name in (reference, system)]
            row.append(f"{ratio(shapes[shape], *comparison)}, {walls[0] / walls[1]:.2f}")
        rows.append(row)
    return Table(["speed-up: CPU time, wall time", *SHAPES.values()], rows)


def predict_tables(result: SpeedPrediction) -> tuple[Table, Table, Table]:
    """Predicted speed-ups of the short memory, measured checks, and the lengths from which it pays."""
    batches = sorted({cell.batch for cell in result.table})
    cells = {(cell.source, cell.batch): cell.speed_up for cell in result.table}
    rows = []
    for source in sorted({source for source, _ in cells if source >= SHORTEST}):
        speed_ups = (cells[source, batch] for batch in batches)
        rows.append([f"{source:,}", *(f"{both['decode']:.2f}, {both['both']:.2f}" for both in speed_ups)])
    checks = []
    for check in result.check:
        shape, found = check.shape, check.speed_up
        times = {name: f"{seconds:.2f} ({check.error[name]:+.0%})" for name, seconds in check.measured.items()}
        times["ratio"] = f"{found.measured:.2f} ({found.predicted / found.measured - 1:+.0%})"
        row = [f"{shape.batch} sentences of {shape.source:,} tokens, {shape.dropped:.0%} dropped"]
        checks.append(row + [times[name] for name in ("dense", "short", "ratio", "encode")])
    head = ["shape", "decode dense, CPU s", "decode short, CPU s", "speed-up, short over dense", "encode, CPU s"]
    sources = ["source tokens", *(f"batch {batch}: decoding, end to end" for batch in batches)]
    pays = [[batch, *(str(one[phase]) for phase in ("decode", "both"))] for batch, one in result.pays_from.items()]
    lengths = ["batch", "decoding gains from, source tokens", "end to end gains from, source tokens"]
    return Table(sources, rows), Table(head, checks), Table(lengths, pays)


def systems_table(shape: str, result: DecodeBenchmark) -> Table:
    """Seconds, memory and agreement of every system at one shape."""
    rows = []
    for name, system in result.systems.items():
        agreement, memory = result.agreement[name], system.memory
        assert memory is not None
        row = [f"`{name}`"]
        row += [f"{system.median[phase].cpu:.2f}" for phase in ("encode", "decode", "end_to_end")]
        cache = memory.cross_cache
        peak = f"{(memory.beyond_loaded or 0) / 2**20:.0f}"
        row.append(peak if cache is None else f"{peak}, {cache / 2**20:.0f}")
        row.append(
            UNCOMPARED.get(name, "reference") if agreement is None else f"{agreement.same} of {result.sentences}"
        )
        rows.append(row)
    head = [f"{SHAPES[shape]}, system", "encode, CPU s", "decode, CPU s", "end to end, CPU s"]
    return Table([*head, "peak memory, cross-attention K/V, MiB", "outputs with the same tokens"], rows)


def whisper_tables(results: Iterable[DecodeBenchmark]) -> tuple[Table, Table, Table]:
    """Whispers with random weights: speed-ups in float32 and in int8, and seconds."""
    ratios: dict[str, list[list[str]]] = {engine: [] for engine in WHISPER_PEERS}
    seconds = []
    for result in results:
        clips = f"{result.sentences} clip{'s' if result.sentences > 1 else ''}"
        row = [f"{result.workload.whisper}, {clips}, beam {result.generation['num_beams']}"]
        for engine, peer in WHISPER_PEERS.items():
            short, dense, inside = (f"{engine}-{which}" for which in ("short", "dense", "inside-1"))
            pairs = [("decode", short, dense), *(("end_to_end", one, dense) for one in (short, inside))]
            pairs += [("end_to_end", one, peer) for one in (dense, inside)]
            ratios[engine].append(row + [ratio(result, *pair) for pair in pairs])
        for system in ("engine-dense", "engine-inside-1", "ct2-float32", "engine-int8-dense", "ct2-int8"):
            found = result.systems.get(system)
            row.append("-" if found is None else ", ".join(f"{found.median[p].cpu:.2f}" for p in ("encode", "decode")))
        seconds.append(row)
    head = ["decoding: short over dense", "end to end: short over dense", "end to end: early gate over dense"]
    head += ["end to end: dense over CTranslate2", "end to end: early gate over CTranslate2"]
    columns = ["engine, dense", "engine, early gate", "CTranslate2", "engine int8, dense", "CTranslate2 int8"]
    float32, int8 = (
        Table([f"speed-up, {name}", *head], ratios[engine])
        for name, engine in (("float32", "engine"), ("int8", "engine-int8"))
    )
    return float32, int8, Table(["encode, decode, CPU s", *columns], seconds)


def ragged_tables(ragged: DecodeBenchmark, even: DecodeBenchmark) -> tuple[Table, Table]:
    """Text of many lengths: throughput and latency; and speed-ups next to a batch of one length, their mean."""
    rows = []
    for name, system in ragged.systems.items():
        assert system.latency_ms is not None
        latency = system.latency_ms.cpu
        rows.append([f"`{name}`", f"{system.sentences_per_second:.2f}"])
        rows[-1] += [f"{latency.p50:.0f}", f"{latency.p99:.0f}"]
    head = ["system", "documents per second, batches of 12", "one at a time, P50, ms", "one at a time, P99, ms"]
    compared = (one for one in ALL if {one.system, one.reference} <= set(ragged.systems))
    ratios = [[one.label, *(ratio(result, *one) for result in (ragged, even))] for one in compared]
    return Table(head, rows), Table(["speed-up, CPU time", "many lengths", "one length"], ratios)


def profile_table(profile: Mapping[str, Any]) -> Table:
    """Milliseconds of the parts of a decoding step, and the least that the machine allows."""
    columns = profile["seconds_per_step"]
    bounds = {name: f"{1000 * seconds:.1f}" for name, seconds in profile["bounds"].items()}
    attention = f"{bounds['cross_attention_short']} short, {bounds['cross_attention_dense']} dense"
    least = {"linear layers": bounds["linear_layers"], "attention": attention}
    rows = [
        [PARTS.get(part, part), *(f"{1000 * seconds[part]:.1f}" for seconds in columns.values()), least.get(part, "")]
        for part in STEP
    ]
    return Table(["ms per step", *columns, "lower bound, float32"], rows)


def profile_before_table(profiles: Mapping[str, Mapping[str, Any]]) -> Table:
    """The same parts before the engine was optimised, at several shapes."""
    columns = {
        f"`{shape}`, {name}": seconds
        for shape, profile in profiles.items()
        for name, seconds in profile["seconds_per_step"].items()
    }
    rows = [[PARTS.get(part, part), *(f"{1000 * one[part]:.1f}" for one in columns.values())] for part in STEP]
    return Table(["ms per step, before", *columns], rows)


def training_table(result: TrainingSpeed) -> Table:
    """Our trainer and Hugging Face's, every round."""
    rows = []
    for name, rounds in result.rounds.items():
        used = sum(one.mfu for one in rounds) / len(rounds)
        positions = sum(one.mfu_of_positions for one in rounds) / len(rounds)
        milliseconds = ", ".join(f"{one.milliseconds_per_step:.1f}" for one in rounds)
        tokens = ", ".join(f"{one.tokens_per_second / 1000:,.0f}k" for one in rounds)
        memory = max(one.peak_memory_gib for one in rounds)
        row = [name.replace("Hugging Face's", "Hugging Face"), milliseconds, tokens]
        rows.append([*row, f"{used:.0%}", f"{positions:.0%}", f"{memory:.1f}"])
    head = ["trainer", "ms per step", "tokens per second", "MFU, real tokens", "MFU, with padding"]
    return Table([*head, "peak memory, GiB"], rows)
