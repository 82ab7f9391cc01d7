"""The decision which encodings to drop: the `Gate` contract, its result `Gates`, the registry, the learned gate.

Shapes: B sentences, N source positions, D model width. Masks are True on real tokens.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from l0drop.core import hard_concrete
from l0drop.core.registry import Buildable, Registry
from l0drop.core.values import WrongKindError

NOISE = "noise"
"""The name of the hint with the uniforms, [B, N] in [0, 1), from which gates are sampled in training."""


STATES = "states"
"""The name of the hint with the outputs of the encoder layers that a gate `reads`, [B, N, L, D]."""

LIMIT = math.log(100)
"""In training, gates are sampled from log α clipped to ±ln 100, as in the code of Louizos et al."""


def unreadable(tensor: Tensor) -> bool:
    """Whether reading the values would break a graph that is being compiled or captured."""
    return torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


class Gates(NamedTuple):
    """One decision per source position, the same for the learned gate, a rule and a random baseline.

    values: [B, N] in [0, 1], 0 on padding; closed is exactly 0.
    open_probability: [B, N], P(gate ≠ 0), for the penalty; None for a gate that does not learn.
    log_alpha: [B, N], the score behind the gate, which the dial ranks and shifts; None for a rule.
    """

    values: Tensor
    open_probability: Tensor | None = None
    log_alpha: Tensor | None = None

    def check(self, mask_BN: Tensor) -> None:
        """Raise ValueError unless these are gates for `mask_BN`: right shapes, values in [0, 1], 0 on padding."""
        for name, tensor in zip(self._fields, self, strict=True):
            if tensor is not None and not isinstance(tensor, Tensor):
                raise WrongKindError(f"Gates.{name}: expected a tensor, got {type(tensor).__name__}")
            if tensor is not None and tensor.shape != mask_BN.shape:
                raise ValueError(
                    f"Gates.{name}: expected shape {tuple(mask_BN.shape)}, one number per source position, "
                    f"got {tuple(tensor.shape)}"
                )
        if unreadable(mask_BN):
            return  # checked by the eager run of the same gate
        shares = [(name, tensor) for name, tensor in zip(self._fields[:2], self[:2], strict=True) if tensor is not None]
        on_padding = ((self.values != 0) & ~mask_BN).any()
        wrong = torch.stack([~((tensor >= 0) & (tensor <= 1)).all() for _, tensor in shares] + [on_padding]).tolist()
        for (name, tensor), outside in zip(shares, wrong, strict=False):
            if outside:
                if bool(tensor.isnan().any()):
                    raise ValueError(
                        f"Gates.{name}: are NaN; the encodings or the gate's weights are not finite: they are damaged, "
                        "or too large for this dtype (try float32)"
                    )
                raise ValueError(f"Gates.{name}: must lie in [0, 1]; clamp them in the gate's forward")
        if wrong[-1]:
            raise ValueError("Gates.values: padding must have gate 0; multiply them by mask in the gate's forward")


class Gate(Buildable):
    """Base class of gates: subclass it and override `forward`.

    A saved model rebuilds its gate from the constructor's arguments. They are recorded automatically and must be plain
    JSON values. A constructor that names `width`, `beta`, `epsilon`, `start` or `normalize` gets the model's values.

    encodings: [B, N, D], differentiable.
    mask: [B, N], True on real tokens.
    hints: per-token tensors [B, N] by name, such as tags or frequency ranks. `needs` lists the required ones.
    reads: encoder layers, counted from 1; 0 is the input of the first. `forward` gets their outputs as hints[STATES].
    """

    arguments_field = "gate_args"
    needs: ClassVar[tuple[str, ...]] = ()
    reads: tuple[int, ...] = ()

    def forward(
        self,
        encodings: Tensor,
        mask: Tensor,
        input_ids: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
    ) -> Gates:
        raise NotImplementedError(f"{type(self).__name__} must override forward and return Gates")

    def closed(self, gates: Gates) -> Tensor:
        """Where the test-time gate is closed, even if `gates` are sampled. Override it in a gate that samples."""
        return gates.values == 0

    def at(self, log_alpha: Tensor) -> Tensor:
        """The test-time gate at a log α, for the dial's `shift`."""
        raise ValueError(f"shift: {type(self).__name__} does not define its gate at another log α (override `at`)")

    def sampled(self, log_alpha: Tensor, uniforms: Tensor) -> Tensor | None:
        """The gate sampled with `uniforms`, whose mean at log α = 0 is one half. None if the gate does not sample."""
        return None

    def graph_key(self) -> tuple[Any, ...] | None:
        """The plain attributes that `forward` reads, if it can be captured in a CUDA graph; None if it cannot.

        It can if it runs the same operations for all batches of a shape, reads no value on the host and uses no hints.
        Only a class's own answer counts: a subclass that overrides something must override this too.
        """
        return None

    @property
    def threshold(self) -> float:
        """The log α at and below which the test-time gate is closed."""
        raise ValueError(f"{type(self).__name__} does not define the log α at which it closes (override `threshold`)")

    def close_at(self, log_alpha: float) -> None:
        """Set the threshold; the calibration calls this."""
        raise ValueError(f"{type(self).__name__} has no threshold to set (override `close_at`)")


class LearnedGate(Gate):
    """log α = x·w + b, then the hard-concrete gate: sampled in training, the test-time gate otherwise (Eq. 9, 6-8, 13).

    w starts at 0 and b at `start`, so all gates start equal. `normalize` first brings x to zero mean and unit variance,
    for encoders whose outputs are not normalized. The parameters are created and loaded in float32.

    `settled`: in training, the gate is the test-time gate instead of a sample, so that the rest of the model learns
    with the very rows that it will have. Gates that are exactly 0 or 1 then get no gradient from the loss.

    `noise_scale`: a tensor without dimensions that scales the noise of samples (`hard_concrete.sample`), to lead them
    from the full noise to the test-time gate; None is the full noise. The open probability, and with it the penalty,
    stays that of the full noise. It is a tensor so that compiled and captured steps read its current value.

    `moved` is the distance by which the calibration has moved the threshold of the test-time gate. It does not affect
    sampling.
    """

    moved: Tensor
    settled = False
    noise_scale: Tensor | None = None

    def __init__(
        self, width: int, beta: float = 2 / 3, epsilon: float = 0.1, start: float | None = None, normalize: bool = False
    ) -> None:
        super().__init__()
        self.beta, self.epsilon, self.normalize = beta, epsilon, normalize
        self.start = hard_concrete.threshold(epsilon) + 0.6 if start is None else start
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.bias = nn.Parameter(torch.full((), self.start, dtype=torch.float32))
        self.register_buffer("moved", torch.zeros((), dtype=torch.float32))

    def forward(
        self,
        encodings: Tensor,
        mask: Tensor,
        input_ids: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
    ) -> Gates:
        with torch.autocast(encodings.device.type, enabled=False):
            log_alpha_BN = self.log_alpha(hard_concrete.wide(encodings))
            if self.training:
                noise_BN = torch.rand_like(log_alpha_BN) if hints is None or NOISE not in hints else hints[NOISE]
                bounded_BN = hard_concrete.bounded(log_alpha_BN, LIMIT)
                values_BN = self.at(log_alpha_BN) if self.settled else self.sampled(bounded_BN, noise_BN)
                open_BN = hard_concrete.open_probability(bounded_BN, self.beta, self.epsilon)
            else:
                values_BN = self.at(log_alpha_BN)
                open_BN = hard_concrete.open_probability(log_alpha_BN, self.beta, self.epsilon)
            return Gates(values_BN * mask, open_BN * mask, log_alpha_BN)

    def log_alpha(self, x_BND: Tensor) -> Tensor:
        """[B, N], from encodings in at least float32 (Eq. 9). Override it to learn another function of them."""
        if self.normalize:
            x_BND = nn.functional.layer_norm(x_BND, x_BND.shape[-1:])
        return x_BND @ self.weight.to(x_BND.dtype) + self.bias.to(x_BND.dtype)

    def closed(self, gates: Gates) -> Tensor:
        assert gates.log_alpha is not None
        return self._closed(gates.log_alpha)

    def _closed(self, log_alpha: Tensor) -> Tensor:
        return hard_concrete.closed(hard_concrete.wide(log_alpha) - self.moved, self.epsilon)

    def at(self, log_alpha: Tensor) -> Tensor:
        """Eq. 13, but 0 below a threshold that was moved up, and 1 for gates that a lower threshold opens."""
        by_formula = hard_concrete.test_time_gate(log_alpha, self.epsilon)
        return by_formula.masked_fill(by_formula == 0, 1).masked_fill(self._closed(log_alpha), 0)

    def sampled(self, log_alpha: Tensor, uniforms: Tensor) -> Tensor:
        return hard_concrete.sample(log_alpha, uniforms, self.beta, self.epsilon, self.noise_scale)

    @property
    def threshold(self) -> float:
        return float(self.moved) - hard_concrete.threshold(self.epsilon)

    def graph_key(self) -> tuple[Any, ...] | None:
        return self.beta, self.epsilon, self.normalize

    def close_at(self, log_alpha: float) -> None:
        self.moved.fill_(log_alpha + hard_concrete.threshold(self.epsilon))


GATES = Registry[Gate]("gate", {"learned": LearnedGate})
"""The gates that saved models find by name."""

GateClass = TypeVar("GateClass", bound=type[Gate])


def register_gate(name: str) -> Callable[[GateClass], GateClass]:
    """Class decorator: the name under which a saved model finds its gate, once the defining module is imported."""

    def register(gate_class: GateClass) -> GateClass:
        GATES.add(name, gate_class)
        return gate_class

    return register
