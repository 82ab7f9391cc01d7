"""Scores of outputs with their signatures, and against a baseline: differences with a verdict, and tail risk.

evaluation/  metrics.json  hypotheses.txt  baseline.txt (if there is one)  examples.json

Several systems, each with a baseline of its own seed, make files with numbers (hypotheses-1.txt) and a verdict over
all seeds.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from l0drop.data.metrics import BleuTokenizer, Score, bleu, bleu_paper, chrf, rouge
from l0drop.data.prepare import usable_pairs
from l0drop.data.sources import open_text
from l0drop.data.text import CorpusError, Pair, TextFiles
from l0drop.data.tokenizer import load_tokenizers
from l0drop.data.whole import write_whole
from l0drop.recipe import load_recipe
from l0drop.runs.provenance import provenance
from l0drop.study import significance
from l0drop.study.examples import chosen, segments
from l0drop.study.significance import METRICS, MetricName, Statistics, statistics
from l0drop.study.systems import Outputs, Progress, System, outputs_of
from l0drop.study.tail import tail_risk

Scorer = Callable[[Sequence[str], Sequence[str]], Score]


METRICS_FILE = "metrics.json"


@dataclass(frozen=True)
class Judging:
    """How outputs are judged; the differences are tested with `metric` first of all."""

    metric: MetricName = "bleu"
    tokenize: BleuTokenizer = "13a"
    margin: float = 0.5
    documents: bool = False
    """Draw whole documents in the bootstrap; blank lines end them."""
    languages: tuple[str, str] | None = None
    controls: bool = False
    resamples: int = significance.RESAMPLES
    seed: int = significance.SEED

    def __post_init__(self) -> None:
        significance.check_margin(self.margin)


@dataclass(frozen=True)
class EvaluationText:
    """Sources and references; lines that are blank on both sides are not scored, and end documents."""

    sources: list[str]
    references: list[str]
    scored: list[int]
    """Lines, counted from 0."""
    documents: list[int]
    """Of each scored line."""
    one_sided: int
    inputs: list[dict[str, Any]]

    def of_scored(self, texts: Sequence[str]) -> list[str]:
        return [texts[line] for line in self.scored]


def read_text(pairs: Iterable[Pair], name: str, inputs: list[dict[str, Any]]) -> EvaluationText:
    """All of a parallel text; `name` stands for it in errors, `inputs` say what it was read from."""
    sources, references, scored, documents = [], [], [], []
    one_sided, document, ended = 0, -1, True
    for line, pair in enumerate(pairs):
        if pair.target is None:
            raise CorpusError(f"{name}: there is no reference to compare with")
        sources.append(pair.source)
        references.append(pair.target)
        if pair.is_blank:
            ended = True
            continue
        document, ended = document + ended, False
        scored.append(line)
        documents.append(document)
        one_sided += pair.is_one_sided
    if not scored:
        raise CorpusError(f"{name}: all of its {len(sources)} lines are blank")
    return EvaluationText(sources, references, scored, documents, one_sided, inputs)


def read_files(source: Path, reference: Path) -> EvaluationText:
    """Two files of equally many lines."""
    text = TextFiles(source, reference)
    return read_text(text, str(reference), text.inputs())


def read_test_text(run: Path) -> EvaluationText:
    """The test text of a run's recipe, cut into examples as the run was trained on them."""
    recipe = load_recipe(run / "recipe.yaml")
    if recipe.data.test is None:
        raise CorpusError(f"{run / 'recipe.yaml'}: data.test is missing; name --source and --reference")
    text, prefix = open_text(recipe.data.test), recipe.data.source_prefix
    pairs: Iterable[Pair] = text
    if recipe.data.documents:
        limits = {"max_source": recipe.data.max_source, "max_target": recipe.data.max_target}
        joined = usable_pairs(
            open_text(recipe.data.test, prefix), load_tokenizers(run), **limits, documents=True
        )  # as many lines as there is room for beside the prefix, which the model puts there by itself
        pairs = (pair._replace(source=pair.source.removeprefix(prefix)) for pair in joined)
    return read_text(pairs, f"{run / 'recipe.yaml'}: data.test", text.inputs())


@dataclass(frozen=True)
class Judged:
    """One system's outputs with everything that is computed from them alone."""

    system: System
    outputs: Outputs
    statistics: dict[MetricName, Statistics]
    scores: dict[MetricName, Score]
    controls: dict[str, Score] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        found = {**self.system.as_json(), "scores": {name: score.as_json() for name, score in self.scores.items()}}
        if self.outputs.decoding is not None:
            found |= {"decoding": self.outputs.decoding, "sources_cut": self.outputs.cut}
        if (sparsity := self.outputs.sparsity) is not None:
            found["sparsity"] = sparsity
        if self.controls:
            found["controls"] = {name: score.as_json() for name, score in self.controls.items()}
        return found


def evaluate(
    systems: Sequence[System],
    baselines: Sequence[System],
    text: EvaluationText,
    judging: Judging,
    generation: dict[str, Any],
    *,
    device: str | None = None,
    progress: Callable[[System], Progress] | None = None,
    known: dict[System, Judged] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """What metrics.json says, and the other files by their names.

    Without baselines there are scores alone; otherwise each system has one. `known` are those judged by an earlier
    call with the same text; it is added to.
    """
    if baselines and len(baselines) != len(systems):
        raise ValueError(
            f"{len(systems)} systems but {len(baselines)} baselines: each needs one, the baseline of its own seed "
            "(the same one may be named again)"
        )
    if judging.documents and text.documents[-1] == 0:
        raise ValueError("documents: there is one document only; a blank line on both sides ends a document")
    known = {} if known is None else known
    for system in sorted((*systems, *baselines), key=lambda system: system.is_model):  # files are soon found wanting
        if system not in known:
            outputs = outputs_of(
                system, text.sources, generation, device=device, empty_source=judging.controls,
                progress=progress(system) if progress and system.is_model else None,
            )  # fmt: skip
            known[system] = judge(system, outputs, text, judging)
    pairs = [(known[system], known[baseline]) for system, baseline in zip(systems, baselines, strict=False)]
    runs, files = [], {}
    for number, system in enumerate(systems, 1):
        ours = known[system]
        ending = f"-{number}" if len(systems) > 1 else ""
        files[f"hypotheses{ending}.txt"] = "".join(line + "\n" for line in ours.outputs.texts)
        run: dict[str, Any] = {"hypotheses": f"hypotheses{ending}.txt", "system": ours.as_json()}
        if pairs:
            theirs = pairs[number - 1][1]
            files[f"baseline{ending}.txt"] = "".join(line + "\n" for line in theirs.outputs.texts)
            run |= {"baseline": theirs.as_json(), **against(ours, theirs, text, judging)}
        runs.append(run)
        if number == 1:
            shown = examples(ours, pairs[0][1] if pairs else None, text, run.get("tail"), judging.seed)
            files["examples.json"] = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    metrics: dict[str, Any] = {
        "what": "evaluation",
        "inputs": text.inputs,
        "lines": len(text.sources),
        "scored": len(text.scored),
        "one_sided": text.one_sided,
        "documents": text.documents[-1] + 1,
        "judging": asdict(judging),
        "generation": generation,
        "runs": runs,
    }
    if len(pairs) > 1:
        metrics["over_seeds"] = over_seeds(pairs, text, judging)
    return metrics | provenance(), files


def judge(system: System, outputs: Outputs, text: EvaluationText, judging: Judging) -> Judged:
    """Scores and statistics of a system's outputs."""
    hyps, refs = text.of_scored(outputs.texts), text.of_scored(text.references)
    controls = {}
    if judging.controls:
        controls = control_scores(hyps, refs, outputs.without_source, scorer(judging.metric, judging.tokenize))
    return Judged(
        system,
        outputs,
        {metric: statistics(metric, hyps, refs, judging.tokenize) for metric in METRICS},
        {metric: scorer(metric, judging.tokenize)(hyps, refs) for metric in METRICS},
        controls,
    )


def scorer(metric: MetricName, tokenize: BleuTokenizer = "13a") -> Scorer:
    """The metric of that name."""
    scorers: dict[MetricName, Scorer] = {
        "bleu": partial(bleu, tokenize=tokenize),
        "bleu_paper": bleu_paper,
        "chrf": chrf,
        "rouge": rouge,
    }
    return scorers[metric]


def control_scores(
    hyps: Sequence[str], refs: Sequence[str], without_source: str | None, score: Scorer = bleu, seed: int = 1
) -> dict[str, Score]:
    """What the model scores without the right source: as much as it does not need its encoder for.

    `shuffled_source`: each reference against the output for another source, none for its own; as decoding is a
    function of the source, outputs are shuffled. `no_source`: every reference against the output for an empty source;
    left out where that is not known.
    """
    if len(hyps) < 2:
        raise ValueError(f"{len(hyps)} outputs: from two on, each can be compared with another's reference")
    order = np.random.default_rng(seed).permutation(len(hyps))
    shuffled = [""] * len(hyps)
    for place, other in zip(order, np.roll(order, 1), strict=True):
        shuffled[place] = hyps[other]
    scores = {"shuffled_source": score(shuffled, refs)}
    if without_source is not None:
        scores["no_source"] = score([without_source] * len(refs), refs)
    return scores


def against(ours: Judged, theirs: Judged, text: EvaluationText, judging: Judging) -> dict[str, Any]:
    """Differences with their verdicts, equal outputs, and the tail risk, of one system and its baseline."""
    outputs, outputs_baseline = text.of_scored(ours.outputs.texts), text.of_scored(theirs.outputs.texts)
    differences = {
        metric: significance.compare(
            *_units((ours.statistics[metric], theirs.statistics[metric]), text, judging), judging.margin,
            **_drawing(judging),
        ).as_json()
        for metric in METRICS
    }  # fmt: skip
    sentences, sentences_baseline = (significance.sentence_chrf(judged.statistics["chrf"]) for judged in (ours, theirs))
    tail = tail_risk(
        text.of_scored(text.sources), text.of_scored(text.references), outputs, outputs_baseline, sentences,
        sentences_baseline, judging.languages,
    )  # fmt: skip
    for entry in tail["chrf"]["worst"]:
        entry["line"] = text.scored[entry.pop("place")] + 1
    same = sum(mine == other for mine, other in zip(outputs, outputs_baseline, strict=True))
    return {"differences": differences, "same_outputs": same, "tail": tail}


def over_seeds(pairs: Sequence[tuple[Judged, Judged]], text: EvaluationText, judging: Judging) -> dict[str, Any]:
    """The verdict over all pairs of runs, per metric."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        both = [_units((ours.statistics[metric], theirs.statistics[metric]), text, judging) for ours, theirs in pairs]
        found[metric] = significance.compare_over_seeds(both, judging.margin, **_drawing(judging)).as_json()
    return found


def _units(
    pair: tuple[Statistics, Statistics], text: EvaluationText, judging: Judging
) -> tuple[Statistics, Statistics]:
    if not judging.documents:
        return pair
    return pair[0].by_document(text.documents), pair[1].by_document(text.documents)


def _drawing(judging: Judging) -> dict[str, Any]:
    unit = "document" if judging.documents else "sentence"
    return {"unit": unit, "resamples": judging.resamples, "seed": judging.seed}


def examples(
    ours: Judged, theirs: Judged | None, text: EvaluationText, tail: dict[str, Any] | None, seed: int
) -> list[dict[str, Any]]:
    """Sentences to look at, with what was dropped of their sources."""
    worst = [entry["line"] - 1 for entry in tail["chrf"]["worst"]] if tail else []
    pieces = ours.outputs.pieces
    return [
        {
            "line": line + 1,
            "why": why,
            "source": segments(text.sources[line], pieces[line]) if pieces else [(text.sources[line], "")],
            "reference": text.references[line],
            "baseline": theirs.outputs.texts[line] if theirs else None,
            "system": ours.outputs.texts[line],
        }
        for line, why in chosen(text.scored, worst, seed)
    ]


def check_folder(folder: Path) -> None:
    """Refuse to put an evaluation where something else is."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder}: is a file; name a folder")
    if (folder / "recipe.yaml").exists():
        raise ValueError(f"--output {folder}: is a run, whose {METRICS_FILE} is its training's; name another folder")
    if (file := folder / METRICS_FILE).exists():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("what") != "evaluation":
            raise ValueError(f"--output {folder}: its {METRICS_FILE} is of no evaluation; name another folder")


def write(folder: Path, metrics: dict[str, Any], files: dict[str, str]) -> None:
    """Put an evaluation into its folder; metrics.json comes last, so that where it is, all is."""
    check_folder(folder)
    if (folder / METRICS_FILE).exists():
        former = {*folder.glob("hypotheses*.txt"), *folder.glob("baseline*.txt")}
        for file in (folder / METRICS_FILE, *(file for file in former if file.name not in files)):
            file.unlink()
    for name, content in files.items():
        write_whole(folder / name, content)
    write_whole(folder / METRICS_FILE, json.dumps(metrics, indent=1, ensure_ascii=False) + "\n")
