"""Would a short memory pay on this machine? A prediction for all source lengths from a few measured points.

Encoding and decoding are timed at a few shapes; a sum of costs, each with a meaning (`cost_model`), is fitted to
the times; the rest is arithmetic. Machines are shared and noisy, so all shapes take turns round by round, CPU time
counts, and the shapes of the check, which the fit does not see, run in the same rounds. On a GPU wall time counts, and
weights are in bfloat16.

    points ─▶ rounds, in turns ─▶ medians ─▶ least squares, no cost below 0 ─▶ any shape ─▶ SpeedPrediction

Shapes: B sentences, N source tokens, K memory rows, T tokens to produce, D model width.
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l0drop.bench.cost_model import DECODE, ENCODE, PAYS, Prediction, Sizes, fit, total
from l0drop.bench.peers import Batch, plain_generation
from l0drop.bench.random_models import Share
from l0drop.bench.timing import Say, Stopwatch, in_turns
from l0drop.bench.workloads import LENGTH_PENALTY, RandomModel, TextFile
from l0drop.core.memory import Memory, has_shared_row
from l0drop.data.text import file_stamp
from l0drop.decoding.encode import Encoded
from l0drop.decoding.engine import Engine
from l0drop.decoding.text import load
from l0drop.models.families import positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.models.sparsify import sparsify
from l0drop.runs.benchmark import Shape
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.prediction import CheckedShape, MeasuredPoint, PredictedRow, SpeedPrediction, SpeedUpCheck
from l0drop.runs.provenance import provenance

SOURCES = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (1, 8, 32)
WORTHWHILE = 1.1
"""If the largest speed-up is below this, the answer is not Yes: a gain this small hardly repays the training."""

CHECKS = ((8, 600, 0.48), (2, 1500, 0.70), (24, 60, 0.50))
"""Shapes that are not fitted: sentences, source tokens, share dropped."""

NOTES = {
    "answer": f"Yes: at least {PAYS:g} x as fast, and {WORTHWHILE:g} x or more at best; Hardly: less than "
    f"{WORTHWHILE:g} x at best; No: less than {PAYS:g} x",
    "seconds": "CPU seconds, with a GPU wall seconds, the median over rounds",
    "costs": "seconds each; the time of a shape is the sum of costs x counts",
    "speed_up": "time on the dense memory / time on the short memory; both: encoding and decoding",
    "pays_from": "the shortest source from which every length up to the longest source has a speed-up of at least "
    f"{PAYS:g}; null if the longest source has less",
    "check": "shapes that were not fitted; decoded in the same rounds, encoded twice before them; error: predicted / "
    "measured - 1",
}

Times = list[float]


def points(longest: int, positions: int | None) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Shapes to measure: decoding (B, K, T) and encoding (B, N), for sources of up to `longest` tokens.

    Outputs of 2 tokens separate the costs per batch from the costs per token; outputs of 64 tokens show the growth with
    the prefix. None is longer than the decoder's positions. Noise of 4% at the points becomes 2 to 7% in predictions.
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
    """Encodes and decodes batches of given shapes, with random tokens."""

    def __init__(self, model: L0DropModel, beams: int) -> None:
        config: Any = model.config
        if config.l0drop.layerwise:
            raise ValueError("`model`: the layer-wise variant shortens its encoder too, which this does not predict")
        self.model, self.engine = model, Engine(model)
        if self.engine.through_generate:
            raise ValueError(f"`model`: {type(model).__name__} decodes through generate, which this does not predict")
        head = model.get_output_embeddings()
        widest = max(m.out_features for m in model.modules() if type(m) is nn.Linear and m is not head)
        self.device = model.device
        self.sizes = Sizes(
            beams, config.hidden_size, widest, has_shared_row(config.l0drop.gating), self.device.type == "cpu"
        )
        self.positions = positions_of(model, "decoder")

    @property
    def what(self) -> str:
        """The measured quantity."""
        clock = "CPU" if self.device.type == "cpu" else "wall"
        return f"{clock} seconds of our engine, {self.engine.dtype}"

    def encode(self, batch: int, source: int, dropped: float = 0.5, dense: bool = False) -> Encoded:
        """From token ids to a memory; the dropped encodings are spread evenly."""
        generator = torch.Generator().manual_seed(1)
        ids_BN = torch.randint(self.model.config.vocab_size, (batch, source), generator=generator)
        gate = Share((round((1 - dropped) * source) + 0.01) / source)  # slightly more, because it rounds down
        gates = gate(ids_BN, torch.ones_like(ids_BN, dtype=torch.bool))
        return self.engine.encode(ids_BN, gates=gates, dense=dense)

    def memory(self, batch: int, rows: int) -> Encoded:
        """A random memory, for decoding without encoding; it differs between sentences, so their beams differ too."""
        generator = torch.Generator().manual_seed(1)
        states_BKD = torch.randn(batch, rows, self.sizes.memory, generator=generator).to(self.device, self.model.dtype)
        index_BK = torch.arange(rows, device=self.device).expand(batch, -1)
        bias, count = (torch.zeros(batch, *size, device=self.device) for size in ((1, 1, rows), ()))
        kept = torch.ones(batch, rows, dtype=torch.bool, device=self.device)
        return Encoded(Memory(states_BKD, bias, index_BK, count.long()), None, kept)

    def decode(self, encoded: Encoded, target: int) -> None:
        """Decode outputs of one length."""
        beams = self.sizes.beams
        self.engine.decode(
            encoded, num_beams=beams, length_penalty=LENGTH_PENALTY, early_stopping=beams > 1, min_new_tokens=target,
            max_new_tokens=target,
        )  # fmt: skip

    def timed(self, job: Callable[[], Any]) -> tuple[float, Any]:
        """A job's CPU seconds, with a GPU wall seconds, and what it returns."""
        with (watch := Stopwatch(self.device)):
            result = job()
        return watch.seconds.cpu if self.device.type == "cpu" else watch.seconds.wall, result

    def warm_up(self, job: Callable[[], Any]) -> None:
        """On a GPU, run a job until it is captured."""
        for _ in range(0 if self.device.type == "cpu" else 2):
            job()


TimingKey = tuple[Any, ...]
"""decode, encode, dense or short, followed by the shape."""


def _timed(
    bench: Bench, jobs: Mapping[TimingKey, Callable[[], object]], rounds: int, say: Say
) -> dict[TimingKey, Times]:
    """Seconds of each job, by round; the jobs take turns."""
    seconds: dict[TimingKey, Times] = {job: [] for job in jobs}
    names = {str(job): job for job in jobs}
    begun = 0
    for job in jobs.values():
        bench.warm_up(job)
    for name, number in in_turns(dict.fromkeys(names, rounds)):
        if number == begun:
            begun += 1
            say(f"round {begun} of {rounds}")
        seconds[names[name]].append(bench.timed(jobs[names[name]])[0])
    return seconds


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What to predict.

    model: a run folder, a model folder, a name on the Hugging Face hub; None is a Transformer base with random weights.
    sparsity: the share of encodings dropped; None is the share that the model's gate drops in `file` (0.5 for random
    weights). file: text to measure lengths and sparsity on. beams, target: of the search, and tokens to produce.
    source: the source length to answer for; None is the mean length in `file`, or no particular length.
    device: cpu, in float32, or cuda, in bfloat16.
    """

    model: str | None = None
    sparsity: float | None = None
    file: Path | None = None
    beams: int = 4
    target: int = 64
    source: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.sparsity is not None and not 0 <= self.sparsity < 1:
            raise ValueError(f"`sparsity`: expected a share in [0, 1), got {self.sparsity}")
        for name in ("beams", "target", "source"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"`{name}`: expected at least 1, got {value}")
        if self.file is not None and self.model is None:
            raise ValueError("`input`: needs a model to read it")
        if self.model is not None and self.file is None and self.sparsity is None:
            raise ValueError("`sparsity`: missing; give the share to drop, or `input` for a model with a gate")

    def load(self) -> "Setting":
        """Load the model, and measure the text."""
        if self.model is None:
            model, _ = RandomModel(Shape(1, 1, 1, 0.0)).load()
            return Setting(
                self._placed(model), 0.5 if self.sparsity is None else self.sparsity, SOURCES[-1], self.source
            )
        text = load(self.model, device="cpu", dtype="float32")
        longest = min(SOURCES[-1], text.max_source)
        if self.file is None:
            assert self.sparsity is not None
            plain: Any = text.model
            plain_generation(plain)
            model = plain if isinstance(plain, L0DropModel) else sparsify(plain).eval()
            return Setting(self._placed(model), self.sparsity, longest, self.source)
        if not text.is_gated and self.sparsity is None:
            raise ValueError(f"`sparsity`: missing, and {self.model} has no gate to measure it with")
        model, batches = TextFile(self.model, self.file).load()
        mean = round(sum(int(batch.attention_mask.sum()) for batch in batches) / sum(map(len, batches)))
        dropped = _sparsity(model, batches, self.sparsity)
        return Setting(self._placed(model), dropped, longest, self.source or mean)

    def _placed(self, model: Any) -> L0DropModel:
        """The model on the device, in the dtype it is measured in."""
        placed: L0DropModel = model if self.device == "cpu" else model.to(self.device, torch.bfloat16)
        return placed


@dataclass(frozen=True)
class Setting:
    """A question's model, its sparsity, its longest source, and the source length to answer for."""

    model: L0DropModel
    sparsity: float
    longest: int
    source: int | None

    def __post_init__(self) -> None:
        if self.source is not None and self.source > self.longest:
            raise ValueError(f"`source`: {self.source} is more than the {self.longest} tokens that the model reads")


def _sparsity(model: L0DropModel, batches: Sequence[Batch], given: float | None) -> float:
    """The given share, or else the share that the model drops."""
    if given is not None:
        return given
    with torch.no_grad():
        memories = [model.get_encoder()(**batch.encoder_inputs) for batch in batches]
    dropped, real = (sum(int(getattr(memory, name).sum()) for memory in memories) for name in ("dropped", "real"))
    return dropped / real


def answer(prediction: Prediction, sparsity: float, target: int, longest: int, source: int | None = None) -> str:
    """One sentence: does a short memory pay, and by how much, with encoding and decoding counted together?"""
    if source is not None:
        gains = [prediction.speed_up(Shape(batch, source, target, sparsity))["both"] for batch in BATCHES]
        least, most = (f"{gain(gains):.2f}" for gain in (min, max))
        times = f"{least} x" if least == most else f"{least} to {most} x"
        verdict = _verdict(max(gains))
        if verdict == "Yes" and min(gains) < PAYS:
            verdict = "It depends on the batch size"
        return f"{verdict}: a short memory would decode sources of {source} tokens {times} as fast."
    lengths = [length for length in SOURCES if length < longest] + [longest]
    shapes = [Shape(batch, length, target, sparsity) for batch in BATCHES for length in lengths]
    best, shape = max(((prediction.speed_up(s)["both"], s) for s in shapes), key=lambda found: found[0])
    most = f"{best:.2f} x as fast ({shape.source} tokens, batch {shape.batch})"
    starts = {batch: prediction.pays_from(batch, target, sparsity, longest)["both"] for batch in BATCHES}
    known = sorted((start, batch) for batch, start in starts.items() if start is not None)
    if best < PAYS:
        return f"No: a short memory would save less than {PAYS - 1:.0%} at every length; at most {most}."
    if best < WORTHWHILE:
        return f"Hardly: a short memory would decode at most {most}."
    if not known:
        return f"Only at some lengths: up to {most}, and no gain of {PAYS - 1:.0%} at {longest} tokens."
    (first, batch), (last, other) = known[0], known[-1]
    lengths_by_batch = f"{first} tokens at batch {batch}" + (f" or {last} at batch {other}" if last > first else "")
    return f"Yes, for sources longer than {lengths_by_batch}: a short memory would decode {PAYS:g} to {most}."


def _verdict(best: float) -> str:
    return "No" if best < PAYS else "Hardly" if best < WORTHWHILE else "Yes"


def predict(question: Question, rounds: int = 3, check: bool = False, say: Say = print) -> SpeedPrediction:
    """Measure a few shapes and predict the speed-up of the short memory at others; `check` measures some of those."""
    quiet_libraries()
    setting = question.load()
    sparsity, longest = setting.sparsity, setting.longest
    bench = Bench(setting.model, question.beams)
    target = question.target
    if bench.positions is not None and target > bench.positions:
        raise ValueError(f"`target`: {target} is more than the decoder's {bench.positions} positions")
    say("warming up")
    bench.decode(bench.encode(1, 1), 1)
    decode_points, encode_points = points(longest, bench.positions)
    jobs: dict[TimingKey, Callable[[], object]] = {}
    for batch, rows, length in decode_points:
        jobs["decode", batch, rows, length] = functools.partial(bench.decode, bench.memory(batch, rows), length)
    for batch, source in encode_points:
        jobs["encode", batch, source] = functools.partial(bench.encode, batch, source)
    checks = [Shape(batch, min(source, longest), target, dropped) for batch, source, dropped in CHECKS if check]
    encoding: dict[Shape, Times] = {shape: [] for shape in checks}
    for shape in checks:
        for kind in ("dense", "short"):
            encode = functools.partial(bench.encode, shape.batch, shape.source, shape.dropped, kind == "dense")
            bench.warm_up(encode)
            seconds, encoded = bench.timed(encode)
            encoding[shape].append(seconds)
            jobs[kind, shape] = functools.partial(bench.decode, encoded, target)
    times = _timed(bench, jobs, rounds, say)
    decode_costs, decode_measured = _fitted(times, "decode", ("batch", "rows", "target"), bench.sizes.decode)
    encode_costs, encode_measured = _fitted(times, "encode", ("batch", "source"), bench.sizes.encode)
    prediction = Prediction(bench.sizes, decode_costs, encode_costs)
    sources = sorted({source for source in (*SOURCES, longest, setting.source) if source and source <= longest})
    shapes = [Shape(batch, source, target, sparsity) for batch in BATCHES for source in sources]
    return SpeedPrediction(
        what=f"predicted {bench.what}, outputs of one length",
        model="Transformer base, random weights" if question.model is None else question.model,
        input=None if question.file is None else FileStamp(**file_stamp(question.file)),
        beams=question.beams,
        target=target,
        answer=answer(prediction, sparsity, target, longest, setting.source),
        sparsity=sparsity,
        source=setting.source,
        longest_source=longest,
        linears=bench.engine.linears,
        rounds=rounds,
        points={"decode": decode_measured, "encode": encode_measured},
        sizes=bench.sizes,
        costs={"decode": decode_costs, "encode": encode_costs},
        meaning={"decode": DECODE, "encode": ENCODE},
        table=[
            PredictedRow(shape.batch, shape.source, prediction.seconds(shape), prediction.speed_up(shape))
            for shape in shapes
        ],
        pays_from={str(batch): prediction.pays_from(batch, target, sparsity, longest) for batch in BATCHES},
        check=[
            _compared(prediction, shape, encoding[shape], times["dense", shape], times["short", shape])
            for shape in checks
        ],
        notes=NOTES,
        made_by=provenance(bench.device),
    )


def _fitted(
    times: Mapping[TimingKey, Times], phase: str, names: Sequence[str], counts: Callable[..., dict[str, float]]
) -> tuple[dict[str, float], list[MeasuredPoint]]:
    """The costs of a phase, and its points with measured and fitted times."""
    measured = {job[1:]: seconds for job, seconds in times.items() if job[0] == phase}
    occurs = [counts(*shape) for shape in measured]
    medians = [statistics.median(seconds) for seconds in measured.values()]
    costs = fit(occurs, medians)
    described = [
        MeasuredPoint(
            **dict(zip(names, shape, strict=True)), seconds=seconds, median=median, fitted=total(costs, count)
        )
        for (shape, seconds), median, count in zip(measured.items(), medians, occurs, strict=True)
    ]
    return costs, described


def _compared(prediction: Prediction, shape: Shape, encode: Times, dense: Times, short: Times) -> CheckedShape:
    """Measured and predicted times of a shape that was not fitted."""
    predicted = prediction.seconds(shape)
    seconds = {"encode": encode, "dense": dense, "short": short}
    measured = {phase: statistics.median(times) for phase, times in seconds.items()}
    return CheckedShape(
        shape,
        predicted,
        measured,
        seconds,
        error={phase: predicted[phase] / measured[phase] - 1 for phase in predicted},
        speed_up=SpeedUpCheck(
            predicted=prediction.speed_up(shape)["decode"],
            measured=statistics.median(a / b for a, b in zip(dense, short, strict=True)),
        ),
    )
