"""Faster training steps on a GPU, without changing the model.

Each piece is active inside a `with` block only: compiled layers and gate, the output layer computed by `fused_loss`.
`Early` fetches numbers from the GPU without waiting for it. The module `captured` replays whole steps.

Shapes: B sentences, T target positions, R real target tokens of the batch, D model width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from l0drop.core.gates import Gates
from l0drop.models.modeling import L0DropModel
from l0drop.models.outputs import L0DropEncoderOutput
from l0drop.training.fused_loss import TokenDistillation, distilled_cross_entropy_sum, linear_cross_entropy_sum

OPTIONS: dict[str, Any] = {
    # a step runs hundreds of kernels, and checking their inputs takes as long as launching them
    "size_asserts": False,
    "alignment_asserts": False,
    "scalar_asserts": False,
    # the cache on disk ignores sizes, so it would return code that another run compiled at its batches
    "fx_graph_cache": False,
}
"""Compiler options."""


class Compiled:
    """The layers of a model and its gate, compiled separately for all shapes.

    Layers of a kind share their code, so a model with 6 + 6 layers compiles two.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls: dict[nn.Module, Any] = {}
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True, options=OPTIONS)
                self.calls[layer] = layer._compiled_call_impl
                layer._compiled_call_impl = None
        # gates between layers are called inside the encoder's loop
        alone = isinstance(model, L0DropModel) and not model.config.l0drop.layerwise
        self.gate = _CompiledGate(model) if alone else None
        self._graphs = _graphs_compiled()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, layers and gate run their compiled code."""
        try:
            for layer, call in self.calls.items():
                layer._compiled_call_impl = call
            if self.gate is not None:
                self.model.__dict__["_gate"] = self.gate
            yield
        finally:
            for layer in self.calls:
                layer._compiled_call_impl = None
            self.model.__dict__.pop("_gate", None)

    def compiled_since(self) -> bool:
        """Whether this process has compiled since the last call: at a first batch, or because shapes needed other code.

        The code serves all shapes, but depends on those it was compiled at (in how sums are split, for example).
        """
        before, self._graphs = self._graphs, _graphs_compiled()
        return self._graphs > before


def _graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class _CompiledGate:
    """A model's path from encodings to memory, with its computation compiled."""

    PASSED = ("hidden_states", "attentions", "global_attentions")
    TENSORS = ("last_hidden_state", "memory_bias", "memory_index", "penalty", "dropped", "real")

    def __init__(self, model: L0DropModel) -> None:
        gate: Any = model._gate

        def tensors(outputs: Any, *others: Any) -> tuple[Any, ...]:
            memory = gate(outputs, *others, None)
            assert memory.gates is not None
            values, open_probability, log_alpha = memory.gates
            return tuple(getattr(memory, name) for name in self.TENSORS), (values, open_probability, log_alpha)

        self.tensors = torch.compile(tensors, dynamic=True, options=OPTIONS)

    def __call__(self, outputs: Any, *others: Any) -> L0DropEncoderOutput:
        tensors, gates = self.tensors(outputs, *others[:-1])
        passed = {name: getattr(outputs, name, None) for name in self.PASSED}
        return L0DropEncoderOutput(**dict(zip(self.TENSORS, tensors, strict=True)), **passed, gates=Gates(*gates))


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


def together(numbers: dict[str, Tensor]) -> tuple[list[str], Tensor]:
    """The names, and the numbers as one tensor with the dtype of the first."""
    first = next(iter(numbers.values()))
    # counts of tokens are exact in float32 below 2^24
    return list(numbers), torch.stack([number.detach().to(first.dtype) for number in numbers.values()])


class Early:
    """Numbers copied from the GPU as soon as they are computed, while the program launches more work."""

    def __init__(self, names: list[str], numbers: Tensor) -> None:
        self._names = names
        self._arrived = torch.cuda.Event() if numbers.is_cuda else None
        self._here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        self._here.copy_(numbers, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> dict[str, float]:
        """Wait for the numbers and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return dict(zip(self._names, self._here.tolist(), strict=True))


class Packed:
    """The tensors of a batch as one tensor, for the transfer from a worker process to the GPU.

    Receiving, pinning and sending a tensor has a cost that does not depend on its size. All are int64.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.numbers = torch.cat([tensor.flatten() for tensor in tensors.values()])

    def pin_memory(self) -> "Packed":
        """Called by the DataLoader in its own thread, so that the GPU can fetch the numbers directly."""
        self.numbers = self.numbers.pin_memory()
        return self

    def unpacked(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on a device, without waiting for the transfer."""
        parts = self.numbers.to(device, non_blocking=True).split([shape.numel() for shape in self.shapes.values()])
        # copies, because compiled code needs inputs aligned to 16 bytes
        return {name: part.view(shape).clone() for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


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
