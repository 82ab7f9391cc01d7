"""Decoding on a GPU: our engine, CTranslate2 and Hugging Face's generate on the same weights, in one process.

Launching work and waiting for it are part of the time, so it is wall time, read when the GPU has finished. Systems take
turns round by round. Next to the time of a decoding step stands a floor: the time to move the bytes that a step cannot
avoid, at the bandwidth of a large copy in the same run.

    base weights ─▶ per shape: gated model, systems, warm-up ─▶ rounds, in turns ─▶ GpuShape ─▶ GpuDecodeBenchmark

Shapes: B sentences, N source tokens, K memory rows, T tokens to produce, D model width, V vocabulary, k beams.
"""

import copy
import functools
import gc
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf

from l0drop.bench.agreement import TIE, compare
from l0drop.bench.decoding import PHASES, timed
from l0drop.bench.peers import (
    GPU_SYSTEMS,
    CTranslate2Peer,
    Peer,
    Tokens,
    build_peer,
    convert,
    ctranslate2_library,
    on_device,
    rescore,
    ungated,
)
from l0drop.bench.timing import Say, Stopwatch, in_turns
from l0drop.bench.workloads import GATING, POSITIONS, RandomModel, peaked_base
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.runs.benchmark import (
    GpuDecodeBenchmark,
    GpuShape,
    GpuSystem,
    Ratio,
    SameTokens,
    Shape,
    StepBytes,
    TokenCheck,
)
from l0drop.runs.provenance import provenance

OPTIONAL = ("ct2-float32", "hf-dense-compiled")
"""Systems that run only if they are named."""
MOST_SLOW = 64
"""Hugging Face's generate does not run on more sentences than this."""
CHECK = Shape(batch=10, source=400, target=16, dropped=0.476)
"""Decoded in float32, to compare tokens."""
COPIED = 1 << 32
"""Bytes of the copy that measures the bandwidth."""
COMPARED = (
    ("decode", "ct2-bfloat16", "engine-dense"),
    ("decode", "ct2-bfloat16", "engine-short"),
    ("end_to_end", "ct2-bfloat16", "engine-short"),
    ("decode", "ct2-float16", "engine-dense"),
    ("decode", "ct2-float16", "engine-short"),
    ("end_to_end", "ct2-float16", "engine-short"),
    ("decode", "engine-dense", "engine-short"),
    ("end_to_end", "engine-dense", "engine-short"),
    ("decode", "hf-dense", "engine-dense"),
    ("end_to_end", "hf-dense", "engine-short"),
)
"""Phase, system, faster system."""
NOTES = {
    "systems": "engine-short and hf-short decode on the short memory, engine-dense and hf-dense the same gated model "
    "on the full gated memory; ct2 decodes the base model with the same weights, without gates, over all encodings",
    "seconds": "wall time from token ids to token ids, until the GPU has finished; end_to_end: encode + decode; ct2 "
    "does both in one call, and its decode is that call minus its encoder, a separate model timed in the same round",
    "milliseconds_per_step": "median decode / tokens to produce; the projection of the memory's keys and values, once "
    "per batch, is spread over the steps",
    "least_bytes": "of a step: keys and values of the memory, of the target (each beam's, mean over the steps), "
    "weights of the decoder's layers and the output layer, logits written and read once",
    "peak_memory": "of torch's allocated memory while a system is built and warmed up, captured graphs included; of "
    "ct2: the GPU's used memory, sampled every millisecond of the warm-up",
    "same_tokens": "low precision: rounding decides between hypotheses of similar score, so tokens need not be equal",
    "check": f"float32; where tokens differ, the dense model scores both outputs in float64, and a difference of "
    f"normalised scores below {TIE:g} is a tie; ct2 is compared with our engine without gates",
}


@dataclass(frozen=True)
class Setup:
    """What all shapes have in common. changes: to the config of the random model."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    beams: int = 4
    rounds: int = 5
    slow_rounds: int = 1
    changes: Mapping[str, Any] = field(default_factory=dict)
    copied: int = COPIED

    def workload(self, shape: Shape) -> RandomModel:
        return RandomModel(shape, self.beams, self.changes)


def gpu_decode_benchmark(
    shapes: Mapping[str, Shape],
    systems: Sequence[str] | None = None,
    setup: Setup | None = None,
    check: Shape | None = CHECK,
    progress: Say = print,
    save: Callable[[GpuDecodeBenchmark], None] = lambda result: None,
) -> GpuDecodeBenchmark:
    """Time systems (default: all but optional ones) at shapes. `save` gets the result so far after every shape.

    A system that cannot be built or warmed up is left out, and the reason is recorded.
    """
    setup = setup or Setup()
    systems = [name for name in GPU_SYSTEMS if name not in OPTIONAL] if systems is None else systems
    for name in systems or [""]:
        if name not in GPU_SYSTEMS:
            raise ValueError(f"systems: expected some of {', '.join(GPU_SYSTEMS)}, got {name!r}")
    quiet_libraries()
    with_ct2 = any(name.startswith("ct2") for name in systems)
    if with_ct2:
        ctranslate2_library()
    with TemporaryDirectory() as name:
        folder = Path(name)
        progress("building the model")
        positions = max([POSITIONS, *(max(shape.source, shape.target + 1) for shape in shapes.values())])
        base: Any = peaked_base(**{"max_position_embeddings": positions, **setup.changes})
        base.to(setup.dtype)
        if with_ct2:
            convert(copy.deepcopy(base).float(), folder)
        base.to(setup.device)
        result = GpuDecodeBenchmark(
            what="batches on a Transformer base with random weights, outputs of one length",
            dtype=str(setup.dtype).removeprefix("torch."),
            gating=GATING,
            changes=dict(setup.changes),
            bytes_per_second=copy_rate(setup.device, setup.copied),
            shapes={},
            notes=NOTES,
            ctranslate2=version("ctranslate2") if with_ct2 else None,
            made_by=provenance(setup.device),
        )
        progress(f"a large copy moves {result.bytes_per_second / 1e12:.2f} TB/s")
        if check is not None:
            progress("comparing tokens in float32")
            result = replace(result, check=_checked(base, setup, check, folder if with_ct2 else None))
            save(result)
        ct2 = _Loaded(folder, setup)
        for name, shape in shapes.items():
            _give_back(setup.device)  # of the shape before
            race = _Race(base, setup, shape, systems, ct2, functools.partial(_say, progress, name))
            found = race.run(result.bytes_per_second)
            del race
            result = replace(result, shapes={**result.shapes, name: found})
            save(result)
    return result


def _say(progress: Say, name: str, line: str) -> None:
    progress(f"{name}: {line}")


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


# --- one shape ---------------------------------------------------------------------------------------------------


class _Loaded:
    """CTranslate2 by compute type, converted and loaded once for all shapes."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup = folder, setup
        self.peers: dict[str, Peer] = {}

    def __call__(self, name: str, model: L0DropModel, generation: Mapping[str, Any]) -> Peer:
        if name not in self.peers:
            kind = name.removeprefix("ct2-")
            self.peers[name] = CTranslate2Peer(model, kind, 1, self.setup.device, self.folder, **generation)
        return self.peers[name]


class _Race:
    """The systems at one shape."""

    def __init__(
        self, base: hf.MarianMTModel, setup: Setup, shape: Shape, systems: Sequence[str], ct2: _Loaded, progress: Say
    ) -> None:
        self.setup, self.shape, self.ct2, self.progress = setup, shape, ct2, progress
        self.model, self.batch = setup.workload(shape).on(base)
        self.generation = setup.workload(shape).generation
        few = shape.batch <= MOST_SLOW
        self.wanted = {
            name: setup.slow_rounds if name.startswith("hf") else setup.rounds
            for name in systems
            if few or not name.startswith("hf")
        }
        self.peers: dict[str, Peer] = {}
        self.peaks: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.tokens: dict[str, Tokens] = {}

    def run(self, bandwidth: float) -> GpuShape:
        """Warm up, take turns, and summarize."""
        for name in self.wanted:
            self._warm_up(name)
        wanted = {name: rounds for name, rounds in self.wanted.items() if name in self.peers}
        seconds: dict[str, dict[str, list[float]]] = {name: {phase: [] for phase in PHASES} for name in wanted}
        for name, _ in in_turns(wanted) if wanted else ():
            for phase, one in self._round(name).items():
                seconds[name][phase].append(one.wall)
        systems = {name: self._system(name, found, bandwidth) for name, found in seconds.items()}
        for name, system in systems.items():
            self.progress(f"{name}: {system.milliseconds_per_step:.3f} ms per step")
        return GpuShape(
            shape=self.shape,
            generation=self.generation,
            longest_memory=self.short_rows,
            systems=systems,
            ratios=ratios({name: system.seconds for name, system in systems.items()}, COMPARED),
            left_out=self.left_out,
        )

    @property
    def short_rows(self) -> int:
        """Rows of the short memory, the zero row included."""
        return round((1 - self.shape.dropped) * self.shape.source) + 1

    def _warm_up(self, name: str) -> None:
        """Build a system and run it until everything is compiled, captured and allocated."""
        with (watch := Stopwatch(self.setup.device)):
            try:
                with peak_memory(self.setup.device, outside_torch=name.startswith("ct2")) as peak:
                    if name.startswith("ct2"):
                        self.peers[name] = self.ct2(name, self.model, self.generation)
                        peak.start()
                    else:
                        self.peers[name] = build_peer(name, self.model, **self.generation)
                    for _ in range(1 if name.startswith("hf") else 2):
                        self._round(name)
                self.peaks[name] = peak.bytes
            except Exception as error:  # one system that fails must not cost the others' results
                self.peers.pop(name, None)
                self.left_out[name] = f"{type(error).__name__}: {error}"[:500]
                self.progress(f"{name} is left out: {self.left_out[name]}")
                return
        self.progress(f"{name}: warm-up took {watch.seconds.wall:.1f} s")

    def _round(self, name: str) -> Mapping[str, Any]:
        (self.tokens[name],), seconds = timed(self.peers[name], [self.batch], self.setup.device, **self.generation)
        return seconds

    def _system(self, name: str, seconds: dict[str, list[float]], bandwidth: float) -> GpuSystem:
        median = {phase: statistics.median(times) for phase, times in seconds.items()}
        step = median["decode"] / self.shape.target
        floor = None
        if name.startswith("engine"):
            rows = self.short_rows if name == "engine-short" else self.shape.source
            floor = least_bytes(self.model, self.shape, rows, self.setup.beams)
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


def ratios(
    seconds: Mapping[str, Mapping[str, Sequence[float]]], compared: Sequence[tuple[str, str, str]]
) -> list[Ratio]:
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


# --- tokens in float32 -------------------------------------------------------------------------------------------


def _checked(base: hf.MarianMTModel, setup: Setup, shape: Shape, converted: Path | None) -> TokenCheck:
    """Compare tokens in float32; `converted`: the folder of the base model for CTranslate2."""
    workload = setup.workload(shape)
    model, batch = workload.on(copy.deepcopy(base).float())
    exact = copy.deepcopy(model).double()

    def tokens(name: str, model: L0DropModel) -> list[Tokens]:
        return timed(build_peer(name, model, 1, converted, **workload.generation), [batch], setup.device)[0]

    def scores(model: L0DropModel, outputs: list[tuple[int, int, list[int]]]) -> list[float]:
        prompt, penalty = [model.generation_config.decoder_start_token_id], workload.generation["length_penalty"]
        sources = [on_device(batch[row].encoder_inputs, model.device) for _, row, _ in outputs]
        pairs = zip(sources, outputs, strict=True)
        return [rescore(model, source, output, penalty, prompt) for source, (_, _, output) in pairs]

    reference = tokens("hf-dense", model)
    score = functools.partial(scores, exact)
    agreement = {
        name: compare(tokens(name, model), reference, score, reference="hf-dense", must_agree=True)
        for name in ("engine-short", "engine-dense", "hf-short")
    }
    if converted is not None:
        score = functools.partial(scores, ungated(exact))
        plain, name = tokens("engine-dense", ungated(model)), "engine-dense, without gates"
        agreement["ct2-float32"] = compare(
            tokens("ct2-float32", model), plain, score, reference=name, must_agree=True
        )  # fmt: skip
    return TokenCheck(shape=shape, agreement={"hf-dense": None, **agreement})


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


def _give_back(device: str) -> None:
    """Return unused memory to the GPU."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
