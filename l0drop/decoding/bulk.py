"""Bulk decoding: lines in, lines out, in order, with memory use that does not grow with the input.

A window of lines is read, tokenized, sorted by length into batches, decoded, and written in input order; then the next.
Batches are formed before they are distributed over processes, so a line is in the same batch, and gives the same
output, for any number of processes. The first process reads and writes.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from torch import distributed

from l0drop.core.values import count
from l0drop.data.text import one_line
from l0drop.decoding.lines import Lines
from l0drop.decoding.partial import Output, Position
from l0drop.decoding.results import Result
from l0drop.decoding.sources import MAX_BATCH_TOKENS, Source
from l0drop.decoding.splitting import Encode, Piece, encode_pieces, join_results
from l0drop.decoding.text import TextModel
from l0drop.runs.job import LineTotals

WINDOW = 2048
"""Lines read, sorted by length and written at a time."""
GPU_WINDOW = 16_384
MAX_WINDOW = 10_000_000
"""Lines read, sorted and written at a time."""
MAX_CUT_WARNINGS = 10
"""Lines that are too long are named in a warning up to this number; all are counted."""

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Decoding:
    """Settings for decoding lines; with model and input they determine the output.

    generation: settings of `TextModel.generate` that have no field of their own. split: a line that is too long for the
    model is decoded in pieces (`splitting.py`) instead of being cut.
    """

    generation: Mapping[str, Any] = field(default_factory=dict)
    source_lang: str | None = None
    target_lang: str | None = None
    prefix: str | None = None
    max_source: int | None = None
    batch_tokens: int | None = None
    window: int | None = None
    split: bool = False

    def __post_init__(self) -> None:
        if self.batch_tokens is not None:
            count("`batch_tokens`", self.batch_tokens, most=MAX_BATCH_TOKENS)
        if self.window is not None:
            count("`window`", self.window, most=MAX_WINDOW)

    def sizes(self, model: TextModel) -> tuple[int, int]:
        """Padded source tokens per batch, and lines per window; larger on a GPU."""
        window = WINDOW if model.model.device.type == "cpu" else GPU_WINDOW
        return self.batch_tokens or model.batch_tokens, self.window or window


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
    """One process's share of a window: results and their seconds, by the index of their source."""

    results: dict[int, tuple[Result, float]]
    totals: LineTotals
    error: str | None = None


class OutputLine(Protocol):
    """Makes the output line of a result: line `number` of the input, decoded in `seconds`."""

    def __call__(self, number: int, result: Result, seconds: float) -> str: ...


def plain_line(number: int, result: Result, seconds: float) -> str:
    """The text, on one line."""
    return one_line(result.text)


def json_line(number: int, result: Result, seconds: float, *, alternatives: bool = False) -> str:
    """A JSON object with all that is known of a result; alternatives: also the next best outputs."""
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
    if alternatives:
        values["alternatives"] = [asdict(other) for other in result.alternatives]
    return json.dumps(values, ensure_ascii=False)


def decode_lines(
    model: TextModel,
    decoding: Decoding,
    lines: Lines | None,
    output: Output | None,
    *,
    line: OutputLine = plain_line,
    processes: Processes | None = None,
    warn: Warn = lambda text: None,
    progress: Callable[[LineTotals], None] = lambda totals: None,
) -> LineTotals:
    """Decode `lines` into `output`, which only the first process has, from its position on.

    `line` makes the line of a result. `warn` is called for lines that were cut and batches that did not fit into
    memory, `progress` after every window.
    """
    processes = processes or Processes()
    totals = LineTotals() if output is None else LineTotals(**output.position.totals)
    settings = model.settings(decoding.target_lang, decoding.generation)
    batch_tokens, window_lines = decoding.sizes(model)
    name = processes.broadcast(lines.name if lines is not None else None)
    # each process has measured and chosen a kind of linear layers, and kinds round differently
    model.engine.linears = processes.broadcast(model.engine.linears)
    texts = iter(lines) if lines is not None else iter(())
    while True:
        window = None
        with processes.first_only():
            if lines is not None:
                first = lines.number + 1
                window = _Window(first, list(islice(texts, window_lines)))
        window = processes.broadcast(window)
        if window is None or not window.texts:
            return totals
        encode = partial(
            model.encode, source_lang=decoding.source_lang, prefix=decoding.prefix, max_source=decoding.max_source
        )
        whole = encode(window.texts, names=partial(_name, name, window.first))
        inputs = [
            _in_pieces(text, source, encode) if source.cut and decoding.split else ([(0, len(text))], [source])
            for text, source in zip(window.texts, whole, strict=True)
        ]
        sources = [source for _, parts in inputs for source in parts]
        if processes.is_first:
            _warn_of_cuts(sources, totals.cut, warn)
        batches = model.batches(sources, batch_tokens)[processes.rank :: processes.count]
        shares = processes.gather(_decode_share(model, settings, batches, sources, warn))
        if not processes.is_first:
            continue
        with processes.first_only():
            assert lines is not None
            assert output is not None
            done = dict.fromkeys(range(len(sources)), (Result(""), 0.0))  # blank sources are not decoded
            for share in shares:
                if share.error is not None:
                    raise ValueError(share.error)
                done |= share.results
                totals.add(share.totals)
            blank, cut = sum(source.is_blank for source in whole), sum(source.cut > 0 for source in sources)
            totals.add(LineTotals(lines=len(whole), blank=blank, cut=cut))
            outcomes, written = iter(done.values()), []
            for index, (pieces, parts) in enumerate(inputs):
                results, seconds = zip(*islice(outcomes, len(parts)), strict=True)
                joined = join_results(window.texts[index], pieces, results)
                written.append(line(window.first + index, joined, sum(seconds)) + "\n")
            output.append("".join(written), Position(lines.number, lines.digest, asdict(totals)))
            progress(totals)


def _in_pieces(text: str, source: Source, encode: Encode) -> tuple[list[Piece], list[Source]]:
    """A text that is too long in pieces, each with the name of the text."""
    pieces, parts = encode_pieces(text, encode)
    return pieces, [replace(part, name=source.name) for part in parts]


def _name(file: str, first: int, index: int) -> str:
    return f"{file}, line {first + index}"


def _decode_share(
    model: TextModel,
    settings: Mapping[str, Any],
    batches: Sequence[Sequence[int]],
    sources: Sequence[Source],
    warn: Warn,
) -> _Share:
    """Decode this process's batches of a window.

    User errors are returned, not raised: other processes are waiting.
    """
    done: dict[int, tuple[Result, float]] = {}
    totals = LineTotals()

    def halved(batch: Sequence[Source]) -> None:
        totals.halved += 1
        warn(
            f"{batch[0].name}: out of memory with {len(batch)} lines of up to {max(len(s.ids) for s in batch)} tokens; "
            "trying again with half of them (a smaller `batch_tokens` avoids this)"
        )

    try:
        for batch in batches:
            began = time.perf_counter()
            results = model.decode([sources[index] for index in batch], settings, halved)
            seconds = time.perf_counter() - began
            totals.decoding_seconds += seconds
            for index, result in zip(batch, results, strict=True):
                done[index] = (result, seconds / len(batch))
                totals.source_tokens += result.source_tokens
                totals.kept_tokens += len(result.kept)
                totals.output_tokens += result.output_tokens
    except ValueError as error:
        return _Share({}, totals, str(error))
    return _Share(done, totals)


def _warn_of_cuts(sources: Sequence[Source], before: int, warn: Warn) -> None:
    cut = [source for source in sources if source.cut]
    for source in cut[: max(0, MAX_CUT_WARNINGS - before)]:
        tokens = len(source.ids) + source.cut
        warn(f"{source.name}: {tokens} tokens are too many for the model; cut to {len(source.ids)}")
    if before < MAX_CUT_WARNINGS <= before + len(cut):
        warn("further lines that are too long are cut and counted without a warning")
