"""One evaluation from folders and files to its results: a system with its seeds, or every point of a sweep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l0drop.decoding.folder import generation_of
from l0drop.runs.evaluation import Evaluation, EvaluationFolder, Judging
from l0drop.runs.json_file import Settings
from l0drop.runs.run import RunFolder
from l0drop.runs.sweep import SweepFolder
from l0drop.study.evaluate import Judged, check_folder, evaluate
from l0drop.study.evaluation_text import EvaluationText, has_documents, read_files, read_test_text, with_dense_outputs
from l0drop.study.sweep import finished_points
from l0drop.study.systems import Advance, System

SystemBars = Callable[[int], AbstractContextManager[Callable[[System], Advance]]]
"""Progress bars: called with the number of lines; gives a function that begins the bar of a system."""
Warn = Callable[[str], None]


def no_bars(lines: int) -> AbstractContextManager[Callable[[System], Advance]]:
    return nullcontext(lambda system: lambda done: None)


@dataclass(frozen=True)
class EvaluationJob:
    """What to evaluate, on which text, and how.

    models: run folders, model folders or files of outputs; several are one system trained several times; or one sweep.
    baseline: one for each model. source, reference: files (default: the test text of the first model's recipe). dense:
    for text without references, the model whose outputs stand in for them. start: names the dense model that each was
    fine-tuned from. documents: resample documents (default: if the text has enough of them). judging: fields of
    `Judging`, generation: arguments of `TextModel.generate`; both default to the first model's recipe. output: the
    folder to write (default: in the first model's). dtype: for the models, not the baselines.
    """

    models: Sequence[Path]
    baseline: Sequence[Path] = ()
    source: Path | None = None
    reference: Path | None = None
    dense: Path | None = None
    start: Sequence[str] | None = None
    documents: bool | None = None
    judging: Mapping[str, Any] = field(default_factory=dict)
    generation: Settings = field(default_factory=dict)
    output: Path | None = None
    device: str | None = None
    dtype: str | None = None

    @property
    def sweep(self) -> SweepFolder | None:
        """The sweep to evaluate, if it is one."""
        folder = SweepFolder(self.models[0])
        return folder if folder.is_sweep else None

    def run(self, warn: Warn, bars: SystemBars = no_bars) -> Iterator[tuple[Path, Evaluation]]:
        """Evaluate, and yield each folder with its evaluation once it is written."""
        groups = self._groups()
        first = groups[0][0][0]
        folders = [output_folder(systems[0], self.output) for systems, _ in groups]
        text = self._text(first)
        if text.one_sided:
            warn(f"{text.one_sided} lines are blank on one side only; they are scored as they are")
        recipe = first.recipe
        generation = {**({} if recipe is None else generation_of(recipe)), **self.generation}
        of_recipe = {} if recipe is None else {"metric": recipe.evaluate.metric, "tokenize": recipe.evaluate.tokenize}
        by_document = has_documents(text) if self.documents is None else self.documents
        judging = Judging(**{**of_recipe, **self.judging}, documents=by_document)
        if text.references is None:
            model = dense_model(self.dense, first, groups[0][1])
            groups = [(systems, without_dense(systems, baselines, model)) for systems, baselines in groups]
            prefix = recipe.data.source_prefix if recipe is not None and model.run is None else ""  # runs add theirs
            with bars(len(text.sources)) as progress:
                text = with_dense_outputs(
                    text, model, generation, prefix=prefix, device=self.device, progress=progress
                )  # fmt: skip
        elif self.dense is not None:
            raise ValueError("`dense`: is for text without references, and this text has them")
        known: dict[System, Judged] = {}
        for (systems, baselines), folder in zip(groups, folders, strict=True):
            with bars(len(text.sources)) as progress:
                found = evaluate(
                    systems, baselines, text, judging, generation, starts=self.start, device=self.device,
                    progress=progress, known=known,
                )  # fmt: skip
            if EvaluationFolder(folder).metrics.exists():
                warn(f"replaces the evaluation in {folder}")
            found.write(folder)
            yield folder, found.metrics

    def _groups(self) -> list[tuple[list[System], list[System]]]:
        """The systems of each evaluation, and their baselines."""
        sweep = self.sweep
        if sweep is None:
            systems = [System(path, self.dtype) for path in self.models]
            return [(systems, [System(path) for path in self.baseline])]
        if len(self.models) > 1 or self.baseline or self.output is not None:
            raise ValueError(f"{sweep.path}: is a sweep; each point is compared with the continued baseline in it")
        points = [System(sweep.path / point.run, self.dtype) for point in finished_points(sweep.summary)]
        continued = System(sweep.continued.path)
        return [([point], [continued]) for point in points]

    def _text(self, first: System) -> EvaluationText:
        """The text to score: files, or the test text of the first system's recipe."""
        if self.source is not None:
            return read_files(self.source, self.reference)
        if self.reference is not None:
            raise ValueError("`reference`: needs `source`, whose lines it translates")
        if first.run is None or first.recipe is None:
            raise ValueError(f"`source` is needed: {first.path} belongs to no run with test text")
        if self.documents and first.recipe.data.documents:
            raise ValueError("`documents`: the examples of this run are joined lines, and are resampled as they are")
        return read_test_text(first.run)


def dense_model(given: Path | None, first: System, baselines: Sequence[System]) -> System:
    """The dense model whose outputs stand in for references."""
    recipe = first.recipe
    start = None if recipe is None else recipe.model.init or recipe.model.pretrained
    if given is not None:
        return System(given)
    if start is not None and (recipe is None or recipe.model.init is None or Path(start).exists()):
        return System(Path(start))
    if baselines:
        return baselines[0]
    raise ValueError(
        f"`reference` is missing, and the dense model that {first.path} was fine-tuned from is not known; give "
        "`reference`, or `dense` to compare with its outputs"
    )


def without_dense(systems: Sequence[System], baselines: Sequence[System], dense: System) -> list[System]:
    """The baselines; none if they are the dense model itself, which agrees with its own outputs."""
    paths = [system.path.resolve() for system in (*systems, *baselines)]
    if dense.path.resolve() in paths[: len(systems)]:
        raise ValueError(f"{dense.path}: is the dense model itself; without references there is nothing to compare")
    return [] if dense.path.resolve() in paths else list(baselines)


def output_folder(system: System, output: Path | None) -> Path:
    """The folder to write an evaluation to."""
    if output is None and not system.is_model:
        raise ValueError(f"`output` is needed: {system.path} is a file, so there is no folder to write to")
    if output is None and not system.path.exists():
        raise ValueError(f"{system.path}: there is no such folder; for a model on the hub, `output` is needed")
    folder = output or RunFolder(system.run or system.path).evaluation
    check_folder(folder)
    return folder
