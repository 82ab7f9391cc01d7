"""Fixtures for the model tests: a gate with fixed values, and quiet libraries."""

import pytest
import torch
import transformers

from l0drop import Gate, Gates

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class FixedGate(Gate):
    """Gates with given values, independent of the encodings."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, encodings, mask, input_ids=None, hints=None):  # type: ignore[no-untyped-def]
        return Gates(self.values.to(torch.float64 if encodings.dtype == torch.float64 else torch.float32) * mask)


@pytest.fixture
def fixed_gate() -> FixedGate:
    """For the six sentences of `zoo.ragged_batch`: one fully open, one fully closed, the others mixed, with 0 and 1."""
    generator = torch.Generator().manual_seed(11)
    values = torch.rand(6, 24, generator=generator, dtype=torch.float64)
    values = values * (torch.rand(6, 24, generator=generator) < 0.5)
    values = torch.where(torch.rand(6, 24, generator=generator) < 0.2, 1.0, values)
    values[5], values[2] = 1.0, 0.0  # the open sentence is short, so that the memory is short too
    return FixedGate(values)
