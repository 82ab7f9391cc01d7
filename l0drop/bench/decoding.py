"""The decoding benchmark: several systems decode the same batches, each in a separate process.

Machines are shared and noisy, so the systems take turns round by round, CPU time is measured in addition to wall time,
and ratios are taken within a round. A separate process gives each system its own peak of resident memory and a clean
allocator.

    Workload ─▶ one process per system: load, warm up ─▶ rounds, in turns ─▶ the same tokens? ─▶ a dict for JSON
"""

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from l0drop.bench.peers import SYSTEMS, Tokens, build_system, ctranslate2_library, rescore, ungated
from l0drop.bench.remote import Remote, running
from l0drop.bench.timing import Progress, Timing, ratio
from l0drop.bench.workloads import Text, Workload
from l0drop.runs.provenance import provenance

PHASES = ("encode", "decode", "end_to_end")
SLOW = ("hf-short", "hf-dense")
TIE = 1e-4
COMPARED = (
    ("end_to_end", "engine-dense", "engine-short"),
    ("decode", "engine-dense", "engine-short"),
    ("end_to_end", "engine-int8-dense", "engine-int8-short"),
    ("decode", "engine-int8-dense", "engine-int8-short"),
    ("end_to_end", "ct2-float32", "engine-short"),
    ("decode", "ct2-float32", "engine-dense"),
    ("end_to_end", "ct2-int8", "engine-int8-short"),
    ("decode", "ct2-int8", "engine-int8-dense"),
    ("end_to_end", "hf-dense", "engine-short"),
)
"""Phase, system, faster system. The pairs of one engine, dense and short, show the gain from sparsity alone."""
NOTES = {
    "systems": "engine-short and hf-short decode on the short memory, engine-dense and hf-dense the same gated model "
    "on the full gated memory, engine-int8 the same with 8-bit weights; ct2 decodes the base model with the same "
    "weights, without gates, over all encodings",
    "end_to_end": "from token ids to token ids: encode + decode; ct2 does both in one call, and its decode is that "
    "call minus its encoder, which is timed as a separate model in the same round",
    "times_engine_short": "a system's CPU time / engine-short's, the median over the rounds that both ran",
    "ratios": "times: CPU time of `system` / CPU time of `by`, the median over the rounds that both ran",
    "memory": "bytes; weights with packed copies; beyond_loaded is the peak of the process's resident memory while "
    "decoding minus its resident memory after loading (null if the operating system does not report it); cross_cache "
    "is the allocated size of cross-attention's keys and values for the longest batch (null if the system does not "
    "expose them)",
    "agreement": "sentences with the same tokens as the reference; where they differ, the dense model scores both "
    f"outputs in float64, and a difference of normalised scores below {TIE:g} is a tie; ct2 is compared with "
    "the reference without gates, and int8 systems, whose weights are rounded, need not agree",
}


# --- one system, in a separate process ---------------------------------------------------------------------------


class Worker:
    """A loaded system, its batches and its last outputs."""

    def __init__(self, name: str, workload: Workload, threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.logging.disable_progress_bar()
        model, self.batches = workload.load()
        self.system = build_system(name, model, threads, **workload.generation)
        self.name, self.threads = name, threads
        self.model = model if self.system.gated else None
        self.tokens: list[Tokens] = []
        self.cross_cache: int | None = None
        del model
        self.loaded = _resident("VmRSS")
        _forget_peak()

    def warm_up(self, brief: bool) -> None:
        """Decode once, uncounted; if brief, two tokens."""
        if not brief:
            self.round()
        self.cross_cache = self.system.cross_bytes(self.batches[0])

    def round(self) -> dict[str, tuple[float, float]]:
        """Decode all batches; returns CPU and wall seconds per phase."""
        encode, rest = _Stopwatch(), _Stopwatch()
        self.tokens = []
        for batch in self.batches:
            with encode:
                memory = self.system.encode(batch)
            with rest:
                tokens = self.system.decode(memory) if self.system.apart else self.system.generate(batch)
            del memory
            self.tokens.append(tokens)
        if self.system.apart:
            total = (encode.cpu + rest.cpu, encode.wall + rest.wall)
            return {"encode": encode.seconds, "decode": rest.seconds, "end_to_end": total}
        less = (rest.cpu - encode.cpu, rest.wall - encode.wall)
        return {"encode": encode.seconds, "decode": less, "end_to_end": rest.seconds}

    def latencies(self) -> list[tuple[float, float]]:
        """CPU and wall seconds for each sentence, decoded alone."""
        seconds = []
        for batch in self.batches:
            for row in range(len(batch)):
                alone, clock = batch[row], _Stopwatch()
                with clock:
                    self.system.generate(alone)
                seconds.append(clock.seconds)
        return seconds

    def outcome(self) -> dict[str, Any]:
        """Produced tokens and memory, after the rounds."""
        peak = _resident("VmHWM")
        beyond = None if peak is None or self.loaded is None else peak - self.loaded
        memory = {"weights": self.system.weight_bytes(), "beyond_loaded": beyond, "cross_cache": self.cross_cache}
        return {"tokens": sum(len(row) for batch in self.tokens for row in batch), "memory": memory}

    def gating(self) -> dict[str, Any]:
        """Sparsity, and the longest source and memory."""
        assert self.model is not None
        with torch.no_grad():
            memories = [self.model.get_encoder()(**batch.encoder_inputs) for batch in self.batches]
        dropped, real = (sum(int(getattr(memory, name).sum()) for memory in memories) for name in ("dropped", "real"))
        return {
            "sparsity": dropped / real,
            "source_tokens": real,
            "longest_source": max(batch.input_ids.shape[1] for batch in self.batches),
            "longest_memory": max(memory.last_hidden_state.shape[1] for memory in memories),
        }

    def hypotheses(self) -> list[Tokens]:
        """The outputs of the last round, batch by batch."""
        return self.tokens

    def ungated_hypotheses(self) -> list[Tokens]:
        """The outputs of this system without gates."""
        assert self.model is not None
        system = build_system(self.name, ungated(self.model), self.threads, **self.system.generation)
        return [system.generate(batch) for batch in self.batches]

    def scores(self, outputs: list[tuple[int, int, list[int]]], gated: bool) -> list[float]:
        """Scores of outputs (batch, sentence, tokens) by the dense model in float64."""
        assert self.model is not None
        model = copy.deepcopy(self.model if gated else ungated(self.model)).double()
        penalty = self.system.generation["length_penalty"]
        return [rescore(model, self.batches[batch][row], tokens, penalty) for batch, row, tokens in outputs]


class _Stopwatch:
    """Sums CPU and wall seconds over the blocks it encloses."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._start[0]
        self.wall += time.perf_counter() - self._start[1]

    @property
    def seconds(self) -> tuple[float, float]:
        return self.cpu, self.wall


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _resident(name: str) -> int | None:
    """Bytes of this process's memory: VmRSS now, VmHWM at its peak; None if the system does not report them."""
    if not _STATUS.exists():
        return None
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _forget_peak() -> None:
    if _CLEAR.exists():
        _CLEAR.write_text("5")


# --- the benchmark -----------------------------------------------------------------------------------------------


def decode_benchmark(
    workload: Workload,
    systems: Sequence[str] = SYSTEMS,
    rounds: int = 5,
    slow_rounds: int = 1,
    threads: int = 1,
    progress: Progress = print,
) -> dict[str, Any]:
    """Time the systems on a workload and compare their tokens. Hugging Face's generate runs only `slow_rounds`.

    With text, also measure the latency: each sentence decoded alone.
    """
    for name in systems or [""]:
        if name not in SYSTEMS:
            raise ValueError(f"systems: expected some of {', '.join(SYSTEMS)}, got {name!r}")
    if any(name.startswith("ct2") for name in systems):
        ctranslate2_library()
    wanted = {name: min(rounds, slow_rounds) if name in SLOW else rounds for name in systems}
    builders = {name: (Worker, (name, workload, threads)) for name in systems}
    with running(builders, preload=[__name__]) as remotes:
        for name, remote in remotes.items():
            progress(f"{name}: warming up")
            remote.ask("warm_up", name in SLOW)
        timings = {name: {phase: Timing() for phase in PHASES} for name in systems}
        latencies: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in systems}
        for name, number in in_turns(wanted):
            seconds = remotes[name].ask("round")
            for phase, timing in timings[name].items():
                timing.cpu.append(seconds[phase][0])
                timing.wall.append(seconds[phase][1])
            if isinstance(workload, Text):
                latencies[name].append(remotes[name].ask("latencies"))
            progress(f"round {number + 1} of {wanted[name]}, {name}: {seconds['end_to_end'][0]:.2f} CPU s")
        outcomes = {name: remote.ask("outcome") for name, remote in remotes.items()}
        progress("comparing tokens")
        sentences, agreement = _agreement(remotes)
        gated = next((name for name in _QUICK_JUDGES if name in remotes), None)
        gating = None if gated is None else remotes[gated].ask("gating")
    return {
        **workload.describe(),
        "sentences": sentences,
        "gates": gating,
        "generation": workload.generation,
        "systems": {
            name: {
                "rounds": wanted[name],
                "warm_up": "two tokens" if name in SLOW else "one round",
                "seconds": {phase: asdict(timing) for phase, timing in timings[name].items()},
                "median": {
                    phase: {"cpu": timing.cpu_median, "wall": timing.wall_median}
                    for phase, timing in timings[name].items()
                },
                "times_engine_short": _times(timings, name),
                **outcomes[name],
                **_speed(timings[name], sentences, latencies[name]),
            }
            for name in systems
        },
        "ratios": _ratios(timings),
        "agreement": agreement,
        "notes": NOTES,
        "ctranslate2": version("ctranslate2") if any(name.startswith("ct2") for name in systems) else None,
        **asdict(provenance()),
        "threads": threads,
    }


def in_turns(wanted: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Systems with round numbers. Every second round runs backwards, so that no system always follows another."""
    for number in range(max(wanted.values())):
        for name in list(wanted)[:: -1 if number % 2 else 1]:
            if number < wanted[name]:
                yield name, number


def _times(timings: dict[str, dict[str, Timing]], name: str) -> dict[str, float] | None:
    if "engine-short" not in timings:
        return None
    by_phase = {phase: {system: timing[phase] for system, timing in timings.items()} for phase in PHASES}
    return {phase: ratio(by_phase[phase], name, "engine-short") for phase in PHASES}


def _ratios(timings: dict[str, dict[str, Timing]]) -> list[dict[str, Any]]:
    """The ratios of `COMPARED` for which both systems ran."""
    return [
        {
            "phase": phase,
            "system": one,
            "by": other,
            "times": ratio({name: timings[name][phase] for name in (one, other)}, one, other),
        }
        for phase, one, other in COMPARED
        if one in timings and other in timings
    ]


def _speed(timing: dict[str, Timing], sentences: int, latencies: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """Sentences per second of wall time, and percentiles over sentences of the median latency."""
    speed: dict[str, Any] = {"sentences_per_second": sentences / timing["end_to_end"].wall_median}
    if latencies:
        alone = 1000 * np.median(latencies, axis=0)
        speed["latency_ms"] = {
            clock: {f"p{p}": float(np.percentile(alone[:, column], p)) for p in (50, 99)}
            for column, clock in enumerate(("cpu", "wall"))
        }
    return speed


# --- agreement of tokens -------------------------------------------------------------------------------------------

_JUDGES = ("hf-dense", "engine-dense", "hf-short", "engine-short")
_QUICK_JUDGES = ("engine-dense", "engine-short", "hf-dense", "hf-short")


def _agreement(remotes: Mapping[str, Remote]) -> tuple[int, dict[str, Any]]:
    """The number of sentences, and each system's agreement with a reference, ties counted separately.

    None for the reference itself, and for all systems if no gated system ran.
    """
    hypotheses = {name: remote.ask("hypotheses") for name, remote in remotes.items()}
    found: dict[str, Any] = dict.fromkeys(remotes)
    sentences = sum(map(len, next(iter(hypotheses.values()))))
    judge, quick = (next((name for name in names if name in remotes), None) for names in (_JUDGES, _QUICK_JUDGES))
    if judge is None or quick is None:
        return sentences, found
    peers = [name for name in remotes if name.startswith("ct2")]
    for name in remotes.keys() - {judge, *peers}:
        score = functools.partial(_scores, remotes[judge], True)
        found[name] = {"reference": judge, "must_agree": "int8" not in name}
        found[name].update(compare(hypotheses[name], hypotheses[judge], score))
    without_gates = remotes[quick].ask("ungated_hypotheses") if peers else []
    for name in peers:
        score = functools.partial(_scores, remotes[quick], False)
        found[name] = {"reference": f"{quick}, without gates", "must_agree": name == "ct2-float32"}
        found[name].update(compare(hypotheses[name], without_gates, score))
    return sentences, found


Output = tuple[int, int, list[int]]


def _scores(judge: Remote, gated: bool, outputs: list[Output]) -> list[float]:
    return judge.ask("scores", outputs, gated) if outputs else []


def compare(one: list[Tokens], other: list[Tokens], score: Callable[[list[Output]], list[float]]) -> dict[str, Any]:
    """The number of sentences with the same tokens, tied scores, or different outputs."""
    sentences = [(batch, row) for batch, rows in enumerate(other) for row in range(len(rows))]
    differing = [(batch, row) for batch, row in sentences if one[batch][row] != other[batch][row]]
    both = (score([(batch, row, system[batch][row]) for batch, row in differing]) for system in (one, other))
    gaps = [abs(a - b) for a, b in zip(*both, strict=True)]
    tied = sum(gap < TIE for gap in gaps)
    return {
        "same": len(sentences) - len(differing),
        "tied": tied,
        "different": len(differing) - tied,
        "largest_score_gap": max(gaps, default=0.0),
    }
