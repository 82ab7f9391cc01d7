"""Sparsity and other gate statistics of a corpus."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class SparsityMeter:
    """Gate statistics summed over the real tokens of a corpus; every token has the same weight, padding has none."""

    tokens: int = 0
    zeros: int = 0
    ones: int = 0
    open_probability: float = 0.0
    tokens_with_probability: int = 0

    def add(
        self,
        gate_values: np.ndarray | torch.Tensor,
        mask: np.ndarray | torch.Tensor,
        open_probability: np.ndarray | torch.Tensor | None = None,
    ) -> None:
        """Add one batch: gates [B, N] in [0, 1], a mask [B, N] of real tokens, and P(gate ≠ 0) if gates have one."""
        real = torch.as_tensor(mask) != 0
        values = _on_real_tokens("gate_values", gate_values, real)
        if open_probability is not None:
            self.open_probability += float(_on_real_tokens("open_probability", open_probability, real).double().sum())
            self.tokens_with_probability += values.numel()
        self.tokens += values.numel()
        self.zeros += int((values == 0).sum())
        self.ones += int((values == 1).sum())

    @property
    def sparsity(self) -> float:
        """Dropped / real source tokens."""
        return self._share(self.zeros)

    @property
    def expected_open_rate(self) -> float | None:
        """Mean P(gate ≠ 0), which is not 1 - sparsity; None if the gates have no such probability."""
        if self.tokens_with_probability == 0:
            return None
        if self.tokens_with_probability != self.tokens:
            raise ValueError("open_probability was given for some batches only")
        return self._share(self.open_probability)

    @property
    def exactly_zero(self) -> float:
        return self._share(self.zeros)

    @property
    def exactly_one(self) -> float:
        return self._share(self.ones)

    @property
    def between(self) -> float:
        return self._share(self.tokens - self.zeros - self.ones)

    def _share(self, part: float) -> float:
        if self.tokens == 0:
            raise ValueError("no real token was added, so there is no rate")
        return part / self.tokens


def _on_real_tokens(name: str, values: np.ndarray | torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    values = torch.as_tensor(values)
    if values.shape != real.shape:
        raise ValueError(f"{name} {tuple(values.shape)} and mask {tuple(real.shape)} differ in shape")
    values = values[real]
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"{name} has values outside [0, 1] on real tokens")
    return values
