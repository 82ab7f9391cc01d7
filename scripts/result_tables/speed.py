"""How fast decoding and training are, as measured."""

from collections.abc import Iterable, Mapping
from typing import Any

from result_tables.files import markdown

SHAPES = {"mt": "30 tokens (`mt`)", "cnndm": "400 (`cnndm`)", "wikisum": "2,048 (`wikisum`)"}
RATIOS = {
    "decode: CTranslate2 float32, dense / engine, dense": ("decode", "ct2-float32", "engine-dense"),
    "decode: engine, dense / engine, short": ("decode", "engine-dense", "engine-short"),
    "encode + decode: CTranslate2 float32, dense / engine, short": ("end_to_end", "ct2-float32", "engine-short"),
    "encode + decode: Hugging Face's generate, dense / engine, short": ("end_to_end", "hf-dense", "engine-short"),
    "decode, int8: engine, dense / engine, short": ("decode", "engine-int8-dense", "engine-int8-short"),
    "encode + decode, int8: CTranslate2, dense / engine, short": ("end_to_end", "ct2-int8", "engine-int8-short"),
}
"""A row of the table of speeds: phase, system, and by which it is divided."""
SHORTEST = 64
"""The shortest source that the table of predictions shows; below it, nothing is to be gained."""
STEP = ("step", "linear layers", "attention", "vocabulary", "copies", "other operations", "between them")
"""Parts of a decoding step, as `scripts/profile_step.py` has them."""


def speed_table(shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """How many times as long one system takes as another, at every shape."""
    rows = ([label, *(ratio(shapes[shape], *which) for shape in SHAPES)] for label, which in RATIOS.items())
    return markdown(["how many times as long, CPU time", *SHAPES.values()], rows)


def ratio(result: Mapping[str, Any], phase: str, system: str, by: str) -> str:
    found = [r["times"] for r in result["ratios"] if (r["phase"], r["system"], r["by"]) == (phase, system, by)]
    return f"{found[0]:.2f}" if found else "-"


def threads_table(shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """The same of several threads, by the clock too: CPU time counts threads that wait for each other."""
    rows = []
    for label, (phase, system, by) in RATIOS.items():
        row = [label]
        for shape in SHAPES:
            systems = shapes[shape]["systems"]
            if not {system, by} <= set(systems):
                break
            walls = [systems[name]["median"][phase]["wall"] for name in (system, by)]
            row.append(f"{ratio(shapes[shape], phase, system, by)}, {walls[0] / walls[1]:.2f}")
        else:
            rows.append(row)
    return markdown(["how many times as long: CPU time, wall time", *SHAPES.values()], rows)


def predict_tables(result: Mapping[str, Any]) -> tuple[str, str]:
    """What the short memory was predicted to bring, and what was then measured at other shapes."""
    batches = sorted({cell["batch"] for cell in result["table"]})
    cells = {(cell["source"], cell["batch"]): cell["speed_up"] for cell in result["table"]}
    rows = []
    for source in sorted({source for source, _ in cells if source >= SHORTEST}):
        speed_ups = (cells[source, batch] for batch in batches)
        rows.append([str(source), *(f"{both['decode']:.2f} ({both['both']:.2f})" for both in speed_ups)])
    checks = []
    for check in result["check"]:
        shape, measured, error, found = check["shape"], check["measured"], check["error"], check["speed_up"]
        times = {name: f"{measured[name]:.2f} ({error[name]:+.0%})" for name in measured}
        times["ratio"] = f"{found['measured']:.2f} ({found['predicted'] / found['measured'] - 1:+.0%})"
        row = [str(shape["batch"]), str(shape["source"]), f"{shape['dropped']:.0%}"]
        checks.append(row + [times[name] for name in ("dense", "short", "ratio", "encode")])
    head = ["batch", "source", "dropped", "decode dense, CPU s", "decode short", "dense/short", "encode"]
    return markdown(["source tokens", *(f"batch {batch}" for batch in batches)], rows), markdown(head, checks)


def systems_table(shape: str, result: Mapping[str, Any]) -> str:
    """Seconds, memory and agreement of every system at one shape."""
    rows = []
    for name, system in result["systems"].items():
        seconds = {phase: found["cpu"] for phase, found in system["median"].items()}
        times, agreement = system["times_engine_short"], result["agreement"][name]
        row = [name, f"{seconds['encode']:.2f}"]
        row += [f"{seconds[phase]:.2f} ({times[phase]:.2f})" for phase in ("decode", "end_to_end")]
        cache = system["memory"]["cross_cache"]
        row += [f"{system['memory']['beyond_loaded'] / 2**20:.0f}", "" if cache is None else f"{cache / 2**20:.0f}"]
        row.append("reference" if agreement is None else f"{agreement['same']} of {result['sentences']}")
        rows.append(row)
    head = [shape, "encode", "decode", "both", "peak memory, MiB", "cross-attention K/V, MiB", "same tokens"]
    return markdown(head, rows)


def ragged_table(ragged: Mapping[str, Any], even: Mapping[str, Any]) -> str:
    """Text of many lengths, and beside it a shape in which all are as long as their mean."""
    rows = []
    for name, system in ragged["systems"].items():
        latency = system["latency_ms"]["cpu"]
        row = [name, f"{system['sentences_per_second']:.2f}", f"{latency['p50']:.0f}", f"{latency['p99']:.0f}"]
        for result in (ragged, even):
            times = result["systems"].get(name, {}).get("times_engine_short", {})
            row += [f"{times[phase]:.2f}" if phase in times else "-" for phase in ("decode", "end_to_end")]
        rows.append(row)
    head = ["system", "sentences per second", "P50, ms", "P99, ms", "decode", "both", "even lengths: decode", "both"]
    return markdown(head, rows)


def profile_table(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """Where the time of a decoding step goes, and what the machine could do at best. By the state of the engine."""
    rows = []
    for when, profile in profiles.items():
        for name, seconds in profile["seconds_per_step"].items():
            rows.append([f"{when}: {name}", *(f"{1000 * seconds[part]:.1f}" for part in STEP)])
    bounds = {name: f"{1000 * seconds:.1f}" for name, seconds in profile["bounds"].items()}
    attention = f"{bounds['cross_attention_short']} short, {bounds['cross_attention_dense']} dense"
    rows.append(["bound, float32", "", bounds["linear_layers"], attention, *[""] * (len(STEP) - 3)])
    return markdown(["ms per step", *STEP], rows)


def training_table(result: Mapping[str, Any]) -> str:
    """Our trainer and Hugging Face's; of several rounds, each."""

    def each(rounds: Iterable[Mapping[str, Any]], key: str, form: str, times: float = 1) -> str:
        return ", ".join(format(times * one[key], form) for one in rounds)

    rows = []
    for name, rounds in result["rounds"].items():
        count = len(rounds)
        used, positions = (sum(one[key] for one in rounds) / count for key in ("mfu", "mfu_of_positions"))
        memory = max(one["peak_memory_gib"] for one in rounds)
        thousands = ", ".join(f"{one['tokens_per_second'] / 1000:,.0f}k" for one in rounds)
        row = [name, each(rounds, "milliseconds_per_step", ".1f"), thousands]
        rows.append([*row, f"{used:.0%} ({positions:.0%})", f"{memory:.1f} GiB"])
    return markdown(["", "ms per step", "tokens/s", "MFU", "peak memory"], rows)
