"""The file of `l0drop bench precision`: what a type of numbers, and the batch, change in a trained model's outputs."""

from dataclasses import dataclass, field

from l0drop.data.score import Score
from l0drop.runs.evaluation import FileStamp
from l0drop.runs.json_file import JsonFile, Settings, flat, optional
from l0drop.runs.provenance import Provenance


@dataclass(frozen=True)
class Batching:
    """Sentences that were decoded, and the largest number of them in one batch."""

    sentences: int
    largest: int


@dataclass(frozen=True, kw_only=True)
class PrecisionRow:
    """Outputs in one type of numbers, on the short or on the dense memory.

    same: share of outputs that are those of the reference type, in the same batches. same_as_dense: share of the short
    memory's outputs that are those of the dense one. score: against the references; difference: less the reference
    type's score. differing: the outputs that are not the reference type's, scored against those; None without any.
    changed: by way of batching, the share of outputs that are not those of the engine's own batches. sparsity: the
    share of encodings dropped or, on the dense memory, gated to zero; None without a gate.
    """

    dtype: str
    memory: str
    same: float
    same_as_dense: float | None = optional()
    score: Score
    difference: float
    differing: Score | None
    changed: dict[str, float]
    seconds: dict[str, float] = field(default_factory=dict)
    sparsity: float | None = optional()


@dataclass(frozen=True, kw_only=True)
class Precision(JsonFile):
    """One text, decoded in several types of numbers and in several ways of batching.

    reference: the type that the others are compared with. batches: for each way of batching, sentences that were
    decoded and the largest number of them in one batch. left_out: types that failed, with the reason.
    """

    COMMAND = "l0drop bench precision"

    what: str
    model: str
    input: FileStamp
    references: FileStamp
    sentences: int
    source_tokens: int
    reference: str
    generation: Settings
    batches: dict[str, Batching]
    rows: list[PrecisionRow]
    left_out: dict[str, str] = optional(factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    made_by: Provenance | None = flat()
