"""Bulk decoding: lines in, lines out, in order, in memory that does not grow with the input.

A window of lines is read, tokenized, sorted by length into batches, decoded, and written in its order; then the next.
Batches are formed before they are shared among processes, so a line is decoded in the same company, and gives the same
output, whatever the number of processes. The first process reads and writes.
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
CUTS_TOLD = 10
"""Lines that are too long are named, up to so many; all are counted."""

Say = Callable[[str], None]


@dataclass
class Totals:
    """Sums over the lines that are written. `decoding_seconds` are of all processes together."""

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
        """Dropped of real source tokens; None before there were any."""
        return 1 - self.kept_tokens / self.source_tokens if self.source_tokens else None

    def add(self, other: "Totals") -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True)
class Job:
    """How a stream is decoded; together with model and input it decides the output.

    generation: what `TextModel.generate` takes beside these. as_json: an object per line instead of its text.
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
    """The processes that share the work. Objects go over gloo, whatever the model runs on."""

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
        """The first process's value, in all of them."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the first one."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        distributed.gather_object(value, values if self.is_first else None, dst=0)
        return values

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What only the first process does while the others wait for its next window; an error sends them home."""
        try:
            yield
        except BaseException:
            if self.is_first:
                self.broadcast(None)
            raise


class _Window(NamedTuple):
    first: int
    texts: list[str]


class _Done(NamedTuple):
    """One process's share of a window: output lines by their place in it."""

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
    warn: Say = lambda text: None,
    progress: Callable[[Totals], None] = lambda totals: None,
) -> Totals:
    """Decode `lines` into `output`, which only the first process has, from where `start` says.

    `warn` is told of lines that were cut and of batches that did not fit into memory, `progress` after every window.
    """
    processes = processes or Processes()
    totals = Totals(**start.totals) if start is not None and start.totals else Totals()
    settings = model.settings(job.target_lang, job.generation)
    name = processes.broadcast(lines.name if lines is not None else None)
    model.engine.linears = processes.broadcast(model.engine.linears)  # measured by each; they round differently
    texts = iter(lines) if lines is not None else iter(())
    while True:
        window = None
        with processes.alone():
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
        shares = processes.gather(_share(model, job, settings, window, sources, processes, warn))
        if not processes.is_first:
            continue
        with processes.alone():
            assert lines is not None
            assert output is not None
            done: dict[int, str] = {}
            for share in shares:
                if share.error is not None:
                    raise ValueError(share.error)
                done |= share.lines
                totals.add(share.totals)
            blanks = [place for place, source in enumerate(sources) if source.is_blank]
            done |= {place: _line(Result(""), window.first + place, 0.0, job) for place in blanks}
            totals.add(Totals(lines=len(sources), blank=len(blanks), cut=sum(source.cut > 0 for source in sources)))
            text = "".join(done[place] + "\n" for place in range(len(sources)))
            output.append(text, Progress(lines.number, lines.digest, asdict(totals)))
            progress(totals)


def one_line(text: str) -> str:
    """A text as it stands in a file with a line for each: a line break that a model wrote becomes a space."""
    return re.sub(r"[\r\n]+", " ", text)


def _name(file: str, first: int, place: int) -> str:
    return f"{file}, line {first + place}"


def _share(
    model: TextModel,
    job: Job,
    settings: Mapping[str, Any],
    window: _Window,
    sources: Sequence[Source],
    processes: Processes,
    warn: Say,
) -> _Done:
    """Decode this process's batches of a window. What the user can mend is told, not raised: others wait for it."""
    lines: dict[int, str] = {}
    totals = Totals()

    def halved(batch: Sequence[Source]) -> None:
        totals.halved += 1
        warn(
            f"{batch[0].name}: out of memory with {len(batch)} lines of up to {max(len(s.ids) for s in batch)} tokens; "
            "going on with half of them (a smaller --batch-tokens avoids this)"
        )

    try:
        for batch in model.batches(sources, job.batch_tokens)[processes.rank :: processes.count]:
            began = time.perf_counter()
            results = model.decode([sources[place] for place in batch], settings, halved)
            seconds = time.perf_counter() - began
            totals.decoding_seconds += seconds
            for place, result in zip(batch, results, strict=True):
                lines[place] = _line(result, window.first + place, seconds / len(batch), job)
                totals.source_tokens += result.source_tokens
                totals.kept_tokens += len(result.kept)
                totals.output_tokens += result.output_tokens
    except ValueError as error:
        return _Done({}, totals, str(error))
    return _Done(lines, totals)


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


def _warn_of_cuts(sources: Sequence[Source], before: int, warn: Say) -> None:
    cut = [source for source in sources if source.cut]
    for source in cut[: max(0, CUTS_TOLD - before)]:
        tokens = len(source.ids) + source.cut
        warn(f"{source.name}: {tokens} tokens are more than the model reads; cut to {len(source.ids)}")
    if before < CUTS_TOLD <= before + len(cut):
        warn("further lines that are too long are cut and counted without a word each")
