"""At which source lengths and batch sizes the short memory pays on this machine, from a few measured points.

Encoding and decoding are timed at a few shapes; a sum of costs with a meaning each (`DECODE`, `ENCODE`) is fitted to
them; the rest is arithmetic. Machines are shared and noisy, so all shapes take turns round by round, what counts is CPU
time, and the shapes of the check, which the fit does not see, decode in the same rounds.

    points ─▶ rounds, in turns ─▶ medians ─▶ least squares, no cost below 0 ─▶ any shape ─▶ a dict for JSON

Shapes: B sentences, N source tokens, K memory rows, T tokens to produce, D model width.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from l0drop.bench.decoding import in_turns
from l0drop.bench.peers import plain_generation
from l0drop.bench.random_models import Share
from l0drop.bench.timing import Progress
from l0drop.bench.workloads import LENGTH_PENALTY, RandomModel, Shape, Text
from l0drop.core.memory import Memory
from l0drop.data.text import file_stamp
from l0drop.decoding.engine import Encoded, Engine
from l0drop.decoding.text import load
from l0drop.models.families import positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.sparsify import sparsify
from l0drop.runs.provenance import provenance

SOURCES = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (1, 8, 32)
PAYS = 1.05
"""The speed-up from which on the short memory is said to pay."""

CHECKS = ((8, 600, 0.48), (2, 1500, 0.70), (24, 60, 0.50))
"""Shapes that are not among the points: sentences, source tokens, share dropped."""

LARGE = 32 << 20
"""From so many bytes on, Linux gives a tensor fresh pages at every allocation, which cost time to clear."""

DECODE = {
    "start": "once for a batch: setting up caches and search",
    "step": "a token: reading the weights, launching the operations, whatever the batch",
    "row": "a token of a beam: linear layers, output layer, search",
    "prefix": "a token of a beam on an earlier token: self-attention",
    "memory_row": "a memory row: its keys and values, once",
    "attended": "a memory row at a token: cross-attention of all beams of its sentence",
    "large": f"a memory row, on top, where keys or values of a layer take {LARGE >> 20} MiB or more: fresh pages",
}
ENCODE = {
    "start": "once for a batch",
    "token": "a source token: linear layers",
    "attended": "a source token on another of its sentence: self-attention",
    "large": f"a source token, on top, where the widest activations take {LARGE >> 20} MiB or more: fresh pages",
}
NOTES = {
    "seconds": "CPU seconds, the median over rounds",
    "costs": "seconds for one of each; the time of a shape is their sum, each as often as it occurs",
    "speed_up": "time on the dense memory by time on the short one; both is encoding and decoding",
    "pays_from": "the fewest source tokens from which on every length up to the longest source has a speed-up of "
    f"{PAYS:g} or more; null where the longest has less",
    "check": "shapes that the fit has not seen; decoded in the same rounds, encoded twice before them; errors are "
    "predicted / measured - 1",
}

ByName = Mapping[str, float]
"""By the names of costs: seconds, or how often each occurs."""
Times = list[float]
Result = TypeVar("Result")


# --- the cost model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """What of a model and a search the costs depend on.

    memory: numbers in a memory row's keys. activations: in the widest layer's outputs for a source token.
    zero_row: whether the short memory has a row for what was dropped.
    """

    beams: int
    memory: int
    activations: int
    zero_row: bool = True

    def decode(self, batch: int, rows: int, target: int) -> dict[str, float]:
        """How often each cost of `DECODE` occurs. At the first token all beams are still one."""
        memory = batch * rows
        return {
            "start": 1,
            "step": target,
            "row": batch + batch * self.beams * (target - 1),
            "prefix": batch * self.beams * target * (target - 1) / 2,
            "memory_row": memory,
            "attended": memory * target,
            "large": memory if 4 * memory * self.memory >= LARGE else 0,
        }

    def encode(self, batch: int, source: int) -> dict[str, float]:
        """How often each cost of `ENCODE` occurs."""
        tokens = batch * source
        return {
            "start": 1,
            "token": tokens,
            "attended": tokens * source,
            "large": tokens if 4 * tokens * self.activations >= LARGE else 0,
        }

    def kept(self, source: int, dropped: float) -> int:
        """Rows of the short memory of a sentence."""
        return max(1, round((1 - dropped) * source)) + self.zero_row


def fit(counts: Sequence[ByName], seconds: Sequence[float]) -> dict[str, float]:
    """Costs, none below 0, whose sums come closest to the measured times: the least sum of squared relative errors.

    At the optimum, costs above 0 are a plain least-squares solution without the others, so all choices are tried. What
    occurs at no point costs 0.
    """
    names = [name for name in counts[0] if any(count[name] for count in counts)]
    times = torch.tensor(seconds, dtype=torch.float64)
    occurs = torch.tensor([[count[name] for name in names] for count in counts], dtype=torch.float64)
    relative = occurs / times[:, None]
    scale = relative.amax(0)
    best, least = torch.zeros(len(names), dtype=torch.float64), float("inf")
    for size in range(1, len(names) + 1):
        for chosen in map(list, itertools.combinations(range(len(names)), size)):
            part = relative[:, chosen] / scale[chosen]
            solution = torch.linalg.lstsq(part, torch.ones(len(times), 1, dtype=torch.float64)).solution[:, 0]
            error = float((part @ solution - 1).square().sum())
            if bool((solution >= 0).all()) and error < least:
                least = error
                best = torch.zeros(len(names), dtype=torch.float64)
                best[chosen] = solution / scale[chosen]
    return {**dict.fromkeys(counts[0], 0.0), **dict(zip(names, best.tolist(), strict=True))}


def total(costs: ByName, counts: ByName) -> float:
    """Seconds of what occurs so often."""
    return sum(costs[name] * count for name, count in counts.items())


@dataclass(frozen=True)
class Prediction:
    """Fitted costs, and what follows for any shape."""

    sizes: Sizes
    decode: ByName
    encode: ByName

    def seconds(self, shape: Shape) -> dict[str, float]:
        """Of a batch of this shape: encoding, and decoding on the dense and on the short memory."""
        short = self.sizes.kept(shape.source, shape.dropped)
        return {
            "encode": total(self.encode, self.sizes.encode(shape.batch, shape.source)),
            "dense": total(self.decode, self.sizes.decode(shape.batch, shape.source, shape.target)),
            "short": total(self.decode, self.sizes.decode(shape.batch, short, shape.target)),
        }

    def speed_up(self, shape: Shape) -> dict[str, float]:
        """What the short memory brings in decoding, and in encoding and decoding together."""
        seconds = self.seconds(shape)
        encode, dense, short = seconds["encode"], seconds["dense"], seconds["short"]
        return {"decode": dense / short, "both": (encode + dense) / (encode + short)}

    def pays_from(self, batch: int, target: int, dropped: float, longest: int) -> dict[str, int | None]:
        """The fewest source tokens from which on each speed-up is `PAYS` or more at every length up to `longest`.

        None where `longest` has less: self-attention makes encoding grow with the square of the length, so what the
        short memory brings to both may fall again.
        """
        found: dict[str, int | None] = {"decode": None, "both": None}
        for phase in found:
            for source in range(longest, 0, -1):
                if self.speed_up(Shape(batch, source, target, dropped))[phase] < PAYS:
                    break
                found[phase] = source
        return found


# --- measuring ---------------------------------------------------------------------------------------------------


def points(longest: int, positions: int | None) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Shapes to measure: of decoding (B, K, T), of encoding (B, N), for sources of up to `longest` tokens.

    Outputs of 2 tokens tell what is paid once from what is paid at every token, outputs of 64 how much more a token
    costs behind many others; none is longer than the decoder's positions. Noise of 4% at the points is noise of 2 to 7%
    in what is predicted from them.
    """
    few, some, many, more = min(16, longest), max(1, longest // 8), max(1, longest // 2), max(1, longest * 5 // 8)
    memories = {
        2: [(1, few), (1, many), (8, few), (8, many), (16, more), (32, few), (32, some)],
        12: [(1, few), (1, many), (8, some), (8, many), (32, few)],
        64: [(1, few), (2, many), (4, some), (16, few)],
    }
    decode = [
        (batch, rows, target if positions is None else min(target, positions))
        for target, shapes in memories.items()
        for batch, rows in shapes
    ]
    encode = [(1, few), (1, some), (1, many), (1, longest), (8, few), (8, some), (4, more), (32, few)]
    return list(dict.fromkeys(decode)), list(dict.fromkeys(encode))


class Bench:
    """A model that encodes and decodes batches of given shapes, of made-up tokens."""

    def __init__(self, model: L0DropModel, beams: int) -> None:
        config: Any = model.config
        if config.l0drop.layerwise:
            raise ValueError("model: the layer-wise variant makes its encoder shorter too, which is not predicted here")
        self.model, self.engine = model, Engine(model)
        if self.engine.through_generate:
            raise ValueError(f"model: {type(model).__name__} decodes through generate, which is not predicted here")
        head = model.get_output_embeddings()
        widest = max(m.out_features for m in model.modules() if type(m) is nn.Linear and m is not head)
        self.sizes = Sizes(beams, config.hidden_size, widest, config.l0drop.gating == "zero")
        self.positions = positions_of(model, "decoder")

    def encode(self, batch: int, source: int, dropped: float = 0.5, dense: bool = False) -> Encoded:
        """From token ids to a memory, by a gate that spreads evenly what it drops."""
        generator = torch.Generator().manual_seed(1)
        ids_BN = torch.randint(self.model.config.vocab_size, (batch, source), generator=generator)
        gate = Share((round((1 - dropped) * source) + 0.01) / source)  # a hair more, because it rounds down
        gates = gate(ids_BN, torch.ones_like(ids_BN, dtype=torch.bool))
        return self.engine.encode(ids_BN, gates=gates, dense=dense)

    def memory(self, batch: int, rows: int) -> Encoded:
        """A made-up memory, to decode without having encoded; different for each sentence, as are then its beams."""
        generator = torch.Generator().manual_seed(1)
        states_BKD = torch.randn(batch, rows, self.sizes.memory, generator=generator)
        index_BK = torch.arange(rows).expand(batch, -1)
        memory = Memory(states_BKD, torch.zeros(batch, 1, 1, rows), index_BK, torch.zeros(batch, dtype=torch.long))
        return Encoded(memory, None, torch.ones(batch, rows, dtype=torch.bool))

    def decode(self, encoded: Encoded, target: int) -> None:
        """Every output of the same length."""
        beams = self.sizes.beams
        self.engine.decode(
            encoded, num_beams=beams, length_penalty=LENGTH_PENALTY, early_stopping=beams > 1, min_new_tokens=target,
            max_new_tokens=target,
        )  # fmt: skip


Job = tuple[Any, ...]
"""What is measured (decode, encode, dense, short), and its shape."""


def _timed(jobs: Mapping[Job, Callable[[], object]], rounds: int, progress: Progress) -> dict[Job, Times]:
    """CPU seconds of each job, round by round, in turns."""
    seconds: dict[Job, Times] = {job: [] for job in jobs}
    names = {str(job): job for job in jobs}
    begun = 0
    for name, number in in_turns(dict.fromkeys(names, rounds)):
        if number == begun:
            begun += 1
            progress(f"round {begun} of {rounds}")
        seconds[names[name]].append(_cpu_seconds(jobs[names[name]])[0])
    return seconds


def _cpu_seconds(job: Callable[[], Result]) -> tuple[float, Result]:
    """What it takes, and what it returns."""
    start = time.process_time()
    result = job()
    return time.process_time() - start, result


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What to predict: for a model (a run folder, a model folder, a name on the Hugging Face hub; None is a Transformer
    base with random weights), a share of dropped encodings (None is what its gate drops of `file`, for random weights
    one half), a number of beams and of tokens to produce.
    """

    model: str | None = None
    sparsity: float | None = None
    file: Path | None = None
    beams: int = 4
    target: int = 64

    def __post_init__(self) -> None:
        if self.sparsity is not None and not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity: expected a share in [0, 1), got {self.sparsity}")
        for name in ("beams", "target"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.file is not None and self.sparsity is not None:
            raise ValueError("sparsity: is measured on the input; give one of them")
        if self.file is not None and self.model is None:
            raise ValueError("input: needs a model whose gate drops some of it")
        if self.model is not None and self.file is None and self.sparsity is None:
            raise ValueError("sparsity: say which share is dropped, or give an input for the model's gate to drop from")

    def load(self) -> tuple[L0DropModel, float, int]:
        """The model, the share it drops, and the longest source it reads."""
        if self.model is None:
            model, _ = RandomModel(Shape(1, 1, 1, 0.0)).load()
            return model, 0.5 if self.sparsity is None else self.sparsity, SOURCES[-1]
        text = load(self.model, device="cpu", dtype="float32")
        longest = min(SOURCES[-1], text.max_source)
        if self.file is not None:
            if not text.is_gated:
                raise ValueError(f"input: {self.model} has no gate that could drop some of it; give a sparsity instead")
            model, batches = Text(self.model, self.file).load()
            with torch.no_grad():
                memories = [model.get_encoder()(**batch.encoder_inputs) for batch in batches]
            dropped, real = (sum(int(getattr(m, name).sum()) for m in memories) for name in ("dropped", "real"))
            return model, dropped / real, longest
        assert self.sparsity is not None
        plain: Any = text.model
        plain_generation(plain)
        model = plain if isinstance(plain, L0DropModel) else sparsify(plain).eval()
        return model, self.sparsity, longest

    def describe(self) -> dict[str, Any]:
        return {
            "what": "predicted CPU seconds of our engine, float32, every output of the same length",
            "model": "Transformer base, random weights" if self.model is None else self.model,
            "input": None if self.file is None else file_stamp(self.file),
            "beams": self.beams,
            "target": self.target,
        }


def predict(question: Question, rounds: int = 3, check: bool = False, progress: Progress = print) -> dict[str, Any]:
    """Measure a few shapes, and predict what the short memory brings at others; with `check`, against measurement."""
    model, sparsity, longest = question.load()
    bench = Bench(model, question.beams)
    target = question.target
    if bench.positions is not None and target > bench.positions:
        raise ValueError(f"target: {target} is more than the {bench.positions} positions of the decoder")
    progress("warming up")
    bench.decode(bench.encode(1, 1), 1)
    decode_points, encode_points = points(longest, bench.positions)
    jobs: dict[Job, Callable[[], object]] = {}
    for batch, rows, length in decode_points:
        jobs["decode", batch, rows, length] = functools.partial(bench.decode, bench.memory(batch, rows), length)
    for batch, source in encode_points:
        jobs["encode", batch, source] = functools.partial(bench.encode, batch, source)
    checks = [Shape(batch, min(source, longest), target, dropped) for batch, source, dropped in CHECKS if check]
    encoding: dict[Shape, Times] = {shape: [] for shape in checks}
    for shape in checks:
        for kind in ("dense", "short"):
            encode = functools.partial(bench.encode, shape.batch, shape.source, shape.dropped, kind == "dense")
            seconds, encoded = _cpu_seconds(encode)
            encoding[shape].append(seconds)
            jobs[kind, shape] = functools.partial(bench.decode, encoded, target)
    times = _timed(jobs, rounds, progress)
    decode_costs, decode_measured = _fitted(times, "decode", ("batch", "rows", "target"), bench.sizes.decode)
    encode_costs, encode_measured = _fitted(times, "encode", ("batch", "source"), bench.sizes.encode)
    prediction = Prediction(bench.sizes, decode_costs, encode_costs)
    shapes = [Shape(batch, source, target, sparsity) for batch in BATCHES for source in SOURCES if source <= longest]
    return {
        **question.describe(),
        "sparsity": sparsity,
        "longest_source": longest,
        "linears": bench.engine.linears,
        "rounds": rounds,
        "points": {"decode": decode_measured, "encode": encode_measured},
        "sizes": asdict(bench.sizes),
        "costs": {"decode": decode_costs, "encode": encode_costs},
        "meaning": {"decode": DECODE, "encode": ENCODE},
        "table": [
            {
                "batch": shape.batch,
                "source": shape.source,
                "seconds": prediction.seconds(shape),
                "speed_up": prediction.speed_up(shape),
            }
            for shape in shapes
        ],
        "pays_from": {str(batch): prediction.pays_from(batch, target, sparsity, longest) for batch in BATCHES},
        "check": [
            _compared(prediction, shape, encoding[shape], times["dense", shape], times["short", shape])
            for shape in checks
        ],
        "notes": NOTES,
        **provenance(),
    }


def _fitted(
    times: Mapping[Job, Times], phase: str, names: Sequence[str], counts: Callable[..., dict[str, float]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The costs of a phase, and its points with what the costs say of them."""
    measured = {job[1:]: seconds for job, seconds in times.items() if job[0] == phase}
    occurs = [counts(*shape) for shape in measured]
    medians = [statistics.median(seconds) for seconds in measured.values()]
    costs = fit(occurs, medians)
    described = [
        {
            **dict(zip(names, shape, strict=True)),
            "seconds": seconds,
            "median": median,
            "fitted": total(costs, count),
        }
        for (shape, seconds), median, count in zip(measured.items(), medians, occurs, strict=True)
    ]
    return costs, described


def _compared(prediction: Prediction, shape: Shape, encode: Times, dense: Times, short: Times) -> dict[str, Any]:
    """A shape that was measured and not fitted."""
    predicted = prediction.seconds(shape)
    seconds = {"encode": encode, "dense": dense, "short": short}
    measured = {phase: statistics.median(times) for phase, times in seconds.items()}
    return {
        "shape": asdict(shape),
        "predicted": predicted,
        "measured": measured,
        "seconds": seconds,
        "error": {phase: predicted[phase] / measured[phase] - 1 for phase in predicted},
        "speed_up": {
            "predicted": prediction.speed_up(shape)["decode"],
            "measured": statistics.median(a / b for a, b in zip(dense, short, strict=True)),
        },
    }
