"""Recognise errors that say that a device has no memory left; torch and Python have several classes for them."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on a CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("out of memory", "not enough memory", "can't allocate memory")
    )
