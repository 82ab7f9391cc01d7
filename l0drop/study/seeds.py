"""A study of several systems, each trained with several seeds: train them in parallel, gather results, compare.

Every run is an ordinary one, named SYSTEM-sSEED. Each system is compared with the continued baseline, which is called
`on` in run and result files, seed by seed; intervals cover other baselines and other sentences.
"""

import hashlib
import json
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import yaml
from rich.console import Console

from l0drop.core.gates import GATES
from l0drop.data.metrics import scorer_of
from l0drop.data.prepare import usable_pairs
from l0drop.data.score import MetricName
from l0drop.data.text import read_lines
from l0drop.data.tokenizer import TokenizerPair
from l0drop.data.whole import write_whole
from l0drop.recipe import Evaluate, Recipe, TextCorpus, load_recipe
from l0drop.runs.run import DialCurve, LengthPenaltyCurve, RunFolder, RunMetrics, Split
from l0drop.runs.study import SeedRun, StatisticsFile, StudiedSystem, StudyResults
from l0drop.study.parallel import train_in_parallel
from l0drop.study.sentence_statistics import SentenceStatistics, Statistics, counted_metrics
from l0drop.study.sentence_statistics import statistics as statistics_of
from l0drop.study.significance import compare, compare_over_baselines
from l0drop.training.corpora import build_tokenizers, references, split_text
from l0drop.training.run import open_run, prepare

ON = "on"
"""The continued baseline, with which every system is compared."""
Then = Mapping[tuple[str, ...], Callable[[], None]]
"""Tasks to start once the runs of these names are finished."""


def text_in(folder: Path, source: str, target: str) -> list[str]:
    """Overrides that read a recipe's corpora from a folder: train, valid and test, with the languages as endings."""
    values = []
    for split in ("train", "valid", "test"):
        for side, ending in (("source", source), ("target", target)):
            found = sorted(folder.glob(f"{split}.{ending}*"))
            if not found:
                raise ValueError(f"{folder}: no {split}.{ending}")
            values.append(f"data.{split}.{side}={found[0]}")
    return values


def train_all(
    recipes: Sequence[Recipe],
    runs: Path,
    parallel: int,
    threads: int | None,
    console: Console,
    then: Then | None = None,
    more: Mapping[str, Callable[[], Sequence[Recipe]]] | None = None,
) -> None:
    """Train the missing runs, `parallel` at a time, each as soon as the runs that it depends on are finished.

    Text is prepared first, once for all runs that share it. then: tasks that run in the background once some runs are
    finished, one after the other, such as decoding text that other runs need. more: recipes that can only be written
    once the run of this name is finished.
    """
    pending = dict(more or {})

    def missing_of(wanted: Iterable[Recipe]) -> list[Recipe]:
        return [recipe for recipe in wanted if not RunFolder(open_run(recipe, runs)).is_finished]

    def follow_ups(name: str) -> list[Recipe]:
        return missing_of(pending.pop(name)()) if name in pending else []

    missing = missing_of(recipes)
    missing += [recipe for name in list(pending) if RunFolder(runs / name).is_finished for recipe in follow_ups(name)]
    followed = {name for names in then or {} for name in names} | {*pending}
    _check_dependencies(missing, runs, followed)
    first: dict[str, Recipe] = {}
    for recipe in missing:
        if recipe.model.init is None:  # other runs read the text of the run they start from
            leader = first.setdefault(_text_of(recipe), recipe)
            if leader is recipe:
                prepare(recipe, runs, console)
            else:
                _share(runs / leader.name, runs / recipe.name)
    with _Background(runs, then or {}) as background:
        leaders: dict[str, str] = {}

        def ready(recipe: Recipe) -> bool:
            able = background.ready(recipe)
            if able:  # it starts now
                _share_outputs(recipe, runs, leaders)
            return able

        for name in train_in_parallel(
            missing, runs, parallel, threads, console, lambda name, seconds: None,
            ready=ready, more=follow_ups, busy=background.busy,
        ):  # fmt: skip
            console.print(f"{name} is done")
            background.begin()


class _Background:
    """A thread for tasks that start once some runs are finished; it knows which recipes can start.

    runs: the folder of all runs. then: the tasks, by the names of these runs.
    """

    def __init__(self, runs: Path, then: Then) -> None:
        self.runs, self.pending = runs, dict(then)
        self.begun: list[Future[None]] = []
        self.thread = ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.raise_errors()

    def begin(self) -> None:
        """Start the tasks whose runs are finished."""
        for names in [
            names for names in self.pending if all(RunFolder(self.runs / name).is_finished for name in names)
        ]:
            self.begun.append(self.thread.submit(self.pending.pop(names)))

    def busy(self) -> bool:
        return not all(task.done() for task in self.begun)

    def raise_errors(self) -> None:
        for task in self.begun:
            if task.done():
                task.result()

    def ready(self, recipe: Recipe) -> bool:
        """Whether the runs and files that a recipe depends on exist; a background task may still write files.

        If a task failed, its error is raised here, because the recipe would wait for ever. If no recipe waits for it,
        the error is raised at the end.
        """
        if not all(RunFolder(self.runs / name).is_finished for name in builds_on(recipe, self.runs)):
            return False
        if all(Path(path).exists() for path in _reads(recipe)):
            return True
        self.raise_errors()
        return not self.pending and not self.busy()


def builds_on(recipe: Recipe, runs: Path) -> list[str]:
    """The runs of this folder that a recipe starts from or is distilled from."""
    teacher = recipe.train.teacher
    models = [recipe.model.init, None if teacher is None or teacher.model == "init" else teacher.model]
    return [Path(model).name for model in models if model is not None and Path(model).parent == runs]


def _reads(recipe: Recipe) -> list[str]:
    """The files and folders that a recipe needs: its training text, and the model it starts from."""
    text = recipe.data.train
    files = (text.source, text.target) if isinstance(text, TextCorpus) else ()
    return [path for path in (*files, recipe.model.init) if path is not None]


def _check_dependencies(missing: Sequence[Recipe], runs: Path, followed: Collection[str]) -> None:
    trained = {recipe.name for recipe in missing}
    waited = dict.fromkeys(followed, "a background task")
    waited |= {name: recipe.name for recipe in missing for name in builds_on(recipe, runs)}
    for name, by in waited.items():
        if name not in trained and not RunFolder(runs / name).is_finished:
            raise ValueError(f"{runs / name}: {by} needs it, but it does not exist and is not to be trained")


def _text_of(recipe: Recipe) -> str:
    return json.dumps([recipe.data.model_dump(mode="json"), recipe.tokenizer.model_dump(mode="json")], sort_keys=True)


def _share(leader: Path, follower: Path) -> None:
    ours, theirs = RunFolder(leader), RunFolder(follower)
    for part, link in (
        (ours.target_tokenizer, theirs.target_tokenizer), (ours.tokenizer, theirs.tokenizer), (ours.data, theirs.data),
    ):  # fmt: skip
        if part.exists() and not link.exists():
            link.symlink_to(Path("..", leader.name, part.name), target_is_directory=True)


def _share_outputs(recipe: Recipe, runs: Path, leaders: dict[str, str]) -> None:
    """Let the runs that train on the same outputs of a teacher tokenize them once; others wait for the first one.

    leaders: the first run, by text and start. A gate that needs hints has its own text.
    """
    text = recipe.data.train
    made_here = isinstance(text, TextCorpus) and text.target is not None and Path(text.target).parent == runs
    if not made_here or (recipe.l0drop is not None and GATES.class_of(recipe.l0drop.gate).needs):
        return
    leader = leaders.setdefault(f"{recipe.model.init} {_text_of(recipe)}", recipe.name)
    data, link = RunFolder(runs / leader).data, RunFolder(runs / recipe.name).data
    if leader != recipe.name and not link.exists():
        data.mkdir(exist_ok=True)
        link.symlink_to(Path("..", leader, data.name), target_is_directory=True)


def gather(
    runs: Path,
    names: Iterable[str],
    what: str,
    margin: float,
    also: Mapping[str, str] | None = None,
    statistics_file: Path | None = None,
    split: Split = "test",
    text: Sequence[str] = (),
    by_document: bool = False,
) -> StudyResults:
    """The results of the finished runs, by system, and each system's difference to the continued baseline.

    Outputs are compared in the metric of the first run's recipe. margin: the acceptable loss of that score. also: for
    some systems, another one to compare with. A system of one seed is compared over sentences only (`one_seed`).
    Fine-tuned runs are compared only if both had the same number of steps. The result contains no text of the data.
    statistics_file: where to write the per-sentence statistics of all outputs, so that others can recompute scores and
    intervals; the result then names the file. split: the text of these outputs. Runs that have not decoded it are not
    compared. text: overrides that name it, if the recipes do not. by_document: resample documents, which blank lines
    end, instead of sentences; the sentences of a document depend on each other.
    """
    systems: dict[str, StudiedSystem] = {}
    outputs: dict[str, list[_Outputs]] = {}
    truth: list[str] = []
    documents: list[int] = []
    scoring, unit = Evaluate(), "document" if by_document else "sentence"
    for name in (name for name in names if RunFolder(runs / name).is_finished):
        folder, system = RunFolder(runs / name), name.rpartition("-s")[0]
        metrics = RunMetrics.read(folder.metrics)
        recipe = yaml.safe_load(folder.recipe.read_text(encoding="utf-8"))
        if not truth:
            read = load_recipe(folder.recipe, text)
            scoring = read.evaluate
            tokenizers = build_tokenizers(read, folder.path, lambda text: None)
            truth = references(read, tokenizers, split)
            documents = document_numbers(read, tokenizers, split) if by_document else [*range(len(truth))]
        about = {key: recipe.pop(key) for key in ("name", "seed", "about")}
        entry = systems.setdefault(system, StudiedSystem(recipe, [], metrics.made_by))
        file = folder.outputs_on(split)
        was_decoded = (metrics.test if split == "test" else metrics.valid) is not None
        entry.runs.append(_seed_run(folder, about["seed"], metrics, file.read_bytes() if was_decoded else None))
        if not was_decoded:
            continue
        lines = list(read_lines(file))
        init = (recipe.get("model") or {}).get("init")
        counts = statistics_of(scoring.text_metric, lines, truth, scoring.tokenize)
        steps = None if init is None else metrics.steps
        outputs.setdefault(system, []).append(_Outputs(about["seed"], Path(init or name).name, steps, counts))
    for system, found in outputs.items():
        others = {ON: continued_of(system, outputs)} if system != ON else {}
        if also and system in also:
            others[also[system]] = also[system]
        for name, other in others.items():
            theirs = {one.seed: one for one in outputs.get(other, [])}
            alike = [one for one in found if one.seed in theirs and one.is_trained_like(theirs[one.seed])]
            sides = [(one.counts, theirs[one.seed].counts) for one in alike]
            pairs = [(ours.by_document(documents), other.by_document(documents)) for ours, other in sides]
            starts = [theirs[one.seed].start for one in alike]
            entry = systems[system]
            if len(pairs) == 1 and len(found) == 1:
                entry = replace(entry, one_seed={**entry.one_seed, name: compare(*pairs[0], margin, unit=unit)})
            elif len(pairs) > 1:
                over = compare_over_baselines(pairs, starts, margin, unit=unit)
                if name == ON:
                    entry = replace(entry, against_on=over)
                else:
                    entry = replace(entry, against={**entry.against, name: over})
            systems[system] = entry
    written = None
    if statistics_file is not None and truth:
        written = _write_statistics(statistics_file, outputs, truth, documents, scoring)
    return StudyResults(what, systems, written)


@dataclass(frozen=True)
class _Outputs:
    """The decoded text of a run. start: the baseline it starts from. steps: of its fine-tuning, None from scratch."""

    seed: int
    start: str
    steps: int | None
    counts: Statistics

    def is_trained_like(self, other: "_Outputs") -> bool:
        """Whether both were fine-tuned for as many steps; a run from scratch may be compared with any."""
        return None in (self.steps, other.steps) or self.steps == other.steps


def document_numbers(recipe: Recipe, tokenizers: TokenizerPair, split: str) -> list[int]:
    """The number of the document that each scored sentence of a split belongs to, from 0; blank lines end documents."""
    data = recipe.data
    text = split_text(recipe, split, tokenizers)
    ends = [pair.line for pair in text if pair.is_blank]
    pairs = usable_pairs(text, tokenizers, max_source=data.max_source, max_target=data.max_target)
    found = [bisect(ends, pair.line) for pair in pairs]
    numbers = {document: number for number, document in enumerate(dict.fromkeys(found))}
    return [numbers[document] for document in found]


def _seed_run(folder: RunFolder, seed: int, metrics: RunMetrics, outputs: bytes | None) -> SeedRun:
    return SeedRun(
        seed=seed,
        train_seconds=folder.train_seconds(),
        steps=metrics.steps,
        lambda_=metrics.lambda_,
        calibration=metrics.calibration,
        valid=metrics.valid,
        test=metrics.test,
        dial=DialCurve.read(folder.dial).rows if folder.dial.exists() else None,
        length_penalties=(
            LengthPenaltyCurve.read(folder.length_penalties).rows if folder.length_penalties.exists() else None
        ),
        outputs_sha256=None if outputs is None else hashlib.sha256(outputs).hexdigest(),
    )


def _write_statistics(
    file: Path,
    outputs: Mapping[str, Sequence["_Outputs"]],
    truth: Sequence[str],
    documents: Sequence[int],
    scoring: Evaluate,
) -> StatisticsFile:
    """Write the statistics of all runs, by name; returns the file's name and hash."""
    by_run: dict[str, dict[MetricName, Statistics]] = {
        f"{system}-s{one.seed}": {scoring.text_metric: one.counts} for system, found in outputs.items() for one in found
    }
    metrics = counted_metrics({scoring.text_metric: scorer_of(scoring)(truth, truth)})
    content = SentenceStatistics(by_run, metrics, [*range(1, len(truth) + 1)], [*documents]).counts.as_bytes()
    write_whole(file, content)
    return StatisticsFile(file.name, hashlib.sha256(content).hexdigest())


def continued_of(system: str, systems: Collection[str]) -> str:
    """The continued baseline that a system is compared with: one trained in the same way if there is one, such as
    `on-long` for `zero-0.5-long`."""
    own = f"{ON}-{system.rpartition('-')[2]}"
    return own if own in systems and own != system else ON
