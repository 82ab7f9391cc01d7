"""Lines of text on a GPU: the whole call from text to text, by our engine, CTranslate2 and Hugging Face's generate.

Each system makes its own batches: our engine as `load(...).generate` does, CTranslate2 from a limit of tokens, generate
from lines sorted by length. CTranslate2 and generate are tried with several limits, from the largest one on, and the
fastest is timed. Tokenizing and detokenizing count, and use the same tokenizer.

Dense systems decode the model's base without its gates. With a baseline, a dense model that was trained without gates,
CTranslate2 and dense generate decode that instead, and so does our engine, as engine-baseline.
"""

import copy
import functools
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from l0drop.bench.gpu_race import ratios
from l0drop.bench.peers import CTranslate2Peer, HuggingFacePeer, Tokens, base_of, convert, plain_generation
from l0drop.bench.timing import Say, Stopwatch, in_turns
from l0drop.bench.workloads import TextFile, batch_of
from l0drop.data.text import file_stamp
from l0drop.decoding.text import TextModel, load
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.models.sparsify import sparsify
from l0drop.runs.benchmark import Percentiles
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.gpu_benchmark import GpuTextBenchmark, GpuTextSystem
from l0drop.runs.provenance import provenance

SYSTEMS = ("engine-short", "engine-dense", "engine-baseline", "ct2-bfloat16", "ct2-float16", "hf-short", "hf-dense")
ALONE = ("engine-short", "engine-dense", "engine-baseline", "ct2-bfloat16")
"""Systems that also decode lines alone, for the latency."""
ALONE_ROUNDS = 3
"""At most, after one to warm up."""
LIMITS = {"ct2": (131_072, 32_768, 8192, 2048), "hf": (32_768, 8192)}
"""Tokens of a batch to try, padding included, until a limit takes far longer than the fastest one."""
FAR_LONGER = 1.5
WARM_UP_LINES = 8
"""Lines that CTranslate2 and generate decode to load their kernels."""
COMPARED = tuple(
    ("all", slow, fast)
    for fast in ("engine-short", "engine-dense")
    for slow in ("ct2-bfloat16", "ct2-float16", "hf-short", "hf-dense", "engine-baseline", "engine-dense")
    if slow != fast
)
NOTES = {
    "seconds": "wall time of all lines, from text to text",
    "ct2": "decodes the baseline, or the base model with the same weights, without gates, in batches of its own; "
    "batch_tokens: its max_batch_size with batch_type tokens",
    "hf": "generate on lines sorted by length, in batches of at most batch_tokens padded tokens",
    "attention": "torch's attention by cuDNN is off, which would make generate and our engine wait for a plan at every "
    "new shape",
    "tried": "seconds of one call by batch_tokens, from the largest one on, until one took far longer than the "
    "fastest, which was timed",
    "latency_ms": "of lines decoded alone: percentiles over lines of the median over rounds, wall time",
}

Call = Callable[[Sequence[str]], int]
"""Decodes lines; returns the number of output tokens."""


@without_cudnn_attention()
def gpu_text_benchmark(
    workload: TextFile,
    systems: Sequence[str] | None = None,
    baseline: str | None = None,
    rounds: int = 5,
    slow_rounds: int = 1,
    alone: int = 100,
    device: str = "cuda",
    dtype: str = "bfloat16",
    say: Say = print,
    save: Callable[[GpuTextBenchmark], None] = lambda result: None,
) -> GpuTextBenchmark:
    """Time systems (default: all) on lines of text.

    baseline: a dense model with the same tokenizer. alone: lines that are also decoded one at a time. `save` gets the
    result so far after every round, and at the end. A system that fails is left out, and the reason is recorded.
    """
    for name in systems or ():
        if name not in SYSTEMS:
            raise ValueError(f"`systems`: expected some of {', '.join(SYSTEMS)}, got {name!r}")
    quiet_libraries()
    lines = workload.lines()
    text = _loaded(workload.model, device, dtype)
    dense = None if baseline is None else _loaded(baseline, device, dtype)
    if dense is not None:
        _check_baseline(dense, text, lines)
    wanted = [name for name in systems or SYSTEMS if _can_run(name, text, dense)]
    filled = [source for source in text.encode(lines) if not source.is_blank]
    limits: dict[str, dict[int, float]] = {}
    left_out: dict[str, str] = {}
    calls: dict[str, Call] = {}
    contest = Contest(text, dense, workload.generation)
    latencies: dict[str, Percentiles] = {}

    def leave_out(name: str, error: Exception) -> None:
        calls.pop(name, None)
        left_out[name] = f"{type(error).__name__}: {error}"[:500]
        say(f"{name} is left out: {left_out[name]}")

    with TemporaryDirectory() as folder:
        for name in wanted:
            try:
                calls[name], limits[name] = _fastest(contest, name, lines, device, Path(folder))
            except Exception as error:  # one system that fails must not cost the others' results
                leave_out(name, error)
    with_ct2 = any(name.startswith("ct2") for name in calls)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    written: dict[str, int] = {}

    def result() -> GpuTextBenchmark:
        timed = {name: [*times] for name, times in seconds.items() if times and name in calls}
        return GpuTextBenchmark(
            what="lines of text, outputs of natural length",
            model=workload.model,
            baseline=baseline,
            input=FileStamp(**file_stamp(workload.file)),
            dtype=dtype,
            sentences=len(filled),
            source_tokens=sum(len(source.ids) for source in filled),
            sparsity=contest.sparsity,
            generation=workload.generation,
            systems={
                name: GpuTextSystem(
                    seconds=times,
                    median=statistics.median(times),
                    sentences_per_second=len(filled) / statistics.median(times),
                    output_tokens=written[name],
                    batch_tokens=min(limits[name], key=limits[name].__getitem__) if limits[name] else None,
                    tried={str(limit): found for limit, found in limits[name].items()},
                    latency_ms=latencies.get(name),
                )
                for name, times in timed.items()
            },
            ratios=ratios({name: {"all": times} for name, times in timed.items()}, COMPARED),
            left_out={**left_out},
            notes=NOTES,
            ctranslate2=version("ctranslate2") if with_ct2 else None,
            made_by=provenance(device),
        )

    turns = {name: slow_rounds if name.startswith("hf") else rounds for name in calls}
    last = 0
    for name, number in in_turns(turns) if turns else ():
        if name not in calls:
            continue
        if number > last:
            save(result())
        last = number
        try:
            with (watch := Stopwatch(device)):
                written[name] = calls[name](lines)
        except Exception as error:
            leave_out(name, error)
            continue
        seconds[name].append(watch.seconds.wall)
        say(f"round {number + 1} of {turns[name]}, {name}: {len(filled) / watch.seconds.wall:,.0f} sentences/s")
    save(result())
    sparsity = contest.sparsity
    latencies = _latencies(
        {name: calls[name] for name in ALONE if name in calls},
        [*islice(filter(str.strip, lines), alone)],
        min(rounds, ALONE_ROUNDS),
        device,
    )
    contest.sparsity = sparsity
    save(result())
    return result()


def _loaded(model: str, device: str, dtype: str) -> TextModel:
    """The model, which decodes with the settings of the benchmark alone."""
    text = load(model, device=device, dtype=dtype)
    plain_generation(text.model)
    text.defaults = {}
    return text


def _check_baseline(dense: TextModel, text: TextModel, lines: Sequence[str]) -> None:
    if dense.is_gated:
        raise ValueError("`baseline`: has gates; expected a dense model")
    for line, ours, theirs in zip(lines, text.encode(lines), dense.encode(lines), strict=True):
        if ours.ids != theirs.ids:
            raise ValueError(f"`baseline`: its tokenizer differs from the model's; they encode {line!r} differently")


def _can_run(name: str, text: TextModel, dense: TextModel | None) -> bool:
    if name.endswith("short"):
        return text.is_gated
    return dense is not None or not name.endswith("baseline")


class Contest:
    """The systems on one model, and on a dense baseline if there is one."""

    def __init__(self, text: TextModel, dense: TextModel | None, generation: dict[str, Any]) -> None:
        self.text, self.generation = text, generation
        self.dense = dense or text
        self.sparsity: float | None = None
        """Of the lines that were last decoded on the short memory."""

    def engine(self, which: str, lines: Sequence[str]) -> int:
        """Decode by our engine: `short`, `dense`, or the `baseline`."""
        text = self.dense if which == "baseline" else self.text
        dial: dict[str, Any] = {"dense": True} if which == "dense" and text.is_gated else {}
        results = text.generate(lines, **dial, **self.generation)
        if which == "short":
            tokens = sum(result.source_tokens for result in results)
            self.sparsity = 1 - sum(len(result.kept) for result in results) / tokens
        return sum(result.output_tokens for result in results)

    def ct2(self, peer: CTranslate2Peer, limit: int, lines: Sequence[str]) -> int:
        """Decode by CTranslate2, in batches of at most `limit` tokens."""
        names = self._names
        words = [[names[id_] for id_ in source.ids] for source in self.text.encode(lines) if not source.is_blank]
        return self._written(peer.translate(words, limit))

    def hf(self, peer: HuggingFacePeer, limit: int, lines: Sequence[str]) -> int:
        """Decode by generate, in batches of at most `limit` padded tokens."""
        sources = self.text.encode(lines)
        pad = peer.model.generation_config.pad_token_id
        written = 0
        for batch in self.text.batches(sources, limit):
            written += self._written(peer.generate(batch_of([sources[index] for index in batch], pad)))
        return written

    def peer(self, name: str, folder: Path) -> CTranslate2Peer | HuggingFacePeer:
        """CTranslate2, converted into the folder if it is not there yet, or generate."""
        kind, _, which = name.partition("-")
        model: Any = self.text.model if which == "short" else self.dense.model
        if kind == "hf":
            sparse = model if isinstance(model, L0DropModel) else sparsify(model)
            return HuggingFacePeer(sparse.eval(), which == "dense", **self.generation)
        if not (folder / "model").exists():
            plain = copy.deepcopy(base_of(model)).float().cpu()
            plain.generation_config = model.generation_config
            convert(plain, folder)
        return CTranslate2Peer(model, which, 1, model.device.type, folder, **self.generation)

    @functools.cached_property
    def _names(self) -> list[str]:
        return [str(id_) for id_ in range(int(self.text.model.get_input_embeddings().num_embeddings))]  # type: ignore[arg-type]

    def _written(self, tokens: Tokens) -> int:
        """The number of tokens, once they have been turned into text."""
        self.text.tokenizers.target.batch_decode(tokens, skip_special_tokens=True)
        return sum(map(len, tokens))


def _fastest(
    contest: Contest, name: str, lines: Sequence[str], device: str, folder: Path
) -> tuple[Call, dict[int, float]]:
    """A system, warmed up, with the limit that was fastest; seconds by limit."""
    kind, _, which = name.partition("-")
    if kind == "engine":
        call = functools.partial(contest.engine, which)
        for _ in range(2):
            call(lines)
        return call, {}
    peer = contest.peer(name, folder)
    calls = {limit: functools.partial(getattr(contest, kind), peer, limit) for limit in LIMITS[kind]}
    found: dict[int, float] = {}
    for limit, call in calls.items():
        if not found:
            call(lines[:WARM_UP_LINES])
        with (watch := Stopwatch(device)):
            call(lines)
        found[limit] = watch.seconds.wall
        if found[limit] > FAR_LONGER * min(found.values()):
            break
    return calls[min(found, key=found.__getitem__)], found


def _latencies(calls: dict[str, Call], lines: Sequence[str], rounds: int, device: str) -> dict[str, Percentiles]:
    """Milliseconds of lines decoded alone; systems take turns at every line."""
    if not lines:
        return {}
    found = {name: np.zeros((rounds + 1, len(lines))) for name in calls}  # the first round warms up
    for number in range(rounds + 1):
        for index, line in enumerate(lines):
            for name in list(calls)[:: -1 if index % 2 else 1]:
                with (watch := Stopwatch(device)):
                    calls[name]([line])
                found[name][number, index] = 1000 * watch.seconds.wall
    medians = {name: np.median(times[1:], axis=0) for name, times in found.items()}
    return {
        name: Percentiles(*(float(np.percentile(times, part)) for part in (50, 99))) for name, times in medians.items()
    }
