"""Decoding on a GPU: our engine, CTranslate2 and Hugging Face's generate on the same weights, in one process.

Batches of set shapes on a Transformer base with random weights; `gpu_race.py` times them.

    base weights ─▶ per shape: gated model, systems ─▶ Race ─▶ GpuShape ─▶ GpuDecodeBenchmark
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers as hf

from l0drop.bench.agreement import TIE, compare
from l0drop.bench.decoding import timed
from l0drop.bench.gpu_race import Conditions, Race, RaceBatch, copy_rate, give_back
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
from l0drop.bench.timing import Say
from l0drop.bench.workloads import GATING, POSITIONS, RandomModel, peaked_base
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.runs.benchmark import Shape
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, TokenCheck
from l0drop.runs.provenance import provenance

OPTIONAL = ("ct2-float32", "hf-dense-compiled")
"""Systems that run only if they are named."""
CHECK = Shape(batch=10, source=400, target=16, dropped=0.476)
"""Decoded in float32, to compare tokens."""
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
class Setup(Conditions):
    """What all shapes have in common. changes: to the config of the random model."""

    beams: int = 4
    changes: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, shape: Shape) -> RandomModel:
        return RandomModel(shape, self.beams, self.changes)


def gpu_decode_benchmark(
    shapes: Mapping[str, Shape],
    systems: Sequence[str] | None = None,
    setup: Setup | None = None,
    check: Shape | None = CHECK,
    say: Say = print,
    save: Callable[[GpuDecodeBenchmark], None] = lambda result: None,
) -> GpuDecodeBenchmark:
    """Time systems (default: all but optional ones) at shapes. `save` gets the result so far after every shape.

    A system that cannot be built or warmed up is left out, and the reason is recorded.
    """
    setup = setup or Setup()
    systems = [name for name in GPU_SYSTEMS if name not in OPTIONAL] if systems is None else systems
    for name in systems or [""]:
        if name not in GPU_SYSTEMS:
            raise ValueError(f"`systems`: expected some of {', '.join(GPU_SYSTEMS)}, got {name!r}")
    quiet_libraries()
    with_ct2 = any(name.startswith("ct2") for name in systems)
    if with_ct2:
        ctranslate2_library()
    with TemporaryDirectory() as name:
        folder = Path(name)
        say("building the model")
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
        say(f"a large copy moves {result.bytes_per_second / 1e12:.2f} TB/s")
        if check is not None:
            say("comparing tokens in float32")
            result = replace(result, check=_checked(base, setup, check, folder if with_ct2 else None))
            save(result)
        ct2 = _Loaded(folder, setup)
        for name, shape in shapes.items():
            give_back(setup.device)  # of the shape before
            race = _race_batch(base, setup, shape, systems, ct2)
            found = Race(race, name, say).run(result.bytes_per_second)
            del race
            result = replace(result, shapes={**result.shapes, name: found})
            save(result)
    return result


def _race_batch(
    base: hf.MarianMTModel, setup: Setup, shape: Shape, systems: Sequence[str], ct2: "_Loaded"
) -> RaceBatch:
    """The systems at one shape."""
    workload = setup.workload(shape)
    model, batch = workload.on(base)
    generation = workload.generation

    def build(name: str) -> Peer:
        return ct2(name, model, generation) if name.startswith("ct2") else build_peer(name, model, **generation)

    rounds = setup.rounds_of(systems, shape)
    return RaceBatch(shape, model, batch, generation, rounds, build, COMPARED, setup.device)


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
