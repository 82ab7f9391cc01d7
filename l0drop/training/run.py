"""One run from its recipe to its folder: prepare, train or go on, average, calibrate, score.

runs/NAME/  recipe.yaml  tokenizer/  data/  checkpoints/  log.jsonl  model/  outputs/  metrics.json
"""

import json
import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from l0drop.core.penalty import SteeredLambda
from l0drop.data import hints
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.tokenizer import TokenizerPair
from l0drop.data.whole import locked, whole_folder, write_whole
from l0drop.models.quiet import quiet_libraries
from l0drop.recipe import Recipe, RecipeError, dump_recipe, load_recipe
from l0drop.runs.processes import joined_processes
from l0drop.runs.provenance import provenance
from l0drop.training.assemble import (
    Progress,
    build_corpora,
    build_model,
    build_tokenizers,
    references,
    split_text,
)
from l0drop.training.averaging import averaged
from l0drop.training.callbacks import Bar, Interruption, LogFile
from l0drop.training.checkpoints import checkpoints, clear_staging, is_resumable, step_of
from l0drop.training.settings import decoding
from l0drop.training.teacher import TeacherText
from l0drop.training.trainer import L0DropTrainer, TrainingError

RUNS = Path("runs")


class Interrupted(Exception):  # noqa: N818
    """The user stopped the run; a checkpoint is there."""


def open_run(recipe: Recipe, runs: Path = RUNS) -> Path:
    """The run's folder, with its recipe; ValueError where the folder belongs to another recipe."""
    folder = runs / recipe.name
    file = folder / "recipe.yaml"
    if file.exists():
        stored = load_recipe(file)
        if stored != recipe:
            different = sorted(_differences(stored.model_dump(), recipe.model_dump()))
            raise RecipeError(
                f"{folder}: this folder holds a run of another recipe (different: {', '.join(different)}); "
                "choose another name (--set name=...) or delete the folder"
            )
    else:
        write_whole(file, dump_recipe(recipe))
    return folder


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = one.keys() | other.keys()
        return set().union(*(_differences(one.get(k), other.get(k), f"{path}.{k}".lstrip(".")) for k in keys))
    return set() if one == other else {path}


def prepare(
    recipe: Recipe,
    runs: Path = RUNS,
    console: Console | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> tuple[Path, TokenizerPair, dict[str, TokenizedCorpus]]:
    """Tokenizer and corpora of a run; the main process of each machine makes them, the others wait."""
    quiet_libraries()
    console = console or Console(stderr=True)
    processes = joined_processes()
    say = (lambda text: console.print(f"[dim]{text}[/]")) if processes.is_main_process else (lambda text: None)
    with processes.main_process_first():
        folder = open_run(recipe, runs)
        tokenizers = build_tokenizers(recipe, folder, say)
        corpora = build_corpora(recipe, folder, tokenizers, say, progress)
    return folder, tokenizers, corpora


def train(recipe: Recipe, runs: Path = RUNS, console: Console | None = None) -> dict[str, Any]:
    """Train a recipe, or go on with it, and return what `metrics.json` says.

    Where another process is training it, wait for that one.
    """
    console = console or Console(stderr=True)
    main = joined_processes().is_main_process
    with locked(runs / recipe.name / "run") if main else nullcontext():
        return _train(recipe, runs, console)


def _train(recipe: Recipe, runs: Path, console: Console) -> dict[str, Any]:
    folder, tokenizers, corpora = prepare(recipe, runs, console)
    if (folder / "metrics.json").exists():
        return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    valid = [] if corpora["valid"].target_lengths is None else references(recipe, tokenizers, "valid")
    model, teacher = build_model(recipe, tokenizers)
    if recipe.l0drop is not None and recipe.l0drop.target_sparsity is not None:
        rise = round(recipe.train.steer_over * recipe.train.steps)
        wait = rise if recipe.model.transformer is not None else 0
        target, gain = recipe.l0drop.target_sparsity, recipe.train.steer_gain
        model.schedule = SteeredLambda(target, ki=gain, wait=wait, ramp=rise)
    if recipe.train.compile:
        torch.compiler.reset()  # code that an earlier run of this process has left was made at other shapes
    interruption, bar = Interruption(), Bar(recipe.name, console)
    trainer = L0DropTrainer(
        recipe, model, corpora, valid, tokenizers, folder, teacher, [LogFile(folder / "log.jsonl"), bar, interruption]
    )
    try:
        _train_or_go_on(trainer)
    finally:
        bar.close()
        interruption.restore()
    if interruption.asked and trainer.state.global_step < recipe.train.steps:
        raise Interrupted(
            f"stopped at step {trainer.state.global_step} of {recipe.train.steps}, with a checkpoint; "
            "the same command goes on from there"
        )
    metrics = _finish(trainer, folder)
    if "warning" in metrics.get("calibration", {}) and trainer.args.should_save:
        console.print(f"[yellow]{metrics['calibration']['warning']}[/]")
    if (used := len(metrics["checkpoints"])) < recipe.train.average and trainer.args.should_save:
        console.print(
            f"[yellow]the model is the mean of {used} checkpoints, not of {recipe.train.average} (train.average): no "
            f"more were saved, one every {recipe.train.save_every} steps (train.save_every)[/]"
        )
    return metrics


def _train_or_go_on(trainer: L0DropTrainer) -> None:
    if trainer.args.should_save:
        clear_staging(trainer.checkpoint_folder)
    last = checkpoints(trainer.checkpoint_folder)[-1:]
    if last:
        trainer.restore(last[0])
        if trainer.progress.stopped_early or step_of(last[0]) >= trainer.recipe.train.steps:
            trainer._load_from_checkpoint(str(last[0]))
            return
        if not is_resumable(last[0]):
            raise TrainingError(
                f"{last[0]} has no optimizer state, which the newest checkpoint alone keeps; was a newer one removed? "
                f"Remove {trainer.checkpoint_folder} to start again"
            )
    trainer.train(resume_from_checkpoint=str(last[0]) if last else None)


def _finish(trainer: L0DropTrainer, folder: Path) -> dict[str, Any]:
    """Average, calibrate, score and save."""
    recipe, model = trainer.recipe, trainer.model
    used = checkpoints(trainer.checkpoint_folder)[-recipe.train.average :]
    if recipe.train.average > 1:
        _, unexpected = model.load_state_dict(averaged(used), strict=False)
        assert not unexpected, unexpected
        model.tie_weights()
    model.eval()
    metrics: dict[str, Any] = {
        "name": recipe.name,
        "steps": step_of(used[-1]),
        "checkpoints": [path.name for path in used],
        "seed": recipe.seed,
        "dtype": recipe.train.precision,
        "decoding": decoding(recipe),
    }
    if trainer.gated:
        metrics["lambda"] = model.lambda_
    if trainer.gated and recipe.l0drop is not None and recipe.l0drop.target_sparsity is not None:
        valid = trainer.corpora["valid"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the warning goes into metrics.json and to the console
            # force: hours of training must not be lost because the target was missed
            calibration = model.calibrate(trainer.encoder_batches(valid, len(valid)), force=True)
        metrics["calibration"] = {**asdict(calibration), "met": calibration.met}
        if calibration.warning is not None:
            metrics["calibration"]["warning"] = calibration.warning
    for split in ("valid", "test"):
        if split in trainer.corpora and trainer.corpora[split].target_lengths is not None:
            texts = references(recipe, trainer.tokenizers, split)
            text = split_text(recipe, split, trainer.tokenizers)
            score, meter, outputs = trainer.score(split, texts, len(texts))
            metrics[split] = {"score": score.as_json(), "sentences": len(texts)}
            if isinstance(text, TeacherText):
                metrics[split]["references"] = f"outputs of {text.identity['model']}"
            if trainer.args.should_save:
                lines = (" ".join(output.splitlines()) + "\n" for output in outputs)
                write_whole(folder / "outputs" / f"{split}.txt", "".join(lines))
            if trainer.gated:
                metrics[split] |= {
                    "sparsity": meter.sparsity,
                    "expected_open_rate": meter.expected_open_rate,
                    "gates_exactly_zero": meter.exactly_zero,
                    "gates_exactly_one": meter.exactly_one,
                    "gates_between": meter.between,
                }
    metrics["corpora"] = {split: asdict(corpus.summary) for split, corpus in trainer.corpora.items()}
    metrics |= provenance(trainer.args.device)
    if trainer.args.should_save:
        with locked(folder / "model"), whole_folder(folder / "model") as partial:
            model.save_pretrained(partial)
            trainer.tokenizers.source.save_pretrained(partial)
            if not trainer.tokenizers.shared:
                trainer.tokenizers.target.save_pretrained(partial / "tokenizer_target")
            if (folder / hints.FILE).exists():  # a rule's model makes its hints from text wherever it goes
                shutil.copy(folder / hints.FILE, partial)
        write_whole(folder / "metrics.json", json.dumps(metrics, indent=1) + "\n")
    trainer.accelerator.wait_for_everyone()
    return metrics
