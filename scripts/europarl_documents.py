"""Documents of Europarl English-German: short memories where sources are long, 512 and 1,024 subwords.

    python scripts/europarl_documents.py --data data/europarl --runs runs/documents --seconds 240 130

The data folder holds train, valid and test as .en and .de (.gz and .xz are unpacked); blank lines end speeches. They
are made into examples of several lengths in RUNS/text (`document_text.py`). Every model is an ordinary run of
`recipes/europarl-documents-base.yaml` or `recipes/europarl-documents-target60.yaml`, named SYSTEM-sSEED. All that start
from the baseline are distilled from it at token level, the continued baseline `on` too.

--seconds BASE FINE trains the baseline for the first time, and all others side by side for about the second one: their
number of steps follows from the speed of the baseline, and is the same for all. --others says how many other processes
use the GPU. Without --seconds, the recipes' steps are trained.

A call trains the systems of one baseline. Another one, with --first-seed 2, can be trained on another machine.
`results.json` collects the runs. `lengths.json` has each system by length, on validation and test text, with its
difference to the continued baseline and with the scores of wrong sources. --gather collects the finished runs, such as
those of --seeds 3, and trains nothing. --tables FILE prints the table of a results.json and exits.
"""

import argparse
import multiprocessing
import os
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from document_text import JOINED, WINDOW, Documents, write_documents
from l0drop.data.metrics import bleu
from l0drop.data.text import read_lines
from l0drop.decoding.folder import generation_of
from l0drop.models.quiet import quiet_libraries
from l0drop.recipe import load_recipe
from l0drop.runs.run import SPLITS, RunFolder
from l0drop.runs.study import LengthDifference, LengthScore, LengthScores, Sources, StudyResults
from l0drop.runs.table import Table
from l0drop.study.evaluate import control_scores
from l0drop.study.seeds import ON
from l0drop.study.sentence_statistics import statistics
from l0drop.study.significance import compare, compare_over_baselines
from l0drop.study.study import BASE, Options, Study, SystemRecipe, at_target
from l0drop.study.sweep import UNGATED
from l0drop.study.systems import System, outputs_of
from l0drop.training.run import open_run, prepare
from result_tables.documents import controls_table, examples_table, lengths_table
from result_tables.quality import single_table
from study_command import carry_out, in_text, options_of, parser_of
from time_limit import train_for

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
VOCABULARY = 10_000
SYSTEMS = ("zero-0.6", "zero-0.45", "zero-0.75")
"""If there is no time for all, the last ones are left out."""
FROM_BASELINE = ("train.teacher.model=init",)
"""The teacher is the model that a run starts from."""
TEACHER_COST = 1.35
"""The time of a fine-tuning step over that of a step of the baseline: the teacher reads the batch too."""
START_SECONDS = 20.0
"""Until the first step of a run."""
RESERVED = 0.85
"""The share of the time that steps are planned for: a run that the limit stops cannot be compared with longer ones."""
FEWEST_STEPS = 700
"""With fewer steps for each, fewer systems are trained."""
SLOWEST_ALONE = 0.03
"""Seconds per step of the baseline above which other processes are taken to slow it down."""


class EuroparlDocuments(Study):
    """Gated models on long sources, all distilled from the baseline, as is the continued baseline."""

    what = "Europarl English-German documents, cased BLEU"
    base_recipe = RECIPES / "europarl-documents-base.yaml"
    sparse_recipe = RECIPES / "europarl-documents-target60.yaml"
    endings = ("en", "de")
    margin = 0.5

    def __init__(self, options: Options, gated: Sequence[str] = SYSTEMS) -> None:
        tokenizer = f"tokenizer.pretrained={options.data / 'tokenizer'}"
        super().__init__(replace(options, distil="token", baseline=[tokenizer, *options.baseline]))
        self.gated = gated
        self.documents = Documents.read(options.data / "documents.json")

    def systems(self) -> list[SystemRecipe]:
        found = []
        for name in self.gated:
            gating, _, target = name.partition("-")
            found.append(at_target(name, float(target), f"l0drop.gating={gating}", *FROM_BASELINE))
        return found

    def reference(self) -> SystemRecipe:
        return SystemRecipe(ON, (*UNGATED, *FROM_BASELINE))

    def gather(self) -> StudyResults:
        found = super().gather()
        lengths = self.lengths(found)
        lengths.write(self.runs / "lengths.json")
        if lengths.rows:
            tables = [table(lengths) for table in (lengths_table, controls_table, examples_table)]
            self.console.print(in_text(tables), highlight=False, markup=False, soft_wrap=True)
        return found

    def lengths(self, found: StudyResults) -> LengthScores:
        """The finished runs by length, and the differences of systems over baselines."""
        rows, over = [], []
        steps = {(name, run.seed): run.steps for name, system in found.systems.items() for run in system.runs}
        for split in SPLITS:
            references = list(read_lines(self.given(f"data.{split}.target")))
            outputs = {run: list(read_lines(self.outputs(*run, split))) for run in steps}
            for length, lines in self.documents.lines(split).items():
                refs = references[lines]
                counts = {run: statistics("bleu", texts[lines], refs) for run, texts in outputs.items()}
                for name in found.systems:
                    seeds = [seed for other, seed in steps if other == name]
                    compared = [seed for seed in seeds if name != ON and self.is_alike(steps, name, seed)]
                    for seed in seeds:
                        texts = outputs[name, seed][lines]
                        sources = self.sources(name, seed)
                        difference = None
                        if seed in compared:
                            pair = counts[name, seed], counts[ON, seed]
                            difference = compare(*pair, self.margin, unit="document")
                        row = LengthScore(
                            system=name,
                            split=split,
                            length=int(length),
                            examples=len(refs),
                            source_tokens=self.documents.source_tokens[split][length],
                            score=bleu(texts, refs),
                            sparsity=None if sources is None else sources.sparsity.get(split, {}).get(length),
                            controls=control_scores(texts, refs, None if sources is None else sources.empty),
                            difference=difference,
                            seed=seed,
                        )
                        rows.append(row)
                    if len(compared) > 1:
                        pairs = [(counts[name, seed], counts[ON, seed]) for seed in compared]
                        both = compare_over_baselines(pairs, compared, self.margin, unit="document")
                        over.append(LengthDifference(name, split, int(length), both))
        return LengthScores(self.what, rows, over)

    @staticmethod
    def is_alike(steps: Mapping[tuple[str, int], int | None], system: str, seed: int) -> bool:
        """Whether a run was trained for as many steps as the continued baseline of its seed, unless it is the start."""
        return (ON, seed) in steps and (system == BASE or steps[system, seed] == steps[ON, seed])

    def outputs(self, system: str, seed: int, split: str) -> Path:
        return RunFolder(self.run_of(system, seed)).outputs / f"{split}.txt"

    def sources(self, system: str, seed: int) -> Sources | None:
        file = self.run_of(system, seed) / "sources.json"
        return Sources.read(file) if file.exists() else None

    def read_sources(self, system: str) -> None:
        """Measure the sparsity of a finished run by length, and decode an empty source."""
        run = self.run_of(system)
        settings = generation_of(load_recipe(RunFolder(run).recipe))
        texts = {split: list(read_lines(self.given(f"data.{split}.source"))) for split in SPLITS}
        together = [text for found in texts.values() for text in found]
        quick = {**settings, "num_beams": 1, "max_new_tokens": 1}
        read = outputs_of(System(run), together, quick)
        sparsity: dict[str, dict[str, float]] = {}
        if read.pieces is not None:
            start = 0
            for split, found in texts.items():
                pieces = read.pieces[start : start + len(found)]
                start += len(found)
                for length, lines in self.documents.lines(split).items():
                    share = replace(read, pieces=pieces[lines]).sparsity
                    assert share is not None
                    sparsity.setdefault(split, {})[length] = share
        empty = outputs_of(System(run), ["."], settings, empty_source=True).without_source
        Sources(empty or "", sparsity).write(run / "sources.json")

    @staticmethod
    def tables(found: StudyResults) -> list[Table]:
        return [single_table(found)]


@dataclass(frozen=True)
class Limits:
    """The seconds for the baseline and for all others; the number of other processes that use the GPU."""

    baseline: float
    others: float
    beside: int = 0

    def steps(self, baseline_step: float, side_by_side: int) -> int:
        """The steps of runs side by side, from the seconds of a step of the baseline.

        Alone, the baseline fills the GPU, and runs share it. Beside other processes it had a share already.
        """
        alone = min(1.0, SLOWEST_ALONE / baseline_step)
        shared = alone * side_by_side + (1 - alone) * (self.beside + side_by_side) / (self.beside + 1)
        return max(1, int(RESERVED * (self.others - START_SECONDS) / (baseline_step * TEACHER_COST * shared)))


def train_within(options: Options, gated: Sequence[str], limits: Limits) -> Options:
    """Train the baseline, then all others side by side; returns the options with the numbers of steps.

    A run that fails leaves its error in its `output.txt`, and the others go on.
    """
    study = EuroparlDocuments(options, gated)
    base = RunFolder(study.run_of(BASE))
    (baseline,) = (recipe for recipe in study.plan() if recipe.name == study.run_of(BASE).name)
    prepare(baseline, study.runs)
    end = time.monotonic() + limits.baseline
    process = _started(options, gated, BASE, limits.baseline)
    if not _waited(study, process):  # perhaps because of captured steps or compiled layers
        left = max(0.0, end - time.monotonic())
        plain = ["train.capture=false", "train.compile=false"]
        options = replace(options, baseline=[*options.baseline, *plain], fine_tune=[*options.fine_tune, *plain])
        for path in (base.checkpoints, base.log, base.recipe):
            _remove(path)
        process = _started(options, gated, BASE, left)
        if not _waited(study, process):
            raise SystemExit(f"{base.path}: failed, see {base.process_output}")
    reached = load_recipe(base.recipe).train.steps
    step_seconds = base.train_seconds() / reached
    names = [ON, *gated]
    while len(names) > 2 and limits.steps(step_seconds, len(names)) < FEWEST_STEPS:
        names.pop()
    steps = limits.steps(step_seconds, len(names))
    study.console.print(f"baseline: {reached} steps of {1000 * step_seconds:.0f} ms; {', '.join(names)}: {steps} steps")
    options = replace(
        options,
        baseline=[*options.baseline, f"train.steps={reached}"],
        fine_tune=[*options.fine_tune, f"train.steps={steps}"],
    )
    processes = [process, *(_started(options, gated, name, limits.others) for name in names)]
    for one in processes:
        one.join()
    return options


def _waited(study: EuroparlDocuments, process: BaseProcess) -> bool:
    """Wait until the baseline's model is written, while it may still be scored; whether it is."""
    model = RunFolder(study.run_of(BASE)).model
    while process.is_alive() and not model.exists():
        time.sleep(0.2)
    return model.exists()


def _started(options: Options, gated: Sequence[str], system: str, seconds: float) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=_train_one, args=(options, gated, system, seconds))
    process.start()
    return process


def _train_one(options: Options, gated: Sequence[str], system: str, seconds: float) -> None:
    """Train one system in its own process, for this time at most, and read its sources."""
    started = time.monotonic()
    study = EuroparlDocuments(options, gated)
    (recipe,) = (recipe for recipe in study.plan() if recipe.name == study.run_of(system).name)
    folder = open_run(recipe, study.runs)
    with RunFolder(folder).process_output.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    quiet_libraries()
    try:
        train_for(recipe, study.runs, seconds - (time.monotonic() - started))
        study.read_sources(system)
    except BaseException:
        traceback.print_exc()
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    parser = parser_of(EuroparlDocuments, __doc__, Path("runs/europarl-documents"))
    parser.add_argument("--gated", nargs="*", default=SYSTEMS, metavar="GATING-TARGET", help="gated models to train")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="subwords of the tokenizer")
    parser.add_argument("--lengths", nargs=2, type=int, default=(WINDOW, JOINED), help="the longest examples")
    parser.add_argument("--seconds", nargs=2, type=float, metavar=("BASE", "FINE"), help="time limits for training")
    parser.add_argument("--others", type=int, default=0, help="other processes on the GPU, with --seconds")
    parser.set_defaults(seeds=1)

    def study(arguments: argparse.Namespace) -> EuroparlDocuments:
        text = arguments.runs / "text"
        write_documents(arguments.data, text, EuroparlDocuments.endings, arguments.vocabulary, *arguments.lengths)
        options = replace(options_of(arguments), data=text)
        if arguments.seconds is not None and not arguments.gather:
            options = train_within(options, arguments.gated, Limits(*arguments.seconds, arguments.others))
            arguments.gather = True
        return EuroparlDocuments(options, arguments.gated)

    carry_out(EuroparlDocuments, parser, study)


if __name__ == "__main__":
    main()
