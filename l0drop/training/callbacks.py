"""Callbacks of the training loop: the log file and Ctrl-C."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from l0drop.data.whole import write_whole


class LogFile(TrainerCallback):
    """Appends every log entry to a JSONL file; a resumed run first deletes the entries of steps that it repeats."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            # a killed run may have left an incomplete last line
            kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= state.global_step]
            write_whole(self.path, "".join(f"{line}\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


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
