"""Systems that decode one batch on a GPU: warmed up, timed in turns, compared with a floor, and their memory.

Launching work and waiting for it are part of the time, so it is wall time, read when the GPU has finished. Next to the
time of a decoding step stands a floor: the time to move the bytes that a step cannot avoid, at the bandwidth of a large
copy in the same run.

    model, batch ─▶ Race: build, warm up ─▶ rounds, in turns ─▶ GpuShape

Shapes: B sentences, N source tokens, K memory rows, T tokens to produce, D model width, V vocabulary, k beams.
"""

import gc
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from l0drop.bench.decoding import timed
from l0drop.bench.peers import Peer, Tokens
from l0drop.bench.timing import Say, Stopwatch, in_turns
from l0drop.models.modeling import L0DropModel
from l0drop.runs.benchmark import Ratio, Shape
from l0drop.runs.gpu_benchmark import GpuShape, GpuSystem, SameTokens, StepBytes

MOST_SLOW = 64
"""Hugging Face's generate does not run on more sentences than this."""
COPIED = 1 << 32
"""Bytes of the copy that measures the bandwidth."""
Comparisons = Sequence[tuple[str, str, str]]
"""Phase, system, faster system."""


def copy_rate(device: str, size: int = COPIED) -> float:
    """Bytes per second of a large copy on the device, bytes read and bytes written."""
    source = torch.ones(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = []
    for _ in range(10):
        with (watch := Stopwatch(device)):
            target.copy_(source)
        seconds.append(watch.seconds.wall)
    return 2 * size / statistics.median(seconds)


def least_bytes(model: L0DropModel, shape: Shape, rows: int, beams: int) -> StepBytes:
    """The bytes of a decoding step on a memory of `rows` rows a sentence, the mean over the steps."""
    config: Any = model.config
    layers, size = model.get_decoder().layers, model.dtype.itemsize
    kept = 2 * len(layers) * shape.batch * config.d_model * size  # keys and values of one position of each sentence
    weights = sum(
        parameter.nbytes
        for name, parameter in layers.named_parameters()
        if ".encoder_attn.k_proj." not in name and ".encoder_attn.v_proj." not in name  # applied once, to the memory
    )
    head = model.get_output_embeddings().weight
    return StepBytes(
        cross_cache=kept * rows,
        self_cache=round(kept * beams * (shape.target + 1) / 2),
        weights=weights + head.nbytes,
        logits=2 * shape.batch * beams * head.shape[0] * size,
    )


@dataclass(frozen=True)
class Conditions:
    """How systems are timed; a benchmark's shapes have this in common. copied: bytes of the copy for the bandwidth."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    rounds: int = 5
    slow_rounds: int = 1
    copied: int = COPIED

    def rounds_of(self, systems: Sequence[str], shape: Shape) -> dict[str, int]:
        """The rounds of each system; `generate` runs slow_rounds, and not at all on many sentences."""
        slow = [name for name in systems if name.startswith("hf")]
        few = shape.batch <= MOST_SLOW
        return {name: self.slow_rounds if name in slow else self.rounds for name in systems if few or name not in slow}


# --- the race ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RaceBatch:
    """One batch, what decodes it, and how often: rounds by system. `build` makes the system of a name.

    slow_warm_up: replaces settings of the search where generate warms up.
    """

    shape: Shape
    model: L0DropModel
    batch: Any
    generation: Mapping[str, Any]
    rounds: Mapping[str, int]
    build: Callable[[str], Peer]
    compared: Comparisons
    device: str
    whisper: str | None = None
    slow_warm_up: Mapping[str, Any] = field(default_factory=dict)

    @property
    def short_rows(self) -> int:
        """Rows of the short memory, the zero row included."""
        return round((1 - self.shape.dropped) * self.shape.source) + 1


class Race:
    """The systems on a batch, taking turns. `name` stands before lines of progress."""

    def __init__(self, batch: RaceBatch, name: str, say: Say) -> None:
        self.batch, self.name, self._print = batch, name, say
        self.peers: dict[str, Peer] = {}
        self.peaks: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.tokens: dict[str, Tokens] = {}

    def run(self, bandwidth: float) -> GpuShape:
        """Warm up, take turns, and summarize."""
        race = self.batch
        for name in race.rounds:
            self._warm_up(name)
        wanted = {name: rounds for name, rounds in race.rounds.items() if name in self.peers}
        seconds: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in wanted}
        for name, _ in in_turns(wanted) if wanted else ():
            if name not in self.peers:
                continue
            try:
                for phase, one in self._round(name).items():
                    seconds[name][phase].append(one.wall)
            except Exception as error:
                self._leave_out(name, error)
                del seconds[name]
        systems = {name: self._system(name, dict(found), bandwidth) for name, found in seconds.items()}
        for name, system in systems.items():
            self._say(f"{name}: {system.milliseconds_per_step:.3f} ms per step")
        return GpuShape(
            shape=race.shape,
            whisper=race.whisper,
            generation=race.generation,
            longest_memory=race.short_rows,
            systems=systems,
            ratios=ratios({name: system.seconds for name, system in systems.items()}, race.compared),
            left_out=self.left_out,
        )

    def _say(self, line: str) -> None:
        self._print(f"{self.name}: {line}")

    def _warm_up(self, name: str) -> None:
        """Build a system and run it until everything is compiled, captured and allocated."""
        with (watch := Stopwatch(self.batch.device)):
            try:
                outside = name.startswith("ct2")
                with peak_memory(self.batch.device, outside_torch=outside) as peak:
                    self.peers[name] = self.batch.build(name)
                    if outside:
                        peak.start()
                    if name.startswith("hf"):
                        self._round(name, self.batch.slow_warm_up)
                    else:
                        for _ in range(2):
                            self._round(name)
                self.peaks[name] = peak.bytes
            except Exception as error:
                self._leave_out(name, error)
                return
        self._say(f"{name}: warm-up took {watch.seconds.wall:.1f} s")

    def _leave_out(self, name: str, error: Exception) -> None:
        """One system that fails must not cost the others' results."""
        self.peers.pop(name, None)
        self.tokens.pop(name, None)
        self.left_out[name] = f"{type(error).__name__}: {error}"[:500]
        self._say(f"{name} is left out: {self.left_out[name]}")

    def _round(self, name: str, changes: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        race, generation = self.batch, {**self.batch.generation, **(changes or {})}
        (self.tokens[name],), seconds = timed(self.peers[name], [race.batch], race.device, **generation)
        return seconds

    def _system(self, name: str, seconds: dict[str, list[float]], bandwidth: float) -> GpuSystem:
        race = self.batch
        median = {phase: statistics.median(times) for phase, times in seconds.items()}
        step = median.get("search", median["decode"]) / race.shape.target
        floor = None
        if name.startswith("engine"):
            rows = race.short_rows if name == "engine-short" else race.shape.source
            floor = least_bytes(race.model, race.shape, rows, race.generation["num_beams"])
        reference = next((one for one in ("engine-dense", "engine-short") if one in self.tokens), None)
        is_compared = reference not in (None, name) and not name.startswith("ct2")
        return GpuSystem(
            seconds=seconds,
            median=median,
            milliseconds_per_step=1000 * step,
            least_bytes=floor,
            times_floor=None if floor is None else step / (floor.total / bandwidth),
            peak_memory=self.peaks[name],
            same_tokens=same_tokens(self.tokens[name], self.tokens[reference], reference)
            if is_compared and reference is not None
            else None,
        )


def same_tokens(one: Tokens, other: Tokens, reference: str) -> SameTokens:
    """How much of the outputs is equal to the reference's."""
    pairs = list(zip(one, other, strict=True))
    equal = sum(a == b for row, its in pairs for a, b in zip(row, its, strict=False))
    return SameTokens(
        reference,
        sentences=sum(row == its for row, its in pairs),
        tokens=equal / max(1, sum(max(map(len, pair)) for pair in pairs)),
    )


def ratios(seconds: Mapping[str, Mapping[str, Sequence[float]]], compared: Comparisons) -> list[Ratio]:
    """Of the pairs of which both systems ran: the median ratio over the rounds that both ran."""
    return [
        Ratio(
            phase,
            one,
            other,
            statistics.median(a / b for a, b in zip(seconds[one][phase], seconds[other][phase], strict=False)),
        )
        for phase, one, other in compared
        if one in seconds and other in seconds
    ]


# --- memory ------------------------------------------------------------------------------------------------------


class Peak:
    """The peak of the GPU's memory in a block: of torch's tensors, or of what other libraries use."""

    def __init__(self, device: str, outside_torch: bool) -> None:
        self.device, self.outside_torch, self.bytes = device, outside_torch, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Count from now on."""
        if self.device == "cpu":
            return
        torch.cuda.synchronize()
        self._before = self._used() if self.outside_torch else torch.cuda.memory_allocated()
        if self.outside_torch:
            self._thread.start()
        else:
            torch.cuda.reset_peak_memory_stats()

    def finish(self) -> None:
        if self.device == "cpu":
            return
        if self.outside_torch:
            self._done.set()
            if self._thread.is_alive():
                self._thread.join()
        else:
            self.bytes = torch.cuda.max_memory_allocated() - self._before

    def _used(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            self.bytes = max(self.bytes, self._used() - self._before)


@contextmanager
def peak_memory(device: str, outside_torch: bool) -> Iterator[Peak]:
    """Measure from the start of the block, or, of memory outside torch, from `Peak.start` on."""
    peak = Peak(device, outside_torch)
    if not outside_torch:
        peak.start()
    try:
        yield peak
    finally:
        peak.finish()


def give_back(device: str) -> None:
    """Return unused memory to the GPU."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
