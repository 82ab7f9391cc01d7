"""The output layer of a model in training, computed by `fused_loss` without storing all logits.

Shapes: B sentences, T target positions, R real target tokens of the batch, D model width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from l0drop.training.fused_loss import TokenDistillation, distilled_cross_entropy_sum, linear_cross_entropy_sum


class OutputLayer:
    """A model's linear output layer and the bias of its logits, for a loss that never stores all logits.

    dtype: of the products; None means that of the weights.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype
        self.layer = model.get_output_embeddings()
        if type(self.layer) is not nn.Linear:
            raise ValueError(f"the output layer is {type(self.layer).__name__}, not linear")
        self._compared = False

    @property
    def bias(self) -> Tensor | None:
        """[V], the bias of the logits."""
        own, added = self.layer.bias, getattr(self.model, "final_logits_bias", None)
        if own is None or added is None:
            return own if added is None else added.flatten()
        return own + added.flatten()

    @contextmanager
    def states(self) -> Iterator[list[Tensor]]:
        """Inside, a forward pass computes logits of the first position only, and appends the input of the output layer,
        the decoder's states [B, T, D], to the yielded list."""
        states: list[Tensor] = []

        def first_position(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            states.append(inputs[0])
            return (inputs[0][:1, :1],)

        hook = self.layer.register_forward_pre_hook(first_position)
        try:
            yield states
        finally:
            hook.remove()

    def loss(self, states_BTD: Tensor, labels_BT: Tensor, real_R: Tensor, smoothing: float, logits: Tensor) -> Tensor:
        """Label-smoothed cross-entropy, summed over real target tokens.

        real_R: their indices in the flattened batch; indices of padding are ignored. logits: the model's logits of the
        first position.
        """
        return linear_cross_entropy_sum(
            self.rows(states_BTD, real_R, logits),
            self.layer.weight,
            labels_BT.flatten().index_select(0, real_R),
            bias_V=self.bias,
            smoothing=smoothing,
            dtype=self.dtype,
        )

    def distilled_loss(
        self,
        states_BTD: Tensor,
        labels_BT: Tensor,
        real_R: Tensor,
        smoothing: float,
        logits: Tensor,
        distillation: TokenDistillation,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean of cross-entropy and divergence from the teacher, then both terms."""
        return distilled_cross_entropy_sum(
            self.rows(states_BTD, real_R, logits),
            self.layer.weight,
            labels_BT.flatten().index_select(0, real_R),
            distillation,
            bias_V=self.bias,
            smoothing=smoothing,
            dtype=self.dtype,
        )

    def distillation(
        self, states_BTD: Tensor, real_R: Tensor, logits: Tensor, weight: float, temperature: float
    ) -> TokenDistillation:
        """The states and output layer of this model, a teacher, for the same target tokens."""
        rows_RD = self.rows(states_BTD, real_R, logits)
        return TokenDistillation(rows_RD, self.layer.weight, self.bias, weight, temperature)

    def rows(self, states_BTD: Tensor, real_R: Tensor, logits: Tensor) -> Tensor:
        """[R, D], the states of real target tokens."""
        states_XD = states_BTD.flatten(0, 1)
        self._compare(states_XD[0], logits.flatten())
        return states_XD.index_select(0, real_R)

    @torch.no_grad()
    def _compare(self, state_D: Tensor, logits_V: Tensor) -> None:
        """Check, once, that the model computes its logits as this class does."""
        if self._compared:
            return
        ours_V = (self.layer.weight.to(state_D.dtype) @ state_D).float()
        ours_V = ours_V if self.bias is None else ours_V + self.bias
        difference = (ours_V - logits_V.float()).abs().max()
        if difference > 0.03 * logits_V.abs().max():  # bfloat16 is within 0.01
            name = type(self.model).__name__
            raise ValueError(
                f"model: {name} computes its logits with more than its output layer; set train.fast: false"
            )
        self._compared = True
