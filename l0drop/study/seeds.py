"""Several systems, each trained with several seeds: run them side by side, gather what they say, compare.

Every run is an ordinary one, named SYSTEM-sSEED. Each system is compared with the one called `on`, the baseline trained
on, seed by seed, with intervals over seeds and sentences.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import yaml
from rich.console import Console

from l0drop.recipe import Recipe, TextCorpus, load_recipe
from l0drop.study.parallel import train_in_parallel
from l0drop.study.significance import compare, compare_over_seeds
from l0drop.study.significance import statistics as statistics_of
from l0drop.study.sweep import is_finished
from l0drop.training.assemble import build_tokenizers, references
from l0drop.training.run import open_run, prepare

ON = "on"
"""The baseline trained on: what every system is compared with."""
SAID = ("steps", "lambda", "calibration", "valid", "test")
"""Taken over from a run's `metrics.json`."""
ONE_SEED = "one_seed"
"""Where a system of one seed has its comparisons, by the system it is compared with."""
Then = Mapping[tuple[str, ...], Callable[[], None]]
"""What to do once the runs of these names are there."""
PROVENANCE = ("commit", "device", "torch", "transformers", "python", "threads")


def text_in(folder: Path, source: str, target: str) -> list[str]:
    """Overrides that put a recipe's corpora into a folder: train, valid and test, ending in the two languages."""
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
    """Train what is missing of these, so many at a time, each as soon as the runs that it builds on are there.

    Text is prepared before, once for all that share it. then: what to do beside the others once some runs are there,
    such as to translate text that others wait for, one after the other. more: recipes that can only be written once a
    run is there, and start from another one.
    """
    to_come = dict(more or {})

    def missing_of(wanted: Iterable[Recipe]) -> list[Recipe]:
        return [recipe for recipe in wanted if not is_finished(runs, open_run(recipe, runs).name)]

    def brought_by(name: str) -> list[Recipe]:
        return missing_of(to_come.pop(name)()) if name in to_come else []

    missing = missing_of(recipes)
    missing += [recipe for name in list(to_come) if is_finished(runs, name) for recipe in brought_by(name)]
    followed = {name for names in then or {} for name in names} | {*to_come}
    _check_nothing_is_waited_for_in_vain(missing, runs, followed)
    first: dict[str, Recipe] = {}
    for recipe in missing:
        if recipe.model.init is None:  # what starts from another run reads that run's text
            leader = first.setdefault(_text_of(recipe), recipe)
            if leader is recipe:
                prepare(recipe, runs, console)
            else:
                _share(runs / leader.name, runs / recipe.name)
    with _Beside(runs, then or {}) as beside:
        for name in train_in_parallel(
            missing, runs, parallel, threads, console, lambda name, seconds: None, beside.ready, brought_by, beside.busy
        ):
            console.print(f"{name} is done")
            beside.begin()


class _Beside:
    """What is done beside training once some runs are there, in a thread; and which recipes can start.

    runs: the folder of all of them. then: what to do, by the names of the runs.
    """

    def __init__(self, runs: Path, then: Then) -> None:
        self.runs, self.to_come = runs, dict(then)
        self.begun: list[Future[None]] = []
        self.thread = ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.raise_what_failed()

    def begin(self) -> None:
        """Take on what waited for runs that are there."""
        for names in [names for names in self.to_come if all(is_finished(self.runs, name) for name in names)]:
            self.begun.append(self.thread.submit(self.to_come.pop(names)))

    def busy(self) -> bool:
        return not all(task.done() for task in self.begun)

    def raise_what_failed(self) -> None:
        for task in self.begun:
            if task.done():
                task.result()

    def ready(self, recipe: Recipe) -> bool:
        """Whether all it builds on is there; what is not may still be written by what is done beside.

        Where that failed, its error ends all: the recipe would wait for ever. If nobody waits, it comes at the end.
        """
        if not all(is_finished(self.runs, name) for name in builds_on(recipe, self.runs)):
            return False
        if all(Path(path).exists() for path in _reads(recipe)):
            return True
        self.raise_what_failed()
        return not self.to_come and not self.busy()


def builds_on(recipe: Recipe, runs: Path) -> list[str]:
    """The runs of this folder that it starts from or is taught by."""
    teacher = recipe.train.teacher
    models = [recipe.model.init, None if teacher is None or teacher.model == "init" else teacher.model]
    return [Path(model).name for model in models if model is not None and Path(model).parent == runs]


def _reads(recipe: Recipe) -> list[str]:
    """The files and folders it cannot start without: its training text, and the model it starts from."""
    text = recipe.data.train
    files = (text.source, text.target) if isinstance(text, TextCorpus) else ()
    return [path for path in (*files, recipe.model.init) if path is not None]


def _check_nothing_is_waited_for_in_vain(missing: Sequence[Recipe], runs: Path, followed: Collection[str]) -> None:
    trained = {recipe.name for recipe in missing}
    waited = dict.fromkeys(followed, "what follows it")
    waited |= {name: recipe.name for recipe in missing for name in builds_on(recipe, runs)}
    for name, by in waited.items():
        if name not in trained and not is_finished(runs, name):
            raise ValueError(f"{runs / name}: {by} waits for it, and it is neither there nor to be trained")


def _text_of(recipe: Recipe) -> str:
    return json.dumps([recipe.data.model_dump(mode="json"), recipe.tokenizer.model_dump(mode="json")], sort_keys=True)


def _share(leader: Path, follower: Path) -> None:
    for part in ("tokenizer_target", "tokenizer", "data"):  # the first only where vocabularies are separate
        if (leader / part).exists() and not (follower / part).exists():
            (follower / part).symlink_to(Path("..", leader.name, part), target_is_directory=True)


def gather(
    runs: Path, names: Iterable[str], what: str, margin: float, beside: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the finished ones of these runs say, by system, and how each differs from the baseline trained on.

    margin: the loss of BLEU that is small enough to accept. beside: which other system one is compared with as well.
    A system of one seed is compared over sentences alone (`one_seed`). No text of the data is in it.
    """
    systems: dict[str, dict[str, Any]] = {}
    outputs: dict[str, list[Any]] = {}
    truth: list[str] = []
    for name in (name for name in names if is_finished(runs, name)):
        folder, system = runs / name, name.rpartition("-s")[0]
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
        if not truth:
            read = load_recipe(folder / "recipe.yaml")
            truth = references(read, build_tokenizers(read, folder, lambda text: None), "test")
        about = {key: recipe.pop(key) for key in ("name", "seed", "about")}
        provenance = {key: metrics[key] for key in PROVENANCE}
        # of one seed: the others differ in seed, name and model.init
        entry = systems.setdefault(system, {"recipe": recipe, "provenance": provenance, "runs": []})
        log = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
        # several where it was stopped in between; of a part that was killed nothing is known
        run = {"seed": about["seed"], "train_seconds": sum(line.get("train_runtime", 0.0) for line in log)}
        run |= {key: metrics[key] for key in SAID if key in metrics}
        if (folder / "dial.json").exists():
            run["dial"] = json.loads((folder / "dial.json").read_text(encoding="utf-8"))["rows"]
        entry["runs"].append(run)
        text = (folder / "outputs" / "test.txt").read_bytes()
        run["outputs_sha256"] = hashlib.sha256(text).hexdigest()  # whether a run that is repeated is the same
        lines = text.decode("utf-8").splitlines()
        outputs.setdefault(system, []).append((about["seed"], statistics_of("bleu", lines, truth)))
    for system, found in outputs.items():
        others = {ON: reference_of(system, outputs)} if system != ON else {}
        if beside and system in beside:
            others[beside[system]] = beside[system]
        for name, other in others.items():
            theirs = dict(outputs.get(other, []))
            pairs = [(ours, theirs[seed]) for seed, ours in found if seed in theirs]
            if len(pairs) == 1 and len(found) == 1:
                systems[system].setdefault(ONE_SEED, {})[name] = compare(*pairs[0], margin).as_json()
            elif len(pairs) > 1 and name == ON:
                systems[system]["against_on"] = compare_over_seeds(pairs, margin).as_json()
    return {"what": what, "systems": systems}


def reference_of(system: str, systems: Collection[str]) -> str:
    """The baseline trained on that a system is compared with: the one trained on in its way, such as `on-long` for
    `zero-0.5-long`, where there is one."""
    own = f"{ON}-{system.rpartition('-')[2]}"
    return own if own in systems and own != system else ON
