"""The tables of benchmarks, each with its title."""

import statistics
from collections.abc import Mapping

from l0drop.runs.benchmark import DecodeBenchmark, MemoryUse, TimedSystem, TokenAgreement
from l0drop.runs.gate_benchmark import Drift, GateCost, LayerwiseSpeed
from l0drop.runs.prediction import SpeedPrediction
from l0drop.runs.run import DialCurve
from l0drop.runs.table import Table
from l0drop.runs.training_benchmark import TrainingRound, TrainingSpeed

Titled = tuple[str, Table]


# --- decoding ----------------------------------------------------------------------------------------------------


def decode_table(result: DecodeBenchmark) -> Titled:
    """A row per system: CPU time, throughput, latency or memory, and agreement of tokens."""
    unit = result.workload.unit
    rate = "clips/s" if unit == "clips" else "sent./s"
    title = f"{result.sentences} {unit}, beam {result.generation['num_beams']}"
    if (gates := result.gates) is not None:
        title += f", longest source {gates.longest_source}, {gates.sparsity:.1%} dropped"
        if gates.sparsity_of_all is not None and gates.sparsity_of_all != gates.sparsity:
            title += f" of the rows that audio covers, {gates.sparsity_of_all:.1%} of all"
    is_text = any(system.latency_ms is not None for system in result.systems.values())
    last = ("P50 ms", "P99 ms") if is_text else ("peak MiB", "K/V MiB")
    verdicts = {name: _verdict(result.agreement[name], result.sentences) for name in result.systems}
    rows = [
        [
            name,
            *(brief(system.median[phase].cpu) for phase in ("encode", "decode", "end_to_end")),
            "" if system.sentences_per_second is None else brief(system.sentences_per_second),
            *(_latency(system) if is_text else _memory(system.memory)),
            verdicts[name],
        ]
        for name, system in result.systems.items()
    ]
    note = (
        f"total: encode + decode. {rate}: {unit} per second of wall time. "
        + ("P50, P99: latency of a sentence decoded alone, wall time. " if is_text else "")
        + ("" if is_text else "peak: memory beyond the loaded system; K/V: cross-attention's keys and values. ")
        + "same tokens: outputs with the same tokens as the reference system, which is marked -."
    )
    wrong = {verdict: "bad" for verdict in verdicts.values() if verdict.endswith("!")}
    note += " !: tokens differ that should be the same." if wrong else ""
    head = ["", "encode", "decode", "total", rate, *last, "same tokens"]
    return f"{title}; CPU seconds, medians", Table(head, rows, note, styles=wrong)


def _latency(system: TimedSystem) -> list[str]:
    found = system.latency_ms
    return ["", ""] if found is None else [brief(found.wall.p50), brief(found.wall.p99)]


def _memory(memory: MemoryUse | None) -> list[str]:
    counts = (None, None) if memory is None else (memory.beyond_loaded, memory.cross_cache)
    return ["" if count is None else brief(count / 2**20) for count in counts]


def _verdict(found: TokenAgreement | None, sentences: int) -> str:
    if found is None:
        return "-"
    ties = f"+{found.tied} tied" if found.tied else ""
    return f"{found.same}{ties}/{sentences}{' !' if found.must_agree and found.different else ''}"


def speed_up_table(results: Mapping[str, DecodeBenchmark]) -> Titled:
    """A row per pair of systems, a column per workload."""
    found: dict[str, dict[str, float]] = {}
    for name, result in results.items():
        for one in result.ratios:
            phase = "end to end" if one.phase == "end_to_end" else "decoder only"
            found.setdefault(f"{one.by} over {one.system}, {phase}", {})[name] = one.times
    rows = [
        [pair, *(f"{times[name]:.2f}" if name in times else "" for name in results)] for pair, times in found.items()
    ]
    head = ["speed-up of A over B", *(results if len(results) > 1 else [""])]
    return "Speed-ups by CPU time", Table(head, rows, "ct2 decodes the model without gates, over all encodings.")


def sparsity_alone(result: DecodeBenchmark) -> str:
    """One sentence: the speed-up of our engine's short memory over its dense memory; empty if they did not both run."""
    found = result.speed_ups("engine-short", over="engine-dense")
    if not found or result.gates is None:
        return ""
    return (
        f"Dropping {result.gates.sparsity:.1%} of the encodings makes our engine {found['end_to_end']:.2f} x as fast "
        f"end to end, {found['decode']:.2f} x without encoding."
    )


def dial_table(curve: DialCurve) -> Titled:
    """A row per setting; the note names the references if they are not the text's own."""
    score = curve.rows[0].score
    rows = [
        [
            "as trained" if row.keep is None else f"{row.keep:g}",
            f"{row.sparsity:.1%}",
            f"{row.score.value:.2f}",
            f"{row.cpu_seconds:.2f}",
        ]
        for row in curve.rows
    ]
    against = "" if curve.references is None else f"References: {curve.references}. "
    head = ["keep", "sparsity", score.name, "decoding, CPU s"]
    return f"{curve.run}, {curve.split} set, by the share kept", Table(head, rows, against + score.signature)


# --- prediction --------------------------------------------------------------------------------------------------


def prediction_table(result: SpeedPrediction) -> Titled:
    """A row per source length, a column per batch size; the length that the answer is for is marked."""
    cells: dict[int, list[str]] = {}
    for row in result.table:
        cells.setdefault(row.source, []).append(f"{row.speed_up['both']:.2f} ({row.speed_up['decode']:.2f})")
    marked = None if result.source is None else list(cells).index(result.source)
    head = ["source tokens", *(f"batch {batch}" for batch in result.pays_from)]
    rows = [[str(length), *gains] for length, gains in cells.items()]
    title = "Speed-up of the short over the dense memory, end to end (decoder only)"
    return title, Table(head, rows, marked=marked)


def check_table(result: SpeedPrediction) -> Titled:
    """A row per shape of the check: measured times with the errors of the prediction."""
    rows = []
    for one in result.check:
        gain = one.speed_up
        phases = (f"{brief(one.measured[phase])} ({error:+.0%})" for phase, error in one.error.items())
        times = f"{gain.measured:.2f} ({gain.predicted / gain.measured - 1:+.0%})"
        rows.append([str(one.shape.batch), str(one.shape.source), f"{one.shape.dropped:.0%}", *phases, times])
    head = ["batch", "source", "dropped", "encode s", "dense s", "short s", "dense / short"]
    return "Check: measured seconds (error of the prediction)", Table(head, rows)


# --- training and gates ------------------------------------------------------------------------------------------


def gate_cost_table(result: GateCost) -> Titled:
    """A training step with and without the gate."""
    medians = {name: timing.median for name, timing in result.seconds.items()}
    rows = [[f"{name} gate", f"{median.cpu:.3f}", f"{median.wall:.3f}"] for name, median in medians.items()]
    rounds = len(next(iter(result.seconds.values())).cpu)
    note = f"The gate costs {result.ratio_cpu - 1:+.1%} CPU time (median of {rounds} rounds)."
    return "One training step of a Transformer base, medians", Table(["", "CPU s", "wall s"], rows, note)


def training_speed_table(result: TrainingSpeed) -> Titled:
    """A row per trainer, medians over its rounds."""
    rows = [[name.replace(", ", ",\n  "), *_medians(rounds)] for name, rounds in result.rounds.items()]
    note = (
        f"Speed-up of l0drop over Hugging Face's Trainer: {result.times_theirs_with_cudnn_attention_off:.2f} x with "
        f"cuDNN attention off, {result.times_theirs:.1f} x with its defaults. The gate costs "
        f"{result.gate_overhead:.1%}. MFU: share of the {result.matrix_tflops:.0f} TFLOP/s of a large matrix "
        "product; padded: padding counted as work. Loss curves, second half: the fast path differs from the plain one "
        f"by {result.curves.difference:.4f}, two plain runs by {result.curves.noise:.4f}."
    )
    title = f"Training a Transformer base, {result.precision}, batches of {result.batch_tokens:,} padded tokens"
    return title, Table(["", "tokens/s", "ms/step", "MFU", "MFU, padded", "peak GiB"], rows, note)


def _medians(rounds: list[TrainingRound]) -> list[str]:
    return [
        f"{statistics.median(one.tokens_per_second for one in rounds):,.0f}",
        f"{statistics.median(one.milliseconds_per_step for one in rounds):.1f}",
        f"{statistics.median(one.mfu for one in rounds):.1%}",
        f"{statistics.median(one.mfu_of_positions for one in rounds):.1%}",
        f"{statistics.median(one.peak_memory_gib for one in rounds):.1f}",
    ]


def layerwise_table(result: LayerwiseSpeed) -> Titled:
    """A row per share of rows kept."""
    rows = [
        [
            f"{row.kept:.0%}",
            f"{row.cpu_seconds_removed:.3f}",
            f"{row.cpu_seconds_masked:.3f}",
            f"{1 / row.ratio_cpu:.2f}",
        ]
        for row in result.rows
    ]
    head = ["rows kept", "removed", "masked", "speed-up of removing over masking"]
    return "Encoder with gates between its layers, CPU seconds (medians)", Table(head, rows)


def drift_table(result: Drift) -> Titled:
    """A row per family, gating, attention and number format."""
    rows = [
        [
            row.family,
            row.gating,
            row.attention,
            row.dtype,
            f"{row.short_against_dense:.1e}",
            f"{row.dense_against_float32:.1e}",
        ]
        for row in result.rows
    ]
    head = ["family", "gating", "attention", "dtype", "short - dense", "dense - float32"]
    prose = frozenset({"gating", "attention", "dtype"})
    return "Mean absolute difference of logits / mean absolute logit", Table(head, rows, prose=prose)


def brief(number: float) -> str:
    """About three digits, never in scientific notation."""
    size = abs(number)
    return f"{number:,.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 4}f}"
