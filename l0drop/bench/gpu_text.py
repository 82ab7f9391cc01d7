"""Lines of text on a GPU: the whole call from text to text, by our engine, CTranslate2 and Hugging Face's generate.

Each system makes its own batches: our engine as `load(...).generate` does, CTranslate2 from a limit of tokens, generate
from lines sorted by length. The first system of CTranslate2 and of generate finds the fastest limit, for both systems
of the library. Tokenizing and detokenizing count, and use the same tokenizer.

    models, lines ─▶ per system: build, find its batch size, warm up ─▶ rounds, in turns ─▶ lines alone, in turns

Dense systems decode the model's base without its gates. With a baseline, a dense model that was trained without gates,
CTranslate2 and dense generate decode that instead, and so does our engine, as engine-baseline.
"""

import copy
import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from l0drop.bench.alone import WARM_UP, LinesAlone
from l0drop.bench.batch_sizes import CLEARLY_SLOWER, FAR_BEHIND, Report, Tried, try_sizes
from l0drop.bench.gpu_race import ratios
from l0drop.bench.peers import BRIEF, CTranslate2Peer, HuggingFacePeer, Tokens, base_of, convert, plain_generation
from l0drop.bench.timing import Say, Stopwatch, in_turns
from l0drop.bench.workloads import TextFile, batch_of
from l0drop.data.text import file_stamp
from l0drop.decoding.text import TextModel, load
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.models.sparsify import sparsify
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.gpu_benchmark import GpuTextBenchmark, GpuTextSystem
from l0drop.runs.provenance import provenance

SYSTEMS = ("engine-short", "engine-dense", "engine-baseline", "ct2-bfloat16", "ct2-float16", "hf-short", "hf-dense")
ALONE = ("engine-short", "engine-dense", "engine-baseline", "ct2-bfloat16")
"""Systems that also decode lines alone, for the latency."""
ALONE_ROUNDS = 3
"""At most."""
ALONE_SECONDS = 20.0
"""For each system, its lines to warm up included."""
LIMITS = {"ct2": (131_072, 32_768, 8192, 2048), "hf": (32_768, 8192)}
"""Tokens of a batch to try, padding included."""
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
    "tried": "seconds of one call by batch_tokens, from the largest on; the fastest is timed. No smaller size is tried "
    f"after one that takes more than {CLEARLY_SLOWER} x the fastest; generate is stopped where it takes more than "
    f"{FAR_BEHIND} x as long as the fastest did for the same share of the tokens. The second system of a library takes "
    "the size of the first",
    "warm_up": "our engine decodes all lines twice; CTranslate2 and generate decode all lines with two new tokens, "
    "then, where they try batch sizes, in full",
    "latency_ms": "of lines decoded alone: percentiles over lines of the median over rounds, wall time; a system's "
    f"time is bounded, and {WARM_UP:.0%} of it warm up",
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

    baseline: a dense model with the same tokenizer. alone: lines that are also decoded one at a time, for at most
    ALONE_SECONDS by each system. `save` gets the result so far whenever a system has decoded all lines, and after every
    round of lines alone. A system that fails is left out, and the reason is recorded.
    """
    for name in systems or ():
        if name not in SYSTEMS:
            raise ValueError(f"`systems`: expected some of {', '.join(SYSTEMS)}, got {name!r}")
    quiet_libraries()
    with _timed("loading", device, say):
        lines = workload.lines()
        text = _loaded(workload.model, device, dtype)
        dense = None if baseline is None else _loaded(baseline, device, dtype)
        if dense is not None:
            _check_baseline(dense, text, lines)
    contest = Contest(text, dense, workload.generation)
    race = TextRace(contest, lines, device, say)
    with TemporaryDirectory() as folder:
        for name in systems or SYSTEMS:
            if _can_run(name, text, dense):
                race.warm_up(name, Path(folder))
    filled = [source for source in text.encode(lines) if not source.is_blank]
    lines_alone = LinesAlone({}, (), 0, 0.0, device)
    stamp, made_by = FileStamp(**file_stamp(workload.file)), provenance(device)

    def result() -> GpuTextBenchmark:
        latencies = lines_alone.latencies
        timed = {name: [*times] for name, times in race.seconds.items() if times and name in race.calls}
        return GpuTextBenchmark(
            what="lines of text, outputs of natural length",
            model=workload.model,
            baseline=baseline,
            input=stamp,
            dtype=dtype,
            sentences=len(filled),
            source_tokens=sum(len(source.ids) for source in filled),
            sparsity=race.sparsity,
            generation=workload.generation,
            systems={
                name: GpuTextSystem(
                    seconds=times,
                    median=statistics.median(times),
                    sentences_per_second=len(filled) / statistics.median(times),
                    output_tokens=race.written[name],
                    batch_tokens=race.sizes.get(name),
                    tried={str(size): found for size, found in race.tried[name].seconds.items()},
                    stopped={str(size): found for size, found in race.tried[name].stopped.items()},
                    latency_ms=latencies.get(name),
                    latency_rounds=lines_alone.rounds[name] if name in latencies else None,
                )
                for name, times in timed.items()
            },
            ratios=ratios({name: {"all": times} for name, times in timed.items()}, COMPARED),
            alone=lines_alone.count or None,
            limited=[*race.limited, *lines_alone.limited],
            left_out={**race.left_out},
            notes=NOTES,
            ctranslate2=version("ctranslate2") if any(name.startswith("ct2") for name in race.calls) else None,
            made_by=made_by,
        )

    with _timed("rounds", device, say):
        race.run(rounds, slow_rounds, lambda: save(result()))
    lines_alone = LinesAlone(
        {name: race.calls[name] for name in ALONE if name in race.calls},
        [*islice(filter(str.strip, lines), alone)],
        min(rounds, ALONE_ROUNDS),
        ALONE_SECONDS,
        device,
    )
    with _timed("lines alone", device, say):
        lines_alone.run(say, lambda: save(result()))
    found = result()
    save(found)
    return found


@contextmanager
def _timed(phase: str, device: str, say: Say) -> Iterator[None]:
    """Say how long a phase took."""
    watch = Stopwatch(device)
    with watch:
        yield
    say(f"{phase}: took {watch.seconds.wall:.1f} s")


class TextRace:
    """The systems on the lines: warmed up with the batch size that is fastest, then timed in turns."""

    def __init__(self, contest: "Contest", lines: Sequence[str], device: str, say: Say) -> None:
        self._contest, self._lines, self._device, self._say = contest, lines, device, say
        self.calls: dict[str, Call] = {}
        self.tried: dict[str, Tried] = {}
        self.sizes: dict[str, int] = {}
        self.seconds: dict[str, list[float]] = {}
        self.written: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.sparsity: float | None = None
        """Of the lines in the last round, without those decoded alone."""

    def warm_up(self, name: str, folder: Path) -> None:
        """Build a system, find its batch size, and run it until everything is compiled, captured and allocated."""
        self._say(f"{name}: warming up")
        try:
            with _timed(f"{name}: warm-up", self._device, self._say):
                self.tried[name] = Tried()
                call: Call
                if name.startswith("engine"):
                    call = functools.partial(self._contest.engine, name.removeprefix("engine-"))
                    for _ in range(2):
                        call(self._lines)
                else:
                    call = self._with_batch_size(name, folder)
            self.calls[name], self.seconds[name] = call, []
        except Exception as error:  # one system that fails must not cost the others' results
            self._leave_out(name, error)

    def run(self, rounds: int, slow_rounds: int, save: Callable[[], None]) -> None:
        """Time all lines, each system once a round; `generate` runs slow_rounds."""
        turns = {name: slow_rounds if name.startswith("hf") else rounds for name in self.calls}
        for name, number in in_turns(turns) if turns else ():
            if name not in self.calls:
                continue
            try:
                with (watch := Stopwatch(self._device)):
                    self.written[name] = self.calls[name](self._lines)
            except Exception as error:
                self._leave_out(name, error)
                continue
            self.seconds[name].append(watch.seconds.wall)
            self.sparsity = self._contest.sparsity
            self._say(f"round {number + 1} of {turns[name]}, {name}: {watch.seconds.wall:.2f} s")
            save()

    @property
    def limited(self) -> list[str]:
        """The batch sizes that were not tried to the end."""
        said = []
        for name, tried in self.tried.items():
            said += [
                f"{name}: batches of {size:,} tokens stopped after {stopped.seconds:.1f} s, {stopped.share:.0%} done"
                for size, stopped in tried.stopped.items()
            ]
            if tried.untried:
                sizes = " and ".join(f"{size:,}" for size in tried.untried)
                said.append(f"{name}: batches of {sizes} tokens not tried")
            if name in self.sizes and not tried.seconds:
                said.append(f"{name}: batches of {self.sizes[name]:,} tokens, the fastest of {self._first(name)}")
        return said

    def _with_batch_size(self, name: str, folder: Path) -> Call:
        """CTranslate2 or generate, in the batches with which the first system of the library was fastest."""
        kind = name.partition("-")[0]
        peer = self._contest.peer(name, folder)
        decode = functools.partial(getattr(self._contest, kind), peer)
        first = self._first(name)
        size = LIMITS[kind][0] if first is None else self.sizes[first]
        decode(size, self._lines, **BRIEF)
        if first is None:
            self.tried[name] = try_sizes(
                lambda limit, report: decode(limit, self._lines, report),
                LIMITS[kind],
                self._device,
                lambda line: self._say(f"{name}: {line}"),
            )
            size = self.tried[name].fastest
        self.sizes[name] = size
        return functools.partial(decode, size)

    def _first(self, name: str) -> str | None:
        """The system of the same library that has tried batch sizes."""
        kind = name.partition("-")[0]
        return next((one for one in self.sizes if one.startswith(kind) and self.tried[one].seconds), None)

    def _leave_out(self, name: str, error: Exception) -> None:
        self.calls.pop(name, None)
        self.left_out[name] = f"{type(error).__name__}: {error}"[:500]
        self._say(f"{name} is left out: {self.left_out[name]}")


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


def _silent(share: float) -> None:
    """No report of the progress."""


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

    def ct2(
        self, peer: CTranslate2Peer, limit: int, lines: Sequence[str], report: Report = _silent, **changes: Any
    ) -> int:
        """Decode by CTranslate2, in batches of at most `limit` tokens. It does not report its progress."""
        names = self._names
        words = [[names[id_] for id_ in source.ids] for source in self.text.encode(lines) if not source.is_blank]
        return self._written(peer.translate(words, limit, **changes))

    def hf(
        self, peer: HuggingFacePeer, limit: int, lines: Sequence[str], report: Report = _silent, **changes: Any
    ) -> int:
        """Decode by generate, in batches of at most `limit` padded tokens."""
        sources = self.text.encode(lines)
        pad = peer.model.generation_config.pad_token_id
        written, done, total = 0, 0, sum(len(source.ids) for source in sources)
        for batch in self.text.batches(sources, limit):
            chosen = [sources[index] for index in batch]
            written += self._written(peer.generate(batch_of(chosen, pad), **changes))
            done += sum(len(source.ids) for source in chosen)
            report(done / total)
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
