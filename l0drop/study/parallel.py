"""Several runs at a time on one machine, each in its own process: `l0drop train` with the recipe in its folder."""

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
from l0drop.runs.run import RunFolder
from l0drop.training.run import Interrupted

OnExit = Callable[[str, float], None]
"""Called with a run's name and the seconds its process lived."""


class RunError(ValueError):
    """Runs that failed; the message names their folders and says why."""


@dataclass
class RunProcess:
    """A run in its own process."""

    recipe: Recipe
    folder: Path
    process: subprocess.Popen[bytes]
    bar: TaskID
    started: float
    output_start: int = 0
    """Bytes of the output file that earlier executions wrote."""

    @property
    def step(self) -> int:
        """The last step it logged."""
        try:
            tail = RunFolder(self.folder).log.read_bytes()[-2000:]
        except OSError:
            return 0
        found = re.findall(rb'\{"step": (\d+),', tail)
        return int(found[-1]) if found else 0

    @property
    def error(self) -> str:
        """The last error message in its output."""
        file = RunFolder(self.folder).process_output
        text = file.read_bytes()[self.output_start :].decode("utf-8", errors="replace")
        _, found, message = text.rpartition("error: ")
        if found:
            return " ".join(message.split())
        return f"the run ended with code {self.process.returncode}; see {file}"


def train_in_parallel(
    todo: Sequence[Recipe],
    folder: Path,
    parallel: int,
    threads: int | None,
    console: Console,
    on_exit: OnExit,
    ready: Callable[[Recipe], bool] = lambda _: True,
    more: Callable[[str], Sequence[Recipe]] = lambda _: (),
    busy: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Train recipes, `parallel` at a time, and yield each run's name when it finishes.

    ready: whether a recipe can start yet; the first ready one starts. more: further recipes to train once the run of
    this name has finished. busy: whether a background task may still make recipes ready. A run that fails does not end
    the others; the error is raised once nothing runs and nothing is busy.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    threads = threads or max(1, torch.get_num_threads() // parallel)
    waiting, running = list(todo), list[RunProcess]()
    stopped, failed = False, list[RunProcess]()

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        for run in running:
            run.process.send_signal(signal.SIGTERM)  # the run saves a checkpoint; a second signal ends it at once

    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        with Progress(*columns, console=console) as bars:
            while running or (waiting and not stopped):
                while len(running) < parallel and not stopped and (able := next(filter(ready, waiting), None)):
                    waiting.remove(able)
                    running.append(start(able, folder, threads, bars))
                if failed and not running and not busy():  # waiting recipes may depend on the failed ones
                    break
                time.sleep(0.1)
                for run in running:
                    bars.update(run.bar, completed=run.step)
                ended = [run for run in running if run.process.poll() is not None]
                for run in ended:
                    running.remove(run)
                    on_exit(run.recipe.name, time.perf_counter() - run.started)
                    if run.process.returncode == 0:
                        bars.update(run.bar, completed=run.recipe.train.steps)
                        waiting += more(run.recipe.name)
                        yield run.recipe.name
                    elif not stopped:
                        console.print(f"{run.folder} failed; the others continue", highlight=False, soft_wrap=True)
                        failed.append(run)
    finally:
        for run in running:  # non-empty only after an error in this process
            run.process.terminate()
            run.process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise RunError("\n".join(f"{run.folder}: {run.error}" for run in failed))
    if stopped:
        raise Interrupted("stopped; checkpoints are saved, and the same command resumes from them")


def start(recipe: Recipe, folder: Path, threads: int, bars: Progress) -> RunProcess:
    run_folder = folder / recipe.name
    command = [sys.executable, "-m", "l0drop", "train", str(RunFolder(run_folder).recipe), "--runs", str(folder)]
    with RunFolder(run_folder).process_output.open("ab") as output:
        output_start = output.tell()
        process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches it through its parent only, and once
        )
    bar = bars.add_task(recipe.name, total=recipe.train.steps)
    return RunProcess(recipe, run_folder, process, bar, time.perf_counter(), output_start)
