"""The processes that torchrun started, or this one alone."""

from datetime import timedelta

import torch
from accelerate import PartialState

PATIENCE = timedelta(days=30)
"""The timeout for waiting processes: the first may tokenize or translate for hours, or wait for its input."""


def joined_processes(cpu: bool | None = None) -> PartialState:
    """Join the other processes. cpu: communicate over gloo instead of GPUs (default: if there is no GPU)."""
    return PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu, timeout=PATIENCE)
