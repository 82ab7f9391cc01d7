"""What makes a training step fast on a GPU, around a model that is left as it is.

Each piece is in force inside a `with` and gone after it: layers and gate compiled, the output layer left to
`fused_loss`. `Early` brings numbers from the GPU without waiting for it. `captured` has what takes whole steps off the
program's hands.

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
from l0drop.training.fused_loss import Lesson, linear_cross_entropy_sum, taught_cross_entropy_sum

OPTIONS: dict[str, Any] = {
    # hundreds of kernels run in a step, and to look at their inputs takes as long as to launch them
    "size_asserts": False,
    "alignment_asserts": False,
    "scalar_asserts": False,
    # the cache on disk knows nothing of sizes: it would serve code that another run has made at its own batches
    "fx_graph_cache": False,
}
"""Of compiled code."""


class Compiled:
    """The layers of a model, and its gate, compiled one by one for all shapes.

    One by one, because layers of a kind share their code: a model of 6 + 6 layers compiles two.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls: dict[nn.Module, Any] = {}
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True, options=OPTIONS)
                self.calls[layer] = layer._compiled_call_impl
                layer._compiled_call_impl = None
        # where gates stand between layers, they are asked inside the encoder's own loop
        alone = isinstance(model, L0DropModel) and not model.config.l0drop.layerwise
        self.gate = _CompiledGate(model) if alone else None
        self._graphs = _graphs_compiled()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, calls of the layers and of the gate are compiled."""
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
        """Whether this process has compiled since it was asked last: at a first batch, or where shapes need other code.

        The code depends on the shapes it is compiled at (how sums are split, say), though it serves all others.
        """
        before, self._graphs = self._graphs, _graphs_compiled()
        return self._graphs > before


def _graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class _CompiledGate:
    """A model's way from encodings to memory, of which the part that computes is compiled."""

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
    before a forward pass, the layers use the copies as their parameters inside `running`, and `collect` brings all
    gradients at once to the weights themselves, as sums in full precision. Rounded is the same as with autocast.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        linear = [
            module
            for layer in model.modules()
            if isinstance(layer, GradientCheckpointingLayer)
            for module in layer.modules()
            if isinstance(module, nn.Linear)
        ]
        places = [(module, name) for module in linear for name, _ in module.named_parameters(recurse=False)]
        self.places = [(module, name, getattr(module, name)) for module, name in places]
        self.weights = [weight for _, _, weight in self.places]
        self.copies: list[Any] = [
            nn.Parameter(weight.detach().to(dtype), requires_grad=weight.requires_grad) for weight in self.weights
        ]
        self.trained = [(w, c) for w, c in zip(self.weights, self.copies, strict=True) if w.requires_grad]
        self.others = [p for p in model.parameters() if p.requires_grad and all(p is not w for w, _ in self.trained)]
        self.gradients = _Flat([w for w, _ in self.trained])
        self.more: _Flat | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the layers compute with copies of their present weights."""
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.weights)
        try:
            for (module, name, _), copy in zip(self.places, self.copies, strict=True):
                module._parameters[name] = copy
            yield
        finally:
            for module, name, weight in self.places:
                module._parameters[name] = weight

    @torch.no_grad()
    def collect(self) -> None:
        """After a backward pass: add the copies' gradients to those of the weights."""
        first: list[int] = []
        more: list[int] = []
        skipped: list[int] = []
        for place, (weight, copy) in enumerate(self.trained):
            if copy.grad is None:  # of a layer that was left out (layerdrop)
                skipped += [place] if weight.grad is None else []
            else:
                (first if weight.grad is None else more).append(place)
        found: list[Any] = [copy.grad for _, copy in self.trained]
        if first:
            torch._foreach_copy_(self.gradients.at(first), [found[place] for place in first])
            for place in first:
                self.trained[place][0].grad = self.gradients.parts[place]
        if more:  # to what an earlier part of the step has left
            self.more = self.more or _Flat(self.gradients.parts)
            torch._foreach_copy_(self.more.at(more), [found[place] for place in more])
            torch._foreach_add_(self.gradients.at(more), self.more.at(more))
        if skipped:  # the norm is taken of all of them
            torch._foreach_zero_(self.gradients.at(skipped))
        for _, copy in self.trained:
            copy.grad = None

    @torch.no_grad()
    def clip(self, longest: float) -> Tensor:
        """Shorten the gradient of all parameters to this norm; the norm it had."""
        gradients = [self.gradients.whole, *(p.grad for p in self.others if p.grad is not None)]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (longest / (norm + 1e-6)).clamp(max=1.0))
        return norm


def in_low_precision(model: Any, dtype: torch.dtype) -> None:
    """Bring the layers' weights of a model that is not trained to low precision, for good."""
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for module in layer.modules():
                if isinstance(module, nn.Linear):
                    module.to(dtype)


class _Flat:
    """New tensors of the shapes of others, one behind the other in memory."""

    def __init__(self, like: list[Tensor]) -> None:
        sizes = [tensor.numel() for tensor in like]
        self.whole = torch.zeros(sum(sizes), dtype=like[0].dtype, device=like[0].device) if like else torch.zeros(0)
        parts = self.whole.split(sizes) if like else ()
        self.parts = [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]

    def at(self, places: list[int]) -> Any:
        return [self.parts[place] for place in places]


class OutputLayer:
    """A model's linear output layer, and what the model adds to its logits, for a loss that makes logits in passing.

    dtype: of the products; None is that of the weights.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype
        self.layer = model.get_output_embeddings()
        if type(self.layer) is not nn.Linear:
            raise ValueError(f"model: its output layer is {type(self.layer).__name__}, not a linear one")
        self._compared = False

    @property
    def bias(self) -> Tensor | None:
        """[V], what is added to the products."""
        own, added = self.layer.bias, getattr(self.model, "final_logits_bias", None)
        if own is None or added is None:
            return own if added is None else added.flatten()
        return own + added.flatten()

    @contextmanager
    def states(self) -> Iterator[list[Tensor]]:
        """Inside, a forward pass has logits of its first position alone, and leaves the decoder's states [B, T, D], as
        the output layer was to get them, in the list that is yielded."""
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

        real_R: their places in the flattened batch; places of padding among them count nothing. logits: the model's
        own, of its first position.
        """
        return linear_cross_entropy_sum(
            self.rows(states_BTD, real_R, logits),
            self.layer.weight,
            labels_BT.flatten().index_select(0, real_R),
            bias_V=self.bias,
            smoothing=smoothing,
            dtype=self.dtype,
        )

    def taught_loss(
        self,
        states_BTD: Tensor,
        labels_BT: Tensor,
        real_R: Tensor,
        smoothing: float,
        logits: Tensor,
        lesson: Lesson,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same weighed with the divergence from a teacher, and each of both."""
        return taught_cross_entropy_sum(
            self.rows(states_BTD, real_R, logits),
            self.layer.weight,
            labels_BT.flatten().index_select(0, real_R),
            lesson,
            bias_V=self.bias,
            smoothing=smoothing,
            dtype=self.dtype,
        )

    def lesson(self, states_BTD: Tensor, real_R: Tensor, logits: Tensor, weight: float, temperature: float) -> Lesson:
        """What this layer, a teacher's, has to say of the same places."""
        return Lesson(self.rows(states_BTD, real_R, logits), self.layer.weight, self.bias, weight, temperature)

    def rows(self, states_BTD: Tensor, real_R: Tensor, logits: Tensor) -> Tensor:
        """[R, D], the states at the places of real target tokens."""
        states_XD = states_BTD.flatten(0, 1)
        self._compare(states_XD[0], logits.flatten())
        return states_XD.index_select(0, real_R)

    @torch.no_grad()
    def _compare(self, state_D: Tensor, logits_V: Tensor) -> None:
        """Once: whether the model does nothing else to its logits than this class knows of."""
        if self._compared:
            return
        ours_V = (self.layer.weight.to(state_D.dtype) @ state_D).float()
        ours_V = ours_V if self.bias is None else ours_V + self.bias
        apart = (ours_V - logits_V.float()).abs().max()
        if apart > 0.03 * logits_V.abs().max():  # bfloat16 is within 0.01
            name = type(self.model).__name__
            raise ValueError(f"model: {name} makes its logits of more than its output layer; set train.fast: false")
        self._compared = True


def together(numbers: dict[str, Tensor]) -> tuple[list[str], Tensor]:
    """Their names, and the numbers as one tensor in the first one's precision."""
    first = next(iter(numbers.values()))
    # sums of tokens are exact in float32 as long as a step has less than 2^24 of them
    return list(numbers), torch.stack([number.detach().to(first.dtype) for number in numbers.values()])


class Early:
    """Numbers on their way from the GPU: copied behind what computes them, while more work is handed over already."""

    def __init__(self, names: list[str], numbers: Tensor) -> None:
        self._names = names
        self._arrived = torch.cuda.Event() if numbers.is_cuda else None
        self._here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        self._here.copy_(numbers, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> dict[str, float]:
        """The numbers, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return dict(zip(self._names, self._here.tolist(), strict=True))


class Packed:
    """The tensors of a batch as one, on its way from the process that makes batches to the GPU.

    Each tensor has to be taken from the other process, pinned and sent by itself, at a cost that does not depend on its
    size. All are of int64.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.numbers = torch.cat([tensor.flatten() for tensor in tensors.values()])

    def pin_memory(self) -> "Packed":
        """What a DataLoader calls, beside the program's own thread, so that the GPU can fetch the numbers by itself."""
        self.numbers = self.numbers.pin_memory()
        return self

    def unpacked(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors, on a device; the program does not wait until they are there."""
        parts = self.numbers.to(device, non_blocking=True).split([shape.numel() for shape in self.shapes.values()])
        # copies, because compiled code wants its inputs to begin at multiples of 16 bytes
        return {name: part.view(shape).clone() for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


class StaticGradients:
    """Gradients that stay where they are: each backward pass adds to them, and `zero` brings them back to 0."""

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
    """Inside, `model.zero_grad()` knows the parameters, which otherwise it looks for in every module at every step."""
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
