"""The decoding benchmark: several systems decode the same batches, each in a separate process.

Machines are shared and noisy, so the systems take turns round by round, CPU time is measured in addition to wall time,
and ratios are taken within a round. A separate process gives each system its own peak of resident memory and a clean
allocator.

    Workload ─▶ one process per system: load, warm up ─▶ rounds, in turns ─▶ the same tokens? ─▶ DecodeBenchmark
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from l0drop.bench.agreement import QUICK_JUDGES, TIE, agreement_of
from l0drop.bench.peers import Peer, Tokens, build_peer, ctranslate2_library, rescore, ungated
from l0drop.bench.remote import running
from l0drop.bench.speech_peers import build_speech_peer, prompt_of
from l0drop.bench.speech_workloads import INSIDE
from l0drop.bench.timing import Say, Stopwatch, in_turns, ratio
from l0drop.bench.workloads import TextFile, Workload
from l0drop.models.modeling import L0DropModel
from l0drop.runs.benchmark import (
    DecodeBenchmark,
    GateCounts,
    Latency,
    MemoryUse,
    Percentiles,
    Ratio,
    Seconds,
    TimedSystem,
    Timing,
)
from l0drop.runs.provenance import provenance

PHASES = ("encode", "decode", "end_to_end")
SLOW = ("hf-short", "hf-dense")
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
SPEECH_COMPARED = tuple(
    ("end_to_end", system, by)
    for dense, ct2, others, own in (
        ("engine-dense", "ct2-float32", ("engine-baseline", "engine-rival"), "engine-{}"),
        ("engine-int8-dense", "ct2-int8", ("engine-int8-baseline", "engine-int8-rival"), "engine-int8-{}"),
    )
    for system, by in (
        *((slow, own.format(f"inside-{layer}")) for layer in INSIDE for slow in (dense, ct2)),
        *((other, own.format("short")) for other in others),
    )
)
"""The same for systems that only Whisper's workloads have."""
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
    "the reference without gates, and int8 systems, whose weights are rounded, need not agree, nor does "
    "CTranslate2's Whisper with beams, which normalises probabilities after suppressing tokens, not before",
}


# --- one system, in a separate process ---------------------------------------------------------------------------


class Worker:
    """A loaded system, its batches and its last outputs."""

    def __init__(self, name: str, workload: Workload, threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.logging.disable_progress_bar()
        model, self.batches = workload.load(workload.variant(name))
        self.peer = build_system(name, model, threads, **workload.generation)
        self.name, self.threads = name, threads
        self.model = model if self.peer.gated else None
        self.tokens: list[Tokens] = []
        self.cross_cache: int | None = None
        del model
        self.loaded = _resident("VmRSS")
        _forget_peak()

    def warm_up(self, brief: bool) -> None:
        """Decode once, uncounted; if brief, two tokens."""
        if not brief:
            self.round()
        self.cross_cache = self.peer.cross_bytes(self.batches[0])

    def round(self) -> dict[str, Seconds]:
        """Decode all batches; returns CPU and wall seconds per phase."""
        self.tokens, seconds = timed(self.peer, self.batches)
        return seconds

    def latencies(self) -> list[Seconds]:
        """CPU and wall seconds for each sentence, decoded alone."""
        seconds = []
        for batch in self.batches:
            for row in range(len(batch)):
                alone, watch = batch[row], Stopwatch()
                with watch:
                    self.peer.generate(alone)
                seconds.append(watch.seconds)
        return seconds

    def outcome(self) -> tuple[int, MemoryUse]:
        """The number of produced tokens, and memory, after the rounds."""
        peak = _resident("VmHWM")
        beyond = None if peak is None or self.loaded is None else peak - self.loaded
        memory = MemoryUse(self.peer.weight_bytes(), beyond, self.cross_cache)
        return sum(len(row) for batch in self.tokens for row in batch), memory

    def gating(self) -> GateCounts:
        """Sparsity, and the longest source and memory."""
        assert self.model is not None
        with torch.no_grad():
            memories = [self.model.get_encoder()(**batch.encoder_inputs) for batch in self.batches]
        audio = self.model.family.reads_audio
        dropped, real = (sum(int(getattr(memory, name).sum()) for memory in memories) for name in ("dropped", "real"))
        return GateCounts(
            sparsity=dropped / real,
            source_tokens=real,
            longest_source=max(batch.positions for batch in self.batches),
            longest_memory=max(memory.last_hidden_state.shape[1] for memory in memories),
            sparsity_of_all=float(torch.cat([m.gates.values == 0 for m in memories]).float().mean()) if audio else None,
        )

    def hypotheses(self) -> list[Tokens]:
        """The outputs of the last round, batch by batch."""
        return self.tokens

    def must_agree(self) -> bool:
        """Whether its search and its weights are those of generate, so that its tokens must be the same."""
        return self.peer.exact

    def ungated_hypotheses(self) -> list[Tokens]:
        """The outputs of this system without gates."""
        assert self.model is not None
        peer = build_system(self.name, ungated(self.model), self.threads, **self.peer.generation)
        return [peer.generate(batch) for batch in self.batches]

    def dense_hypotheses(self) -> list[Tokens]:
        """The outputs of our engine in float32 with this model's dropped rows masked instead of removed."""
        assert self.model is not None
        peer = build_system("engine-dense", self.model, self.threads, **self.peer.generation)
        return [peer.generate(batch) for batch in self.batches]

    def scores(self, outputs: list[tuple[int, int, list[int]]], gated: bool) -> list[float]:
        """Scores of outputs (batch, sentence, tokens) by the dense model in float64."""
        assert self.model is not None
        model = copy.deepcopy(self.model if gated else ungated(self.model)).double()
        generation, settings = self.peer.generation, self.model.generation_config
        prompt = [settings.decoder_start_token_id]
        if model.family.reads_audio:
            prompt = prompt_of(settings, generation.get("language"))
        scores = []
        for batch, row, tokens in outputs:
            inputs = self.batches[batch][row].encoder_inputs
            exact = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items() if name != "hints"}
            scores.append(rescore(model, {**inputs, **exact}, tokens, generation["length_penalty"], prompt))
        return scores


def timed(
    peer: Peer, batches: Sequence[Any], device: str | torch.device = "cpu", **changes: Any
) -> tuple[list[Tokens], dict[str, Seconds]]:
    """The outputs for all batches, and seconds per phase. `changes` replace settings of the search.

    Phases are PHASES, and `search` if decoding is more than a search.
    """
    encode, rest = Stopwatch(device), Stopwatch(device)
    searched = peer.searching
    found = []
    for batch in batches:
        with encode:
            memory = peer.encode(batch)
        with rest:
            tokens = peer.decode(memory, **changes) if peer.apart else peer.generate(batch, **changes)
        del memory
        found.append(tokens)
    encoding, other = encode.seconds, rest.seconds
    search = {} if searched is None or peer.searching is None else {"search": peer.searching - searched}
    if peer.apart:
        return found, {"encode": encoding, "decode": other, "end_to_end": encoding + other, **search}
    return found, {"encode": encoding, "decode": other - encoding, "end_to_end": other}


def build_system(name: str, model: L0DropModel, threads: int, **generation: Any) -> Peer:
    """The system of that name for a text model or a Whisper."""
    return (build_speech_peer if model.family.reads_audio else build_peer)(name, model, threads, **generation)


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
    systems: Sequence[str] | None = None,
    rounds: int = 5,
    slow_rounds: int = 1,
    threads: int = 1,
    say: Say = print,
) -> DecodeBenchmark:
    """Time systems (default: all) on a workload and compare their tokens. `generate` runs only `slow_rounds`.

    With text, also measure the latency: each sentence decoded alone.
    """
    systems = workload.systems if systems is None else systems
    for name in systems or [""]:
        if name not in workload.systems:
            raise ValueError(f"`systems`: expected some of {', '.join(workload.systems)}, got {name!r}")
    if any(name.startswith("ct2") for name in systems):
        ctranslate2_library()
    wanted = {name: min(rounds, slow_rounds) if name in SLOW else rounds for name in systems}
    builders = {name: (Worker, (name, workload, threads)) for name in systems}
    with running(builders, preload=[__name__]) as remotes:
        for name, remote in remotes.items():
            say(f"{name}: warming up")
            remote.ask("warm_up", name in SLOW)
        timings = {name: {phase: Timing() for phase in PHASES} for name in systems}
        latencies: dict[str, list[list[Seconds]]] = {name: [] for name in systems}
        for name, number in in_turns(wanted):
            seconds = remotes[name].ask("round")
            for phase, timing in timings[name].items():
                timing.append(seconds[phase])
            if isinstance(workload, TextFile):
                latencies[name].append(remotes[name].ask("latencies"))
            say(f"round {number + 1} of {wanted[name]}, {name}: {seconds['end_to_end'].cpu:.2f} CPU s")
        outcomes = {name: remote.ask("outcome") for name, remote in remotes.items()}
        say("comparing tokens")
        variants = {name: workload.variant(name) for name in systems}
        sentences, agreement = agreement_of(remotes, variants)
        gated = next((name for name in QUICK_JUDGES if name in remotes), None)
        gating = None if gated is None else remotes[gated].ask("gating")
        own = {variant: name for name, variant in variants.items() if variant and not name.startswith("ct2")}
        variant_gates = {variant: remotes[name].ask("gating") for variant, name in own.items()}
    return DecodeBenchmark(
        workload=workload.describe(),
        sentences=sentences,
        gates=gating,
        variant_gates=variant_gates or None,
        generation=workload.generation,
        systems={
            name: TimedSystem(
                rounds=wanted[name],
                warm_up="two tokens" if name in SLOW else "one round",
                seconds=timings[name],
                median={phase: timing.median for phase, timing in timings[name].items()},
                times_engine_short=_times(timings, name),
                tokens=tokens,
                memory=memory,
                sentences_per_second=sentences / timings[name]["end_to_end"].median.wall,
                latency_ms=_latency(latencies[name]) if latencies[name] else None,
            )
            for name, (tokens, memory) in outcomes.items()
        },
        ratios=_ratios(timings),
        agreement=agreement,
        notes=NOTES,
        ctranslate2=version("ctranslate2") if any(name.startswith("ct2") for name in systems) else None,
        made_by=replace(provenance(), threads=threads),
    )


def _times(timings: dict[str, dict[str, Timing]], name: str) -> dict[str, float] | None:
    if "engine-short" not in timings:
        return None
    by_phase = {phase: {system: timing[phase] for system, timing in timings.items()} for phase in PHASES}
    return {phase: ratio(by_phase[phase], name, "engine-short") for phase in PHASES}


def _ratios(timings: dict[str, dict[str, Timing]]) -> list[Ratio]:
    """The compared pairs of which both systems ran."""
    return [
        Ratio(phase, one, other, ratio({name: timings[name][phase] for name in (one, other)}, one, other))
        for phase, one, other in (*COMPARED, *SPEECH_COMPARED)
        if one in timings and other in timings
    ]


def _latency(rounds: list[list[Seconds]]) -> Latency:
    """Percentiles over sentences of a sentence's median over the rounds."""
    clocks = ([[one.cpu for one in found] for found in rounds], [[one.wall for one in found] for found in rounds])
    medians = (1000 * np.median(seconds, axis=0) for seconds in clocks)
    return Latency(*(Percentiles(*(float(np.percentile(alone, p)) for p in (50, 99))) for alone in medians))
