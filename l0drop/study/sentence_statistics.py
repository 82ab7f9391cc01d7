"""Per-sentence statistics of outputs, from which corpus scores and their intervals are computed; no text is in them.

A corpus score is not the mean of sentence scores. It is a function of counts summed over sentences: n-grams and lengths
for BLEU and chrF, F-measures for ROUGE. Evaluations keep these counts in `statistics.json.gz` (`SentenceCounts`), so
that anyone can recompute every score and interval without the text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from l0drop.data.metrics import compound_split, rouge_of_texts, sacrebleu_metric
from l0drop.data.score import BleuTokenizer, MetricName, Score
from l0drop.runs.evaluation import CountedMetric, SentenceCounts
from l0drop.runs.json_file import FileError

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
        counter = sacrebleu_metric(metric, tokenize, force=True)
        rows = np.array(counter._extract_corpus_statistics(sides[0], [sides[1]]), dtype=np.float64)
    return Statistics(metric, rows, score_function(metric))


def score_function(metric: MetricName) -> Callable[[np.ndarray], float]:
    """The score of a corpus whose statistics have this sum."""
    if metric == "rouge":
        return lambda sums: 100 * float(sums[0] / sums[1])
    scorer = sacrebleu_metric(metric)
    return lambda sums: float(scorer._compute_score_from_stats(sums.tolist()).score)


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
    """The content of a statistics file, with the functions that score it.

    systems: statistics by label and metric. metrics: what is said about their scores. lines: the scored lines, from 1.
    documents: of each of them, from 0.
    """

    systems: dict[str, dict[MetricName, Statistics]]
    metrics: dict[MetricName, CountedMetric]
    lines: list[int]
    documents: list[int]

    @property
    def counts(self) -> SentenceCounts:
        """The file."""
        return SentenceCounts(
            metrics=self.metrics,
            lines=self.lines,
            documents=self.documents,
            systems={
                label: {metric: _lists(found.rows) for metric, found in metrics.items()}
                for label, metrics in self.systems.items()
            },
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a statistics file; FileError that names it if it is something else."""
        found = SentenceCounts.read(file)
        for metric, counted in found.metrics.items():
            if counted.columns != columns(metric):
                raise FileError(f"{file}: metrics.{metric}.columns: this version reads {', '.join(columns(metric))}")
        return cls(
            {
                label: {metric: _of_lists(metric, lists) for metric, lists in metrics.items()}
                for label, metrics in found.systems.items()
            },
            found.metrics,
            found.lines,
            found.documents,
        )


def _lists(rows: np.ndarray) -> list[list[float]]:
    """One list per column; whole numbers as integers."""
    return [[int(value) if value.is_integer() else value for value in column] for column in rows.T.tolist()]


def _of_lists(metric: MetricName, lists: Sequence[Sequence[float]]) -> Statistics:
    return Statistics(metric, np.array(lists, dtype=np.float64).T, score_function(metric))


def counted_metrics(scores: Mapping[MetricName, Score]) -> dict[MetricName, CountedMetric]:
    """What a statistics file says about each metric."""
    return {metric: CountedMetric(one.name, one.signature, columns(metric)) for metric, one in scores.items()}
