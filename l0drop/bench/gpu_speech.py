"""Whisper on a GPU: our engine, Hugging Face's generate and CTranslate2 on the same random weights, in one process.

A batch of clips of one window each, from features to token ids, at the sizes of OpenAI's models; `gpu_race.py` times
them. Large models come first, with large batches, where dropping rows saves most.

    size ─▶ weights, drawn on the GPU ─▶ per batch size and beam: gated model, systems ─▶ Race ─▶ GpuDecodeBenchmark
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from l0drop.bench.gpu_race import Conditions, Race, RaceBatch, copy_rate, give_back
from l0drop.bench.peers import BRIEF, Peer, ctranslate2_library
from l0drop.bench.speech_peers import build_speech_peer, convert_whisper
from l0drop.bench.speech_workloads import WHISPER_SHAPES, RandomWhisper
from l0drop.bench.timing import Say, Stopwatch
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark
from l0drop.runs.provenance import provenance

USUAL = ("engine-short", "engine-dense", "hf-dense")
SYSTEMS = (*USUAL, "hf-short", "ct2-float16", "ct2-float32")
"""All but the usual ones run only if they are named: converting a large model takes longer than decoding it."""
NAMES = tuple(WHISPER_SHAPES)
ALL = "whisper"
"""The name of all sizes."""
ORDER = ("large-v3", "turbo", "small", "tiny")
BATCHES = (32, 8, 1)
BEAMS = (5, 1)
COMPARED = (
    ("search", "engine-dense", "engine-short"),
    ("decode", "engine-dense", "engine-short"),
    ("end_to_end", "engine-dense", "engine-short"),
    ("decode", "hf-dense", "engine-dense"),
    ("end_to_end", "hf-dense", "engine-short"),
    ("decode", "ct2-float16", "engine-dense"),
    ("decode", "ct2-float16", "engine-short"),
    ("end_to_end", "ct2-float16", "engine-short"),
)
"""Phase, system, faster system."""
NOTES = {
    "systems": "engine-short decodes on the short memory, engine-dense and hf-dense the same gated model on the full "
    "gated memory; ct2 decodes the base model with the same weights, without gates, over all rows",
    "seconds": "wall time from features to token ids, until the GPU has finished; end_to_end: encode + decode; decode "
    "has Whisper's own handling of prompts and windows around the search, of our engine and of generate; search: our "
    "engine's search alone, with the projection of the memory's keys and values",
    "rounds": "after two to warm up; generate warms up with two tokens",
    "milliseconds_per_step": "median search, or of other systems median decode, / tokens to produce",
    "least_bytes": "of a step: keys and values of the memory, of the target (each beam's, mean over the steps), "
    "weights of the decoder's layers and the output layer, logits written and read once",
    "peak_memory": "of torch's allocated memory while a system is built and warmed up, captured graphs included; of "
    "ct2: the GPU's used memory, sampled every millisecond of the warm-up",
    "attention": "torch's attention by cuDNN is off, which would make generate wait for a plan at every new length",
    "same_tokens": "low precision: rounding decides between hypotheses of similar score, so tokens need not be equal",
}


def chosen_whispers(
    names: Sequence[str], sizes: Mapping[str, Any] | None = None, beams: Sequence[int] = BEAMS
) -> dict[str, RandomWhisper]:
    """The workloads by name, one for each size, batch size and number of beams; `whisper` is all sizes.

    sizes: numbers that replace those of a `Shape`; with `batch`, there is one batch size.
    """
    for name in names:
        if name not in (*NAMES, ALL):
            raise ValueError(f"`shape`: expected {ALL} or some of {', '.join(NAMES)}, got {name!r}")
    sizes = dict(sizes or {})
    batches = (sizes.pop("batch"),) if "batch" in sizes else BATCHES
    wanted = [size for size in ORDER if ALL in names or f"whisper-{size}" in names]
    return {
        f"{size}-b{batch}-k{number}": RandomWhisper(
            size, replace(WHISPER_SHAPES[f"whisper-{size}"], batch=batch, **sizes), number
        )
        for size in wanted
        for batch in batches
        for number in beams
    }


@without_cudnn_attention()
def gpu_speech_benchmark(
    workloads: Mapping[str, RandomWhisper],
    systems: Sequence[str] | None = None,
    conditions: Conditions | None = None,
    say: Say = print,
    save: Callable[[GpuDecodeBenchmark], None] = lambda result: None,
) -> GpuDecodeBenchmark:
    """Time systems (default: `USUAL`) on workloads. `save` gets the result so far after every workload.

    A system that cannot be built or warmed up is left out, and the reason is recorded.
    """
    conditions = conditions or Conditions()
    systems = USUAL if systems is None else systems
    for name in systems or [""]:
        if name not in SYSTEMS:
            raise ValueError(f"`systems`: expected some of {', '.join(SYSTEMS)}, got {name!r}")
    quiet_libraries()
    with_ct2 = any(name.startswith("ct2") for name in systems)
    if with_ct2:
        ctranslate2_library()
    changes = [workload.changes for workload in workloads.values()]
    result = GpuDecodeBenchmark(
        what="batches of clips on Whispers with random weights, outputs of one length",
        dtype=str(conditions.dtype).removeprefix("torch."),
        gating="zero",
        changes=dict(changes[0]),
        bytes_per_second=copy_rate(conditions.device, conditions.copied),
        shapes={},
        notes=NOTES,
        ctranslate2=version("ctranslate2") if with_ct2 else None,
        made_by=provenance(conditions.device),
    )
    say(f"a large copy moves {result.bytes_per_second / 1e12:.2f} TB/s")
    for size, of_size in groupby(workloads.items(), key=lambda item: item[1].size):
        give_back(conditions.device)  # of the size before
        named = dict(of_size)
        with (watch := Stopwatch(conditions.device)):
            base = next(iter(named.values())).base(conditions.device, conditions.dtype)
        say(f"{size}: weights drawn in {watch.seconds.wall:.1f} s")
        with _converted() as converted:
            for name, workload in named.items():
                give_back(conditions.device)  # of the shape before
                race = _race_batch(workload, base, systems, conditions, converted)
                found = Race(race, name, say).run(result.bytes_per_second)
                del race
                result = replace(result, shapes={**result.shapes, name: found})
                save(result)
        del base
    return result


def _race_batch(
    workload: RandomWhisper, base: Any, systems: Sequence[str], conditions: Conditions, converted: "_Converted"
) -> RaceBatch:
    """The systems on one workload."""
    model, batch = workload.on(base)

    def build(name: str) -> Peer:
        folder = converted(model, name) if name.startswith("ct2") else None
        return build_speech_peer(name, model, 1, folder, **workload.generation)

    rounds = conditions.rounds_of(systems, workload.shape)
    return RaceBatch(
        workload.shape, model, batch, workload.generation, rounds, build, COMPARED, conditions.device,
        whisper=workload.size, slow_warm_up=BRIEF,
    )  # fmt: skip


@dataclass
class _Converted:
    """The folders of one model for CTranslate2, by system; each is written when it is first needed."""

    folder: Path
    written: dict[str, Path] = field(default_factory=dict)

    def __call__(self, model: L0DropModel, name: str) -> Path:
        if name not in self.written:
            own = self.folder / name
            own.mkdir()
            convert_whisper(model, own, name.removeprefix("ct2-"))
            self.written[name] = own
        return self.written[name]


@contextmanager
def _converted() -> Iterator[_Converted]:
    with TemporaryDirectory() as name:
        yield _Converted(Path(name))
