"""Bulk decoding: lines in, lines out, in order, with memory use that does not grow with the input.

A window of lines is read, tokenized, sorted by length into batches, decoded, and written in input order; then the next.
Batches are formed before they are distributed over processes, so a line is in the same batch, and gives the same
output, for any number of processes. The first process reads and writes.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from torch import distributed

from l0drop.decoding.lines import Lines
from l0drop.decoding.partial import Output, Progress
from l0drop.decoding.results import Result
from l0drop.decoding.text import BATCH_TOKENS, Source, TextModel

WINDOW = 2048
"""Lines read, sorted and written at a time."""
MAX_CUT_WARNINGS = 10
"""Lines that are too long are named in a warning up to this number; all are counted."""

Warn = Callable[[str], None]


@dataclass
class Totals:
    """Sums over the lines written. `decoding_seconds` is the sum over processes."""

    lines: int = 0
    blank: int = 0
    cut: int = 0
    source_tokens: int = 0
    kept_tokens: int = 0
    output_tokens: int = 0
    halved: int = 0
    decoding_seconds: float = 0.0

    @property
    def sparsity(self) -> float | None:
        """Dropped / real source tokens; None without source tokens."""
        return 1 - self.kept_tokens / self.source_tokens if self.source_tokens else None

    def add(self, other: "Totals") -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True)
class Job:
    """Settings for decoding a stream; with model and input they determine the output.

    generation: further settings of `TextModel.generate`. as_json: write a JSON object per line instead of the text.
    """

    generation: Mapping[str, Any]
    source_lang: str | None = None
    target_lang: str | None = None
    prefix: str | None = None
    max_source: int | None = None
    batch_tokens: int = BATCH_TOKENS
    window: int = WINDOW
    as_json: bool = False


class Processes:
    """The processes that share the work. Objects are sent over gloo, on any device."""

    def __init__(self) -> None:
        self.rank, self.count = 0, 1
        if distributed.is_available() and distributed.is_torchelastic_launched():
            from l0drop.runs.processes import joined_processes

            state = joined_processes(cpu=True)
            self.rank, self.count = state.process_index, state.num_processes

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """The first process's value, in every process."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the first process."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        distributed.gather_object(value, values if self.is_first else None, dst=0)
        return values

    @contextmanager
    def first_only(self) -> Iterator[None]:
        """Work of the first process while the others wait for its next window; an error ends them as well."""
        try:
            yield
        except BaseException:
            if self.is_first:
                self.broadcast(None)
            raise


class _Window(NamedTuple):
    first: int
    texts: list[str]


class _Share(NamedTuple):
    """One process's share of a window: output lines by their index in it."""

    lines: dict[int, str]
    totals: Totals
    error: str | None = None


def decode_stream(
    model: TextModel,
    job: Job,
    lines: Lines | None,
    output: Output | None,
    *,
    processes: Processes | None = None,
    start: Progress | None = None,
    warn: Warn = lambda text: None,
    progress: Callable[[Totals], None] = lambda totals: None,
) -> Totals:
    """Decode `lines` into `output`, which only the first process has, beginning at `start`.

    `warn` is called for lines that were cut and batches that did not fit into memory, `progress` after every window.
    """
    processes = processes or Processes()
    totals = Totals(**start.totals) if start is not None and start.totals else Totals()
    settings = model.settings(job.target_lang, job.generation)
    name = processes.broadcast(lines.name if lines is not None else None)
    # each process has measured and chosen a kind of linear layers, and kinds round differently
    model.engine.linears = processes.broadcast(model.engine.linears)
    texts = iter(lines) if lines is not None else iter(())
    while True:
        window = None
        with processes.first_only():
            if lines is not None:
                first = lines.number + 1
                window = _Window(first, list(islice(texts, job.window)))
        window = processes.broadcast(window)
        if window is None or not window.texts:
            return totals
        sources = model.encode(
            window.texts, source_lang=job.source_lang, prefix=job.prefix, max_source=job.max_source,
            names=partial(_name, name, window.first),
        )  # fmt: skip
        if processes.is_first:
            _warn_of_cuts(sources, totals.cut, warn)
        shares = processes.gather(_decode_share(model, job, settings, window, sources, processes, warn))
        if not processes.is_first:
            continue
        with processes.first_only():
            assert lines is not None
            assert output is not None
            done: dict[int, str] = {}
            for share in shares:
                if share.error is not None:
                    raise ValueError(share.error)
                done |= share.lines
                totals.add(share.totals)
            blanks = [index for index, source in enumerate(sources) if source.is_blank]
            done |= {index: _line(Result(""), window.first + index, 0.0, job) for index in blanks}
            totals.add(Totals(lines=len(sources), blank=len(blanks), cut=sum(source.cut > 0 for source in sources)))
            text = "".join(done[index] + "\n" for index in range(len(sources)))
            output.append(text, Progress(lines.number, lines.digest, asdict(totals)))
            progress(totals)


def one_line(text: str) -> str:
    """A text on one line: line breaks in a model's output become spaces."""
    return re.sub(r"[\r\n]+", " ", text)


def _name(file: str, first: int, index: int) -> str:
    return f"{file}, line {first + index}"


def _decode_share(
    model: TextModel,
    job: Job,
    settings: Mapping[str, Any],
    window: _Window,
    sources: Sequence[Source],
    processes: Processes,
    warn: Warn,
) -> _Share:
    """Decode this process's batches of a window. User errors are returned, not raised: other processes are waiting."""
    lines: dict[int, str] = {}
    totals = Totals()

    def halved(batch: Sequence[Source]) -> None:
        totals.halved += 1
        warn(
            f"{batch[0].name}: out of memory with {len(batch)} lines of up to {max(len(s.ids) for s in batch)} tokens; "
            "trying again with half of them (a smaller `batch_tokens` avoids this)"
        )

    try:
        for batch in model.batches(sources, job.batch_tokens)[processes.rank :: processes.count]:
            began = time.perf_counter()
            results = model.decode([sources[index] for index in batch], settings, halved)
            seconds = time.perf_counter() - began
            totals.decoding_seconds += seconds
            for index, result in zip(batch, results, strict=True):
                lines[index] = _line(result, window.first + index, seconds / len(batch), job)
                totals.source_tokens += result.source_tokens
                totals.kept_tokens += len(result.kept)
                totals.output_tokens += result.output_tokens
    except ValueError as error:
        return _Share({}, totals, str(error))
    return _Share(lines, totals)


def _line(result: Result, number: int, seconds: float, job: Job) -> str:
    if not job.as_json:
        return one_line(result.text)
    values = {
        "line": number,
        "text": result.text,
        "score": result.score,
        "kept": [asdict(token) for token in result.kept],
        "source_tokens": result.source_tokens,
        "output_tokens": result.output_tokens,
        "cut": result.cut,
        "seconds": round(seconds, 6),
    }
    if job.generation.get("num_return_sequences", 1) > 1:
        values["alternatives"] = [asdict(other) for other in result.alternatives]
    return json.dumps(values, ensure_ascii=False)


def _warn_of_cuts(sources: Sequence[Source], before: int, warn: Warn) -> None:
    cut = [source for source in sources if source.cut]
    for source in cut[: max(0, MAX_CUT_WARNINGS - before)]:
        tokens = len(source.ids) + source.cut
        warn(f"{source.name}: {tokens} tokens are too many for the model; cut to {len(source.ids)}")
    if before < MAX_CUT_WARNINGS <= before + len(cut):
        warn("further lines that are too long are cut and counted without a warning")
