"""Rounding in a trained model's outputs: do they change with the type of numbers, and with the batch?

In exact arithmetic an output depends on its sentence alone. Sums of rounded numbers depend on their order, and the
order on the shape of the batch, so two outputs of nearly the same score can change places. A text is decoded in several
types, each in the engine's own batches, in batches of sentences in random order, and some sentences alone.

    text ─▶ per type and memory: own batches, random batches, alone ─▶ PrecisionRow ─▶ Precision
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from l0drop.bench.timing import Say, Stopwatch
from l0drop.data.metrics import bleu, chrf
from l0drop.data.text import TextFiles, file_stamp
from l0drop.decoding.sources import Source
from l0drop.decoding.text import TextModel, load
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.models.quiet import quiet_libraries
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.precision import Batching, Precision, PrecisionRow
from l0drop.runs.provenance import provenance

DTYPES = ("float32", "bfloat16", "float16")
"""The first is the reference."""
RANDOM_SIZES = (256, 32)
"""Sentences in a batch of random order."""
SEED = 1
OWN, ALONE = "own", "alone"
NOTES = {
    "same": "share of outputs whose text is that of the reference type on the same memory, both in the engine's own "
    "batches",
    "own": "the engine's own batches: sentences sorted by length",
    "random": "random-N: sentences in random order, at most N in a batch, so that short ones are padded to long ones",
    "alone": "sentences spread evenly over the text, each decoded alone",
    "changed": "share of outputs whose text is not that of the engine's own batches in the same type",
    "differing": "chrF of the outputs that differ, with those of the reference type as references",
}


@dataclass(frozen=True)
class PrecisionText:
    """What is decoded: the first sentences of a text, by a run, a model folder, or a name on the hub.

    alone: sentences that are also decoded one at a time. generation: replaces settings of the run.
    """

    model: str
    input: Path
    references: Path
    sentences: int = 1000
    alone: int = 50
    generation: Mapping[str, Any] | None = None

    def pairs(self) -> tuple[list[str], list[str]]:
        """Sources and references; sources that are blank are left out."""
        text = islice(TextFiles(self.input, self.references), self.sentences)
        pairs = [pair for pair in text if pair.source.strip()]
        if not pairs:
            raise ValueError(f"{self.input}: its first {self.sentences} lines are blank")
        return [pair.source for pair in pairs], [pair.target or "" for pair in pairs]


@without_cudnn_attention()
def precision(
    what: PrecisionText,
    dtypes: Sequence[str] = DTYPES,
    random_sizes: Sequence[int] = RANDOM_SIZES,
    device: str = "cuda",
    say: Say = print,
    save: Callable[[Precision], None] = lambda result: None,
) -> Precision:
    """Decode a text in types of numbers, the reference first. `save` gets the result so far after every row.

    A type that fails, as float16 may where it overflows, is left out, and the reason is recorded.
    """
    quiet_libraries()
    lines, references = what.pairs()
    text = load(what.model, device, dtypes[0])
    sources = text.encode(lines)
    settings = text.settings(None, dict(what.generation or {}))
    ways = _batchings(text, sources, random_sizes, what.alone)
    result = Precision(
        what="a text in several types of numbers, in several ways of batching",
        model=what.model,
        input=FileStamp(**file_stamp(what.input)),
        references=FileStamp(**file_stamp(what.references)),
        sentences=len(lines),
        source_tokens=sum(len(source.ids) for source in sources),
        reference=dtypes[0],
        generation=settings,
        batches={name: Batching(sum(map(len, way)), max(map(len, way))) for name, way in ways.items()},
        rows=[],
        notes=NOTES,
        made_by=provenance(device),
    )
    found: dict[tuple[str, str], Mapping[int, str]] = {}
    for dtype in dtypes:
        try:
            model = text if dtype == dtypes[0] else load(what.model, device, dtype)
            for memory in ("dense", "short") if model.is_gated else ("dense",):
                dial = {"dense": True} if model.is_gated and memory == "dense" else {}
                outputs, seconds, dropped = _decoded(model, sources, {**settings, **dial}, ways)
                found[dtype, memory] = outputs[OWN]
                exact = found[dtypes[0], memory]
                dense = None if memory == "dense" else found[dtype, "dense"]
                row = _row(dtype, memory, outputs, exact, dense, references)
                row = replace(row, seconds=seconds, sparsity=dropped / result.source_tokens if model.is_gated else None)
                changed = ", ".join(f"{name} {share:.1%}" for name, share in row.changed.items())
                took = sum(row.seconds.values())
                say(f"{dtype}, {memory}: {row.same:.1%} as {dtypes[0]}; changed: {changed}; {took:.1f} s")
                result = replace(result, rows=[*result.rows, row])
                save(result)
        except ValueError as error:  # encodings that are not finite
            if dtype == dtypes[0]:
                raise
            result = replace(result, left_out={**result.left_out, dtype: str(error)[:500]})
            say(f"{dtype} is left out: {error}")
    return result


def _batchings(
    text: TextModel, sources: Sequence[Source], random_sizes: Sequence[int], alone: int
) -> dict[str, list[list[int]]]:
    """Ways to divide the sentences into batches."""
    count = len(sources)
    order = np.random.default_rng(SEED).permutation(count)
    random = {
        f"random-{size}": [part.tolist() for part in np.array_split(order, -(-count // size))] for size in random_sizes
    }
    spread = np.unique(np.linspace(0, count - 1, min(alone, count)).astype(int)).tolist()
    single = {ALONE: [[index] for index in spread]} if alone else {}
    return {OWN: text.batches(sources, text.batch_tokens), **random, **single}


def _decoded(
    text: TextModel, sources: Sequence[Source], settings: Mapping[str, Any], ways: Mapping[str, list[list[int]]]
) -> tuple[dict[str, dict[int, str]], dict[str, float], int]:
    """By way of batching, the outputs of sentences and the seconds that they took; and how many encodings were dropped.

    Seconds include those of first calls, which compile kernels.
    """
    outputs: dict[str, dict[int, str]] = {}
    seconds, dropped = {}, 0
    for name, batches in ways.items():
        outputs[name] = {}
        with (watch := Stopwatch(text.model.device)):
            for batch in batches:
                results = text.decode([sources[index] for index in batch], settings)
                outputs[name] |= {index: result.text for index, result in zip(batch, results, strict=True)}
                if name == OWN:
                    dropped += sum(result.source_tokens - len(result.kept) for result in results)
        seconds[name] = watch.seconds.wall
    return outputs, seconds, dropped


def _row(
    dtype: str,
    memory: str,
    outputs: Mapping[str, Mapping[int, str]],
    exact: Mapping[int, str],
    dense: Mapping[int, str] | None,
    references: Sequence[str],
) -> PrecisionRow:
    """One type on one memory. exact: the reference type's outputs. dense: this type's on the dense memory."""
    own = outputs[OWN]
    order = range(len(references))
    score, reference = (bleu([texts[index] for index in order], references) for texts in (own, exact))
    differing = [index for index in order if own[index] != exact[index]]
    return PrecisionRow(
        dtype=dtype,
        memory=memory,
        same=1 - changed_share(own, exact),
        same_as_dense=None if dense is None else 1 - changed_share(own, dense),
        score=score,
        difference=score.value - reference.value,
        differing=chrf([own[i] for i in differing], [exact[i] for i in differing]) if differing else None,
        changed={name: changed_share(texts, own) for name, texts in outputs.items() if name != OWN},
    )


def changed_share(texts: Mapping[int, str], others: Mapping[int, str]) -> float:
    """The share of these sentences that have another text in `others`."""
    return sum(text != others[index] for index, text in texts.items()) / len(texts)
