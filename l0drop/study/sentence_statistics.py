"""Per-sentence statistics of outputs, from which corpus scores and their intervals are computed; no text is in them.

A corpus score is not the mean of sentence scores. It is a function of counts summed over sentences: n-grams and lengths
for BLEU and chrF, F-measures for ROUGE. Evaluations keep these counts in `statistics.json.gz`, so that anyone can
recompute every score and interval without the text. The file holds:

metrics     by metric: the score's name and signature, and the names of the columns
lines       the line number, from 1, of each scored sentence; documents: the document of each, from 0
systems     by label (`system-1`, `baseline-1`, ... or a run's name): by metric, one list per column
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from l0drop.data.metrics import compound_split, rouge_of_texts
from l0drop.data.score import BleuTokenizer, MetricName, Score

_WHAT, _FORMAT = "sentence statistics", 1
_NGRAMS, _CHRF_NGRAMS = 4, 6


@dataclass(frozen=True)
class Statistics:
    """One row of counts per sentence or document, and the function that scores summed rows."""

    metric: MetricName
    rows: np.ndarray
    score_of: Callable[[np.ndarray], float]

    @property
    def score(self) -> float:
        return self.score_of(self.rows.sum(0))

    def by_document(self, documents: Sequence[int]) -> "Statistics":
        """One row per document; `documents` gives each sentence's document, counted from 0."""
        rows = np.zeros((max(documents) + 1, self.rows.shape[1]))
        np.add.at(rows, np.asarray(documents), self.rows)
        return Statistics(self.metric, rows, self.score_of)


def statistics(
    metric: MetricName, hyps: Sequence[str], refs: Sequence[str], tokenize: BleuTokenizer = "13a"
) -> Statistics:
    """Statistics per sentence; their sum gives the score of the function of that name in `data.metrics`."""
    if metric == "rouge":
        f = np.array(rouge_of_texts(hyps, refs)["rougeLsum"], dtype=np.float64)
        rows = np.stack([f, np.ones_like(f)], 1)
    else:
        prepared = compound_split if metric == "bleu_paper" else str
        sides = [[prepared(text) for text in side] for side in (hyps, refs)]
        # sacreBLEU's bootstrap is built on this method and `_compute_score_from_stats`; it has no public ones.
        rows = np.array(_scorer(metric, tokenize)._extract_corpus_statistics(sides[0], [sides[1]]), dtype=np.float64)
    return Statistics(metric, rows, score_function(metric))


def score_function(metric: MetricName) -> Callable[[np.ndarray], float]:
    """The score of a corpus whose statistics have this sum."""
    if metric == "rouge":
        return lambda sums: 100 * float(sums[0] / sums[1])
    scorer = _scorer(metric)
    return lambda sums: float(scorer._compute_score_from_stats(sums.tolist()).score)


def _scorer(metric: MetricName, tokenize: BleuTokenizer = "13a") -> BLEU | CHRF:
    match metric:
        case "bleu":
            return BLEU(tokenize=tokenize, force=True)
        case "bleu_paper":
            return BLEU(tokenize="none", smooth_method="none", force=True)
        case _:
            return CHRF()


def columns(metric: MetricName) -> list[str]:
    """The names of the columns of `Statistics.rows`."""
    match metric:
        case "bleu" | "bleu_paper":
            orders = range(1, _NGRAMS + 1)
            counts = [f"{kind}{n}" for kind in ("matches", "totals") for n in orders]
            return ["hypothesis_length", "reference_length", *counts]
        case "chrf":
            kinds = ("hypothesis", "reference", "matches")
            return [f"{kind}{n}" for n in range(1, _CHRF_NGRAMS + 1) for kind in kinds]
        case "rouge":
            return ["rougeLsum_f", "sentences"]


def sentence_chrf(chrf: Statistics) -> np.ndarray:
    """The chrF of each sentence."""
    return np.array([chrf.score_of(row) for row in chrf.rows])


@dataclass(frozen=True)
class SentenceStatistics:
    """The content of a statistics file.

    systems: statistics by label and metric. scores: name and signature by metric. lines: the scored lines, from 1.
    documents: of each of them, from 0.
    """

    systems: dict[str, dict[MetricName, Statistics]]
    scores: dict[MetricName, dict[str, str]]
    lines: list[int]
    documents: list[int]

    def as_bytes(self) -> bytes:
        """The compressed file; the same content gives the same bytes."""
        content = {
            "what": _WHAT,
            "format": _FORMAT,
            "metrics": {metric: {**score, "columns": columns(metric)} for metric, score in self.scores.items()},
            "lines": self.lines,
            "documents": self.documents,
            "systems": {
                label: {metric: _lists(found.rows) for metric, found in metrics.items()}
                for label, metrics in self.systems.items()
            },
        }
        return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a statistics file; ValueError that names it if it is something else."""
        try:
            content: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
            if content["what"] != _WHAT or content["format"] != _FORMAT:
                raise ValueError(f"what {content['what']!r}, format {content['format']!r}")
            for metric, found in content["metrics"].items():
                if found["columns"] != columns(metric):
                    raise ValueError(f"other columns for {metric}")
            systems: dict[str, dict[MetricName, Statistics]] = {
                label: {metric: _of_lists(metric, lists) for metric, lists in metrics.items()}
                for label, metrics in content["systems"].items()
            }
            scores = {
                metric: {key: found[key] for key in ("name", "signature")}
                for metric, found in content["metrics"].items()
            }
            return cls(systems, scores, content["lines"], content["documents"])
        except (gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: not a file of sentence statistics that this version reads ({error})") from error


def _lists(rows: np.ndarray) -> list[list[float]]:
    """One list per column; whole numbers as integers."""
    return [[int(value) if value.is_integer() else value for value in column] for column in rows.T.tolist()]


def _of_lists(metric: MetricName, lists: Sequence[Sequence[float]]) -> Statistics:
    return Statistics(metric, np.array(lists, dtype=np.float64).T, score_function(metric))


def named_scores(scores: Mapping[MetricName, Score]) -> dict[MetricName, dict[str, str]]:
    """Name and signature of each `Score`, for a statistics file."""
    return {metric: {"name": score.name, "signature": score.signature} for metric, score in scores.items()}
