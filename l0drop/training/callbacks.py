"""Callbacks of the training loop: the log file, the progress bar, Ctrl-C."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from l0drop.data.whole import write_whole


class LogFile(TrainerCallback):
    """Appends every log entry to a JSONL file; a resumed run first drops entries of steps it is going to repeat."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            # a killed run may have left half a line at the end
            kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= state.global_step]
            write_whole(self.path, "".join(f"{line}\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


class Bar(TrainerCallback):
    """A progress bar with the time left, and a line per log entry, on stderr."""

    SHOWN = ("loss", "cross_entropy", "divergence", "penalty", "sparsity", "lambda", "tokens_per_second", "eval_")

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = title, console
        self.bar: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console)
        self.bar.add_task(self.title, total=state.max_steps, completed=state.global_step)
        self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.bar is not None and logs:
            shown = {k: v for k, v in logs.items() if k.startswith(self.SHOWN) and isinstance(v, float)}
            values = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown.items())
            self.bar.console.print(f"[dim]{state.global_step:>7}[/]  {values}", highlight=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class Interruption(TrainerCallback):
    """Ctrl-C or SIGTERM ends the run after the present step, with a checkpoint; a second one ends it at once.

    Where several processes train, one that was asked ends all: a signal may reach one of them a step later, and there
    it is still the first one.
    """

    def __init__(self) -> None:
        self.asked = self._heard = False
        self._before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        if self._heard:
            self.restore()
            raise KeyboardInterrupt
        self.asked = self._heard = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1:
            asked = torch.tensor(int(self.asked), device=args.device)
            torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
            self.asked = bool(asked)
        if self.asked and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.restore()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
