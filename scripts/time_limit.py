"""Training for a number of seconds, on a machine that is available for a limited time."""

import os
import signal
import threading
from pathlib import Path

from rich.console import Console

from l0drop.data.whole import write_whole
from l0drop.recipe import Recipe, dump_recipe
from l0drop.runs.json_file import write_json
from l0drop.runs.run import RunFolder
from l0drop.training.checkpoints import checkpoints, step_of
from l0drop.training.run import Interrupted, open_run, train

PLANNED = "planned.json"
"""In a run that the limit stopped: the number of steps that its learning rate was planned for."""


def train_for(recipe: Recipe, runs: Path, seconds: float, console: Console | None = None) -> Recipe:
    """Train a recipe to its end or for this time, then score it, and return the recipe that was trained.

    A run that the limit stops becomes a run of the steps that it reached. With a learning rate that does not depend on
    the number of steps (`inverse_sqrt`, `constant`), a recipe with these steps repeats it.
    """
    folder = open_run(recipe, runs)
    ended = threading.Event()
    threading.Thread(target=_stop_after, args=(seconds, ended), daemon=True).start()
    try:
        train(recipe, runs, console)
    except Interrupted:
        ended.set()
        recipe = _shortened(recipe, folder)
        train(recipe, runs, console)
    finally:
        ended.set()
    return recipe


def _stop_after(seconds: float, ended: threading.Event) -> None:
    """After this time, send this process the signal that ends training with a checkpoint.

    Outside of training nothing handles the signal, and it would end the process.
    """
    default = signal.getsignal(signal.SIGTERM)
    if ended.wait(seconds):
        return
    while signal.getsignal(signal.SIGTERM) == default:
        if ended.wait(0.1):
            return
    os.kill(os.getpid(), signal.SIGTERM)


def _shortened(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the steps of the last checkpoint, which replaces the one in the run's folder."""
    reached = step_of(checkpoints(RunFolder(folder).checkpoints)[-1])
    write_json(folder / PLANNED, {"steps": recipe.train.steps})
    changed = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": reached})})
    write_whole(RunFolder(folder).recipe, dump_recipe(changed))
    return changed
