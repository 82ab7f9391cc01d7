"""Callbacks of the training loop: the log file and Ctrl-C."""

import signal
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from l0drop.runs.log import TrainingLog


class LogFile(TrainerCallback):
    """Appends every log entry to a JSONL file; a resumed run first deletes the entries of steps that it repeats."""

    def __init__(self, path: Path) -> None:
        self.log = TrainingLog(path)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.log.cut_after(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            self.log.append(state.global_step, logs)


class Interruption(TrainerCallback):
    """Ctrl-C or SIGTERM ends the run after the current step, with a checkpoint; a second signal ends it at once.

    With several processes, a signal to one of them ends all. It may reach the others a step later, where it still
    counts as their first.
    """

    def __init__(self) -> None:
        self.asked = self._signalled = False
        self._before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        if self._signalled:
            self.restore()
            raise KeyboardInterrupt
        self.asked = self._signalled = True

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
