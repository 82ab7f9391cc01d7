"""The files of the demo: `metrics.json` of each task, and of all of them."""

from dataclasses import dataclass, field
from pathlib import Path

from l0drop.data.score import Score
from l0drop.runs.json_file import JsonFile, flat, optional, read_any, remedy
from l0drop.runs.provenance import Provenance
from l0drop.runs.run import Scored

EARLIER_CONTINUED = "trained-on"
"""The name of the continued baseline in earlier versions."""


@dataclass(frozen=True)
class Word:
    """A source word, its class, and its pieces: text, and whether it was dropped."""

    text: str
    kind: str
    pieces: tuple[tuple[str, bool], ...]
    space_before: bool

    @property
    def dropped(self) -> bool:
        """All pieces of the word were dropped."""
        return all(dropped for _, dropped in self.pieces)


@dataclass(frozen=True)
class DemoSentence:
    """A source, of which `source` has the first words; outputs and numbers of encodings by memory."""

    source: list[Word]
    words: int
    outputs: dict[str, str]
    encodings: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class DemoTask(JsonFile):
    """One task of the demo.

    systems: the scores of the three models. dense_score: of the sparse model on the full gated memory. blind_score: of
    one output for every input. dense_by_short_cpu: the speed-up. dropped_by_class: shares of dropped pieces; most and
    least dropped: words with the shares of their dropped occurrences.
    """

    COMMAND = "l0drop demo"

    task: str
    gating: str
    seed: int
    systems: dict[str, Scored]
    sparsity: float
    dense_score: Score
    decoding_cpu_seconds: dict[str, list[float]]
    dense_by_short_cpu: float
    target_sparsity: float | None = None
    source_tokens: float = 0.0
    difference_to_continued: float | None = None
    blind_score: Score | None = optional()
    outputs_equal_short_and_dense: int | None = None
    dropped_by_class: dict[str, float] = field(default_factory=dict)
    most_dropped: dict[str, float] = field(default_factory=dict)
    least_dropped: dict[str, float] = field(default_factory=dict)
    sentences: list[DemoSentence] = field(default_factory=list)
    made_by: Provenance | None = flat()

    @property
    def continued(self) -> str:
        """The name of the continued baseline."""
        return EARLIER_CONTINUED if EARLIER_CONTINUED in self.systems else "continued"


def is_demo_task(path: Path) -> bool:
    """Whether a `metrics.json` is of a task of the demo, not of a run."""
    content = read_any(path, remedy("l0drop train, or l0drop demo")) if path.is_file() else None
    return isinstance(content, dict) and "dense_score" in content


@dataclass(frozen=True)
class Demo(JsonFile):
    """All tasks of a demo, by name."""

    COMMAND = "l0drop demo"

    tasks: dict[str, DemoTask]
    made_by: Provenance | None = flat()
