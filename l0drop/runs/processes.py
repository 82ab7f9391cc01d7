"""The processes that torchrun started, or this one alone."""

from datetime import timedelta

import torch
from accelerate import PartialState
from torch import distributed

PATIENCE = timedelta(days=30)
"""The timeout for waiting processes: the first may tokenize or translate for hours, or wait for its input."""


def joined_processes(cpu: bool | None = None) -> PartialState:
    """Join the other processes. cpu: communicate over gloo instead of GPUs (default: if there is no GPU)."""
    return PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu, timeout=PATIENCE)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error says that another process of the group has ended, so that this one waits in vain."""
    if distributed.is_available() and isinstance(error, distributed.DistNetworkError | distributed.DistBackendError):
        return True
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Application timeout")
    return isinstance(error, RuntimeError) and any(said in str(error) for said in words)
