"""One run from its recipe to its folder: prepare, train or resume, average, calibrate, save, score.

runs/NAME/  recipe.yaml  tokenizer/  data/  checkpoints/  log.jsonl  model/  outputs/  metrics.json
"""

import shutil
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.data import hints
from l0drop.data.clips import ClipCorpus
from l0drop.data.held_out import held_out_counts
from l0drop.data.text import one_line
from l0drop.data.tokenizer import TokenizerPair
from l0drop.data.whole import locked, whole_folder, write_whole
from l0drop.decoding.corpus import described_decoding
from l0drop.decoding.folder import first_line, generation_of
from l0drop.decoding.speech import BATCH_CLIPS
from l0drop.models.quiet import quiet_libraries
from l0drop.recipe import Recipe, RecipeError, dump_recipe, load_recipe
from l0drop.runs.checkpoint import STATE
from l0drop.runs.processes import is_lost_peer, joined_processes
from l0drop.runs.provenance import provenance
from l0drop.runs.run import CalibrationRecord, GateRates, RunFolder, RunMetrics, Scored, Split
from l0drop.runs.sweep import SweepFolder
from l0drop.training.assemble import build_model, teacher_name
from l0drop.training.averaging import averaged
from l0drop.training.bars import Bars
from l0drop.training.callbacks import Interruption, LogFile
from l0drop.training.checkpoints import (
    WEIGHTS,
    TrainingError,
    check_files,
    checkpoints,
    clear_staging,
    is_resumable,
    step_of,
)
from l0drop.training.corpora import build_corpora, build_tokenizers, has_teacher_outputs, references
from l0drop.training.examples import RunCorpus
from l0drop.training.inputs import check_inputs
from l0drop.training.speech import build_clips, build_extractor
from l0drop.training.steering import calibrated
from l0drop.training.step_lines import StepLines
from l0drop.training.trainer import L0DropTrainer

RUNS = Path("runs")


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; a checkpoint was saved."""


def open_run(recipe: Recipe, runs: Path = RUNS) -> Path:
    """The run's folder, with its recipe; raises RecipeError if the folder belongs to another recipe.

    The recipe of a run that failed before it wrote anything else is replaced.
    """
    folder = runs / recipe.name
    file = RunFolder(folder).recipe
    if file.exists():
        different = _differences(load_recipe(file).model_dump(), recipe.model_dump()) - {"about"}
        if different and not _is_unused(folder):
            raise RecipeError(
                f"{folder}: this folder holds a run of another recipe (different: {', '.join(sorted(different))}); "
                "choose another `name` in the recipe, or delete the folder"
            )
        if not different:
            return folder
    write_whole(file, dump_recipe(recipe))
    return folder


def _is_unused(folder: Path) -> bool:
    """Whether a folder, and every run folder inside it, holds no more than a recipe and files of failed attempts."""
    run, sweep = RunFolder(folder), SweepFolder(folder)
    leftovers = (run.recipe.name, run.process_output.name, sweep.timings.name)
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return all(path.name in leftovers or path.name.startswith(".") for path in files)


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = one.keys() | other.keys()
        return set().union(*(_differences(one.get(k), other.get(k), f"{path}.{k}".lstrip(".")) for k in keys))
    return set() if one == other else {path}


def prepare(
    recipe: Recipe, runs: Path = RUNS, console: Console | None = None
) -> tuple[Path, TokenizerPair, dict[str, RunCorpus]]:
    """Tokenizer and corpora of a run; the main process of each machine makes them while the others wait."""
    check_inputs(recipe, runs / recipe.name)
    return _prepare(recipe, runs, console or Console(stderr=True))


def _prepare(recipe: Recipe, runs: Path, console: Console) -> tuple[Path, TokenizerPair, dict[str, RunCorpus]]:
    quiet_libraries()
    processes = joined_processes()
    bars = Bars(console, processes.is_main_process)

    def say(text: str) -> None:
        if processes.is_main_process:
            console.print(text, style="dim", highlight=False, markup=False)

    with processes.main_process_first():
        folder = open_run(recipe, runs)
        tokenizers = build_tokenizers(recipe, folder, say, bars)
        corpora: dict[str, RunCorpus] = {}
        if recipe.is_audio:
            corpora |= build_clips(recipe, folder, tokenizers, bars)
        else:
            corpora |= build_corpora(recipe, folder, tokenizers, say, bars)
    return folder, tokenizers, corpora


def train(recipe: Recipe, runs: Path = RUNS, console: Console | None = None) -> RunMetrics:
    """Train a recipe, or resume its run, and return its results.

    If another process is training it, wait for that one.
    """
    console = console or Console(stderr=True)
    check_inputs(recipe, runs / recipe.name)  # before the lock, which creates the folder
    main = joined_processes().is_main_process
    with locked(runs / recipe.name / "run") if main else nullcontext():
        return _train(recipe, runs, console)


def _train(recipe: Recipe, runs: Path, console: Console) -> RunMetrics:
    folder, tokenizers, corpora = _prepare(recipe, runs, console)
    if RunFolder(folder).is_finished:
        return RunMetrics.read(RunFolder(folder).metrics)
    bars = Bars(console, joined_processes().is_main_process)
    valid = _references(recipe, tokenizers, corpora, "valid", bars)
    model, teacher = build_model(recipe, tokenizers)
    if recipe.train.compile:
        torch.compiler.reset()  # code left by an earlier run of this process was compiled at other shapes
    interruption, lines = Interruption(), StepLines(recipe, bars)
    callbacks = [LogFile(RunFolder(folder).log), lines, interruption]
    trainer = L0DropTrainer(recipe, model, corpora, valid, tokenizers, folder, teacher, callbacks, bars)
    try:
        _train_or_resume(trainer)
    except Exception as error:
        if (told := _explained(error, trainer)) is not None:
            raise told from error
        raise
    finally:
        lines.close()
        interruption.restore()
    if interruption.asked and trainer.state.global_step < recipe.train.steps:
        raise Interrupted(
            f"stopped at step {trainer.state.global_step} of {recipe.train.steps}, with a checkpoint; "
            "run the same command again to resume"
        )
    metrics = _finish(trainer, folder, tokenizers, bars)
    if metrics.calibration is not None and metrics.calibration.warning is not None and trainer.args.should_save:
        console.print(f"[yellow]{metrics.calibration.warning}[/]")
    if (used := len(metrics.checkpoints)) < recipe.train.average and trainer.args.should_save:
        console.print(
            f"[yellow]the model is the mean of {used} checkpoints, not of {recipe.train.average} (train.average): no "
            f"more were saved, one every {recipe.train.save_every} steps (train.save_every)[/]",
            soft_wrap=True,
        )
    return metrics


def _references(
    recipe: Recipe, tokenizers: TokenizerPair, corpora: dict[str, RunCorpus], split: str, bars: Bars
) -> list[str]:
    """The target texts of a split; none for one without targets."""
    corpus = corpora[split]
    if isinstance(corpus, ClipCorpus):
        return [corpus.text(index) for index in range(len(corpus))]
    return [] if corpus.target_lengths is None else references(recipe, tokenizers, split, bars)


def _train_or_resume(trainer: L0DropTrainer) -> None:
    if trainer.args.should_save:
        clear_staging(trainer.checkpoint_folder)
    last = checkpoints(trainer.checkpoint_folder)[-1:]
    if last:
        # an older checkpoint has lost its optimizer's state
        check_files(last[0], None if is_resumable(last[0]) else (WEIGHTS, STATE))
        trainer.restore(last[0])
        if trainer.resume_state.stopped_early or step_of(last[0]) >= trainer.recipe.train.steps:
            trainer._load_from_checkpoint(str(last[0]))
            return
        if not is_resumable(last[0]):
            raise TrainingError(
                f"{last[0]} has no optimizer state, which only the newest checkpoint keeps; was a newer one deleted? "
                f"Delete {trainer.checkpoint_folder} to start again"
            )
    trainer.train(resume_from_checkpoint=str(last[0]) if last else None)


def _explained(error: Exception, trainer: L0DropTrainer) -> TrainingError | None:
    """The error of a run in words with a remedy, if its cause is outside the program."""
    step, last = trainer.state.global_step, checkpoints(trainer.checkpoint_folder)[-1:]
    resumed = f"the last checkpoint is {last[0]}" if last else "there is no checkpoint yet"
    if is_out_of_memory(error):
        size = "train.batch_clips" if trainer.recipe.is_audio else "train.batch_tokens"
        return TrainingError(
            f"out of memory at step {step + 1} ({first_line(error)}); {resumed}. Lower {size}, or raise "
            "train.accumulation (less memory, the same gradient), and train under another `name` of the recipe"
        )
    if is_lost_peer(error):
        return TrainingError(
            f"another process of this run ended at step {step + 1} ({first_line(error)}); {resumed}. Its own message "
            "says why; run the same command again to resume"
        )
    return None


def _finish(trainer: L0DropTrainer, folder: Path, tokenizers: TokenizerPair, bars: Bars) -> RunMetrics:
    """Average, calibrate, save and score."""
    recipe, model = trainer.recipe, trainer.model
    used = checkpoints(trainer.checkpoint_folder)[-recipe.train.average :]
    if recipe.train.average > 1:
        for checkpoint in used:
            check_files(checkpoint, [WEIGHTS])
        _, unexpected = model.load_state_dict(averaged(used), strict=False)
        assert not unexpected, unexpected
        model.tie_weights()
    model.eval()
    metrics = RunMetrics(
        name=recipe.name,
        steps=step_of(used[-1]),
        checkpoints=[path.name for path in used],
        seed=recipe.seed,
        dtype=recipe.train.precision,
        decoding=_described_decoding(recipe),
        lambda_=model.lambda_ if trainer.gated else None,
        corpora={split: corpus.summary for split, corpus in trainer.corpora.items()},
        held_out=held_out_counts(recipe.data),
        made_by=provenance(trainer.args.device),
    )
    if trainer.gated and recipe.l0drop is not None and recipe.l0drop.target_sparsity is not None:
        fixed = recipe.train.fixed_from is not None
        made = model.calibration if fixed else calibrated(model, trainer.held_out())
        assert made is not None
        warning = None if fixed and made.met else made.warning  # the decoder has learned with fixed gates since
        record = CalibrationRecord(**asdict(made), met=made.met, warning=warning)
        metrics = replace(metrics, calibration=record)
    if trainer.args.should_save:
        with locked(RunFolder(folder).model), whole_folder(RunFolder(folder).model) as partial:
            model.save_pretrained(partial)
            tokenizers.source.save_pretrained(partial)
            if not tokenizers.shared:
                tokenizers.target.save_pretrained(partial / "tokenizer_target")
            if recipe.is_audio:
                build_extractor(recipe, folder)[0].save_pretrained(partial)
            if (folder / hints.FILE).exists():  # a rule's model makes hints from text wherever it is copied
                shutil.copy(folder / hints.FILE, partial)
    metrics = replace(
        metrics,
        valid=_scored(trainer, folder, "valid", tokenizers, bars),
        test=_scored(trainer, folder, "test", tokenizers, bars),
    )
    if trainer.args.should_save:
        metrics.write(RunFolder(folder).metrics)
    trainer.accelerator.wait_for_everyone()
    return metrics


def _described_decoding(recipe: Recipe) -> dict[str, Any]:
    described = described_decoding(recipe.evaluate.batch_tokens, generation_of(recipe))
    if recipe.is_audio:
        del described["batch_tokens"]
        described["batch_clips"] = BATCH_CLIPS
    return described


def _scored(trainer: L0DropTrainer, folder: Path, split: Split, tokenizers: TokenizerPair, bars: Bars) -> Scored | None:
    """Decode a split, write its outputs, and return its scores; None for a split without targets."""
    if split not in trainer.corpora or trainer.corpora[split].target_lengths is None:
        return None
    is_known = split == "valid"
    recipe, corpora = trainer.recipe, dict(trainer.corpora)
    texts = trainer.references if is_known else _references(recipe, tokenizers, corpora, split, bars)
    score, meter, outputs = trainer.scoring.score(split, texts)
    if trainer.args.should_save:
        write_whole(RunFolder(folder).outputs_on(split), "".join(one_line(output) + "\n" for output in outputs))
    gates = None
    if trainer.gated:
        rates = (meter.sparsity, meter.expected_open_rate, meter.exactly_zero, meter.exactly_one, meter.between)
        gates = GateRates(*rates)
    return Scored(
        score,
        len(texts),
        references=f"outputs of {teacher_name(recipe)}" if has_teacher_outputs(recipe, split) else None,
        gates=gates,
    )
