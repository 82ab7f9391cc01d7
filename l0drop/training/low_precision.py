"""Mixed precision with low-precision copies of the layers' weights, and gradients at fixed addresses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer


class LowPrecision:
    """Copies of the layers' weights in low precision, for mixed precision without hundreds of small conversions.

    Autocast converts every weight where it is used, and every gradient back. Here all weights are converted at once
    before a forward pass, the layers use the copies as their parameters inside `running`, and `collect` adds all
    gradients at once to those of the weights, in full precision. Rounding is the same as with autocast.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        linear = [
            module
            for layer in model.modules()
            if isinstance(layer, GradientCheckpointingLayer)
            for module in layer.modules()
            if isinstance(module, nn.Linear)
        ]
        names = [(module, name) for module in linear for name, _ in module.named_parameters(recurse=False)]
        self.replaced = [(module, name, getattr(module, name)) for module, name in names]
        self.weights = [weight for _, _, weight in self.replaced]
        self.copies: list[Any] = [
            nn.Parameter(weight.detach().to(dtype), requires_grad=weight.requires_grad) for weight in self.weights
        ]
        self.trained = [(w, c) for w, c in zip(self.weights, self.copies, strict=True) if w.requires_grad]
        self.others = [p for p in model.parameters() if p.requires_grad and all(p is not w for w, _ in self.trained)]
        self.gradients = _Flat([w for w, _ in self.trained])
        self.more: _Flat | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the layers compute with copies of their current weights."""
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.weights)
        try:
            for (module, name, _), copy in zip(self.replaced, self.copies, strict=True):
                module._parameters[name] = copy
            yield
        finally:
            for module, name, weight in self.replaced:
                module._parameters[name] = weight

    @torch.no_grad()
    def collect(self) -> None:
        """After a backward pass: add the copies' gradients to those of the weights."""
        first: list[int] = []
        more: list[int] = []
        skipped: list[int] = []
        for index, (weight, copy) in enumerate(self.trained):
            if copy.grad is None:  # the layer was skipped (layerdrop)
                skipped += [index] if weight.grad is None else []
            else:
                (first if weight.grad is None else more).append(index)
        found: list[Any] = [copy.grad for _, copy in self.trained]
        if first:
            torch._foreach_copy_(self.gradients.at(first), [found[index] for index in first])
            for index in first:
                self.trained[index][0].grad = self.gradients.parts[index]
        if more:  # add to the gradients of an earlier part of the step
            self.more = self.more or _Flat(self.gradients.parts)
            torch._foreach_copy_(self.more.at(more), [found[index] for index in more])
            torch._foreach_add_(self.gradients.at(more), self.more.at(more))
        if skipped:  # the norm covers all gradients
            torch._foreach_zero_(self.gradients.at(skipped))
        for _, copy in self.trained:
            copy.grad = None

    @torch.no_grad()
    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient of all parameters down to this norm; returns the norm before."""
        gradients = [self.gradients.whole, *(p.grad for p in self.others if p.grad is not None)]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


def in_low_precision(model: Any, dtype: torch.dtype) -> None:
    """Convert the layers of a model that is not trained to low precision, permanently."""
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for module in layer.modules():
                if isinstance(module, nn.Linear):
                    module.to(dtype)


class _Flat:
    """New tensors with given shapes, contiguous in memory."""

    def __init__(self, like: list[Tensor]) -> None:
        sizes = [tensor.numel() for tensor in like]
        self.whole = torch.zeros(sum(sizes), dtype=like[0].dtype, device=like[0].device) if like else torch.zeros(0)
        parts = self.whole.split(sizes) if like else ()
        self.parts = [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]

    def at(self, indices: list[int]) -> Any:
        return [self.parts[index] for index in indices]


class StaticGradients:
    """Gradients at fixed addresses: each backward pass adds to them, and `zero` sets them to 0."""

    def __init__(self, model: Any, low_precision: LowPrecision | None) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own = trained if low_precision is None else low_precision.others
        flat = _Flat(own)
        for parameter, part in zip(own, flat.parts, strict=True):
            parameter.grad = part
        self.wholes = [flat.whole]
        if low_precision is not None:
            for (weight, _), part in zip(low_precision.trained, low_precision.gradients.parts, strict=True):
                weight.grad = part
            self.wholes.append(low_precision.gradients.whole)

    def zero(self) -> None:
        for whole in self.wholes:
            whole.zero_()


@contextmanager
def quick_zero_grad(model: Any, gradients: StaticGradients | None = None) -> Iterator[None]:
    """Inside, `model.zero_grad()` uses a list of parameters instead of visiting every module at every step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def zero_grad(set_to_none: bool = True) -> None:
        if gradients is not None:
            gradients.zero()
            return
        for parameter in parameters:
            parameter.grad = None

    model.__dict__["zero_grad"] = zero_grad
    try:
        yield
    finally:
        del model.__dict__["zero_grad"]
