"""Several runs at a time on one machine, each a process of its own: `l0drop train` with the recipe in its folder."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from l0drop.recipe import Recipe
from l0drop.training.run import Interrupted

OUTPUT = "output.txt"
Spent = Callable[[str, float], None]
"""Told the name of a run and the seconds its process lived."""


class ChildError(ValueError):
    """Runs that failed; the message names their folders and says why."""


@dataclass
class Child:
    """A run in a process of its own: `l0drop train` with the recipe in its folder."""

    recipe: Recipe
    folder: Path
    process: subprocess.Popen[bytes]
    bar: TaskID
    started: float
    said: int = 0
    """Bytes of its output file that earlier executions wrote."""

    @property
    def step(self) -> int:
        """The last step it logged."""
        try:
            tail = (self.folder / "log.jsonl").read_bytes()[-2000:]
        except OSError:
            return 0
        found = re.findall(rb'\{"step": (\d+),', tail)
        return int(found[-1]) if found else 0

    @property
    def last_words(self) -> str:
        text = (self.folder / OUTPUT).read_bytes()[self.said :].decode("utf-8", errors="replace")
        _, found, message = text.rpartition("error: ")
        if found:
            return " ".join(message.split())
        return f"the run ended with code {self.process.returncode}; {self.folder / OUTPUT} has what it said"


def side_by_side(
    todo: Sequence[Recipe],
    folder: Path,
    parallel: int,
    threads: int | None,
    console: Console,
    spent: Spent,
    ready: Callable[[Recipe], bool] = lambda _: True,
    more: Callable[[str], Sequence[Recipe]] = lambda _: (),
    busy: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Train recipes, so many at a time, and yield the names of those that are done, as they finish.

    ready: whether a recipe can start yet; the first that can goes first. more: recipes to train as well, now that the
    run of this name is done. One that fails does not end the others; the error comes when none can start any more: when
    nothing runs and nothing else, of which `busy` knows, is under way.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    threads = threads or max(1, torch.get_num_threads() // parallel)
    waiting, running = list(todo), list[Child]()
    stopped, failed = False, list[Child]()

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        for child in running:
            child.process.send_signal(signal.SIGTERM)  # it saves a checkpoint; a second one ends it at once

    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        with Progress(*columns, console=console) as bars:
            while running or (waiting and not stopped):
                while len(running) < parallel and not stopped and (able := next(filter(ready, waiting), None)):
                    waiting.remove(able)
                    running.append(start(able, folder, threads, bars))
                if failed and not running and not busy():  # what waits may wait for those
                    break
                time.sleep(0.1)
                for child in running:
                    bars.update(child.bar, completed=child.step)
                ended = [child for child in running if child.process.poll() is not None]
                for child in ended:
                    running.remove(child)
                    spent(child.recipe.name, time.perf_counter() - child.started)
                    if child.process.returncode == 0:
                        bars.update(child.bar, completed=child.recipe.train.steps)
                        waiting += more(child.recipe.name)
                        yield child.recipe.name
                    elif not stopped:
                        console.print(f"{child.folder} failed; the others go on", highlight=False)
                        failed.append(child)
    finally:
        for child in running:  # left only by an error of this process itself
            child.process.terminate()
            child.process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise ChildError("\n".join(f"{child.folder}: {child.last_words}" for child in failed))
    if stopped:
        raise Interrupted("stopped, with checkpoints; the same command goes on from there")


def start(recipe: Recipe, folder: Path, threads: int, bars: Progress) -> Child:
    own = folder / recipe.name
    command = [sys.executable, "-m", "l0drop", "train", str(own / "recipe.yaml"), "--runs", str(folder)]
    with (own / OUTPUT).open("ab") as output:
        said = output.tell()
        process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches it through its parent alone, and once
        )
    return Child(recipe, own, process, bars.add_task(recipe.name, total=recipe.train.steps), time.perf_counter(), said)
