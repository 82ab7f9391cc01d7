"""The processes that torchrun started, or this one alone."""

from datetime import timedelta

import torch
from accelerate import PartialState

PATIENCE = timedelta(days=30)
"""How long they wait for each other: the first may tokenize or translate for hours, or wait for its input."""


def joined_processes(cpu: bool | None = None) -> PartialState:
    """Join the other processes. cpu: whether to talk over gloo, not over GPUs; left out, where there is no GPU."""
    return PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu, timeout=PATIENCE)
