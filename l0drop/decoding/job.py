"""From a file to a file: `run` does what a `Job` describes, in one process or in several, and resumes it.

job = Job(TextInput(Path("in.txt")), Destination(Path("out.jsonl"), resume=True), Decoding({"num_beams": 4}))
done = run(job, lambda: load("runs/sparse"))
done.totals.lines, done.totals.sparsity
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from l0drop.core.values import count
from l0drop.decoding.bulk import Decoding, OutputLine, Processes, Warn, decode_lines, json_line, plain_line
from l0drop.decoding.destination import Destination
from l0drop.decoding.folder import fingerprint
from l0drop.decoding.lines import TextInput
from l0drop.decoding.text import TextModel
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.runs.job import LineTotals, TextSummary
from l0drop.runs.provenance import provenance


@dataclass(frozen=True)
class Job:
    """Texts to read, where their outputs go, and how to decode them."""

    input: TextInput
    output: Destination
    decoding: Decoding

    def __post_init__(self) -> None:
        if self.has_alternatives and not self.output.writes_json:
            raise ValueError("`num_return_sequences`: needs `as_json`; plain output has one line per input line")

    @property
    def has_alternatives(self) -> bool:
        returned = self.decoding.generation.get("num_return_sequences")
        return returned is not None and count("num_return_sequences", returned) > 1

    @property
    def line(self) -> OutputLine:
        """Makes the output lines."""
        return partial(json_line, alternatives=self.has_alternatives) if self.output.writes_json else plain_line

    def facts(self, model: TextModel) -> dict[str, Any]:
        """Everything that determines the output, apart from the bytes of the input."""
        decoding = self.decoding
        batch_tokens, window = decoding.sizes(model)
        return {
            "model": fingerprint(model.name, model.model),
            "generation": model.settings(decoding.target_lang, decoding.generation),
            "source_lang": decoding.source_lang,
            "target_lang": decoding.target_lang,
            "prefix": model.prefix if decoding.prefix is None else decoding.prefix,
            "max_source": decoding.max_source or model.max_source,
            "batch_tokens": batch_tokens,
            "window": window,
            "split": decoding.split,
            "json": self.output.writes_json,
            "dtype": model.dtype,
            "linears": model.engine.linears,
            "device": model.model.device.type,
            **self.input.facts,
        }


@dataclass(frozen=True)
class Done:
    """A finished job.

    totals: over the whole output. before: over the part that an interrupted job had written. seconds: wall time of this
    one, without loading.
    """

    totals: LineTotals
    before: LineTotals
    seconds: float
    is_gated: bool


def run(
    job: Job,
    load: Callable[[], TextModel],
    *,
    loaded: Callable[[TextModel], None] = lambda model: None,
    warn: Warn = lambda text: None,
    progress: Callable[[LineTotals, int], None] = lambda totals, size: None,
) -> Done | None:
    """Run a job; None in all processes but the first, which reads and writes.

    load: gives the model; called when input and output are known to be usable, because it takes long. loaded: called
    with it. warn: called with messages about single lines. progress: called after every window with the totals and the
    number of bytes read.
    """
    job.output.refuse(job.input.file)
    processes = Processes()
    if not processes.is_first:
        with without_cudnn_attention():
            decode_lines(load(), job.decoding, None, None, line=job.line, processes=processes)
        return None
    with ExitStack() as stack:
        stack.enter_context(job.output.locked())
        lines = stack.enter_context(job.input.opened())
        model = load()
        loaded(model)
        # a new measurement might choose another kind, and kinds round differently
        model.engine.linears = job.output.earlier_facts.get("linears", model.engine.linears)
        facts = job.facts(model)
        stack.enter_context(without_cudnn_attention())
        began = time.perf_counter()
        output = stack.enter_context(job.output.opened(facts))
        before = LineTotals(**output.position.totals)
        lines.skip(output.position.lines, output.position.digest)
        totals = decode_lines(
            model, job.decoding, lines, output, line=job.line, processes=processes, warn=warn,
            progress=lambda totals: progress(totals, lines.bytes),
        )  # fmt: skip
        seconds = time.perf_counter() - began
    if (summary := job.output.summary_file) is not None:
        TextSummary(
            totals=totals,
            sparsity=totals.sparsity,
            seconds=seconds,
            processes=processes.count,
            settings=facts,
            made_by=provenance(facts["device"]),
        ).write(summary)
    return Done(totals, before, seconds, model.is_gated)
