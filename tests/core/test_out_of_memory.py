"""Errors that say that memory ran out, and others."""

import pytest
import torch

from l0drop.core.out_of_memory import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    ],
)
def test_failed_allocations(error: Exception) -> None:
    assert is_out_of_memory(error) is True


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory"), KeyError("x")])
def test_other_errors(error: Exception) -> None:
    assert is_out_of_memory(error) is False
