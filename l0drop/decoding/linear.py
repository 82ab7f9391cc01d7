"""Linear layers for a CPU: weights packed for the machine, or rounded to int8.

`torch.nn.functional.linear` rearranges the weights in every call, which is expensive for the few rows of a decoding
step. oneDNN packs them once. The faster of the two depends on the machine and the layer, so it is measured once for all
layers of a model. Packed weights are copies: `MadeFrom` makes them again when the model's weights change. They belong
to the engine; the model's modules are never changed.
"""

import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0drop.decoding import half_attention
from l0drop.models.adopt import BUILDING

Made = TypeVar("Made")

LinearKind = str
"""A kind of linear layer: `plain`, `packed`, or `int8-FEW-MANY` with torch's engines for few and for many outputs;
followed by `-bf16` if attention of the encoder (`half_attention`) and to the memory is in bfloat16."""

Activation = Literal["none", "relu"]

HALF = "bf16"

MIN_WEIGHTS = 1 << 16
"""Smaller layers are not measured: the overhead of the call dominates."""

ROWS = (4, 40)
"""Row counts for measuring a layer: one sentence with four beams, and ten."""

MAX_MEASURED_OUTPUTS = 4096
"""Only a part of a wider layer is measured, because building it takes longer than measuring it."""

MANY_OUTPUTS = 1 << 20
"""Calls that compute at least this many numbers use the int8 engine for many outputs."""

MAX_TIME_RATIO = 0.9
"""Another kind replaces the first one only if it takes at most this share of its time. The same model on the same
machine should get the same kind under any load, because kinds round differently."""

PACKED_ROWS = 128
"""The row count that oneDNN packs for; other counts work too."""

ROW_BITS = 4
"""Row counts are rounded up to so many significant bits. oneDNN and FBGEMM compile a kernel for every count and keep a
thousand of them or more, which takes milliseconds and up to half a megabyte each; texts of many lengths have thousands
of counts."""

SAMPLED = 16
"""Elements of each weight that are compared to notice a write."""


class PackedLinear(nn.Module):
    """A linear layer with weights that oneDNN packed for this machine."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.weight = weight_OI  # T5 reads its dtype
        self.bias_O = None if bias_O is None else bias_O.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), PACKED_ROWS)

    @property
    def copied_bytes(self) -> int:
        return self.weight.nbytes

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        """activation: none or relu, fused into the product."""
        return in_rounded_rows(lambda part: self._product(part, activation), x, len(self.weight))

    def _product(self, x: Tensor, activation: Activation) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias_O, activation, [], "")


def in_rounded_rows(product: Callable[[Tensor], Tensor], x: Tensor, outputs: int) -> Tensor:
    """A product of rows, computed for rounded row counts only."""
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    if rounded_rows(rows) == rows:
        return product(x)

    def padded(x_RI: Tensor) -> Tensor:
        return product(F.pad(x_RI, (0, 0, 0, rounded_rows(len(x_RI)) - len(x_RI))))[: len(x_RI)]

    x_RI = x.reshape(rows, width)
    if width <= outputs or rows < PACKED_ROWS:
        return padded(x_RI).view(*x.shape[:-1], outputs)
    # wide inputs are not copied: most rows are a round number, and only the others are padded
    most = rounded_rows(rows - rows // (1 << ROW_BITS - 1))
    return torch.cat([product(x_RI[:most]), padded(x_RI[most:])]).view(*x.shape[:-1], outputs)


def rounded_rows(rows: int) -> int:
    """The row count rounded up to ROW_BITS significant bits: exact up to 16, then at most an eighth more."""
    step = 1 << max(0, (rows - 1).bit_length() - ROW_BITS)
    return -(-rows // step) * step


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights and one scale per output; inputs are rounded dynamically.

    torch has several engines for it. The fastest one for the few outputs of a decoding step is not the fastest one for
    the many outputs of an encoder or an output layer, so the weights are packed for both.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, few: str, many: str | None = None) -> None:
        super().__init__()
        self.weight = weight_OI  # T5 reads its dtype
        self.out = len(weight_OI)
        weight_OI = weight_OI.detach()
        scales_O = weight_OI.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        zeros_O = torch.zeros(self.out, dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch announces that quantization moves to a package that lacks this kernel
            rounded = torch.quantize_per_channel(weight_OI, scales_O, zeros_O, 0, torch.qint8)
        self.few = _packed_int8(rounded, bias_O, few)
        self.many = self.few if many in (None, few) else _packed_int8(rounded, bias_O, str(many))
        # without VNNI, sums of two 8-bit products overflow 16 bits, so inputs lose one bit
        self.reduce_range = not _has_vnni()

    @property
    def copied_bytes(self) -> int:
        return self.weight.numel() * (1 if self.many is self.few else 2)

    def forward(self, x: Tensor) -> Tensor:
        many = x.numel() // x.shape[-1] * self.out >= MANY_OUTPUTS
        packed = self.many if many else self.few
        return in_rounded_rows(lambda part: self._product(part, packed), x, self.out)

    def _product(self, x: Tensor, packed: Any) -> Tensor:
        return torch.ops.quantized.linear_dynamic.default(x, packed, self.reduce_range)


def _packed_int8(rounded: Tensor, bias_O: Tensor | None, engine: str) -> Any:
    with quantized_engine(engine):
        return torch.ops.quantized.linear_prepack(rounded, None if bias_O is None else bias_O.detach())


@contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Pack int8 weights for this engine; a layer always uses the engine it was packed for."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def int8_engines() -> list[str]:
    """The engines of this torch that multiply int8 weights by dynamically rounded inputs."""
    if not hasattr(torch.ops.quantized, "linear_dynamic"):
        return []
    return [name for name in ("fbgemm", "onednn", "qnnpack") if name in torch.backends.quantized.supported_engines]


def can_pack(tensor: Tensor) -> bool:
    """Whether oneDNN can pack this weight."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _has_vnni() -> bool:
    known: Any = getattr(torch.cpu, "_is_vnni_supported", None) or getattr(torch.cpu, "_is_avx512_vnni_supported", None)
    return bool(known is not None and known())


# --- the choice --------------------------------------------------------------------------------------------------


def make_linear(kind: LinearKind, weight_OI: Tensor, bias_O: Tensor | None) -> PackedLinear | Int8Linear | None:
    """A layer of this kind for these weights; None for a plain layer."""
    if kind.startswith("int8-"):
        _check_int8(kind, weight_OI)  # the model may have moved since the kind was chosen
        with BUILDING:
            return Int8Linear(weight_OI, bias_O, *int8_parts(kind))
    if kind == "packed" and can_pack(weight_OI):
        return PackedLinear(weight_OI, bias_O)
    return None


def chosen_kind(wanted: str, model: nn.Module) -> LinearKind:
    """The kind of linear layers for a model: `auto` chooses the faster of plain and packed, `int8` the fastest engines.

    ValueError if this model or this torch does not support the kind.
    """
    parameter = next(model.parameters())
    if wanted.startswith("int8"):
        _check_int8(wanted, parameter)
        if wanted != "int8":
            return wanted
        kinds = [f"int8-{engine}" for engine in int8_engines()]
        few = _fastest(kinds, model)
        many = _fastest(sorted(kinds, key=lambda k: k != "int8-onednn"), model, MANY_OUTPUTS)
        halves = f"-{HALF}" if half_attention.is_faster(torch.get_num_threads()) else ""
        return few + many.removeprefix("int8") + halves
    if wanted == "packed" and not can_pack(parameter):
        raise ValueError(
            "linears: packed needs a float32 model on a CPU and a torch with oneDNN; "
            f"the model is {parameter.dtype} on {parameter.device}"
        )
    if wanted == "auto":
        return _fastest(["packed", "plain"], model) if can_pack(parameter) else "plain"
    if wanted not in ("plain", "packed"):
        raise ValueError(f"linears: expected auto, plain or packed, got {wanted!r}")
    return wanted


def int8_parts(kind: LinearKind) -> list[str]:
    """The engines of an int8 kind."""
    return [part for part in kind.split("-")[1:] if part != HALF]


def _check_int8(wanted: str, parameter: Tensor) -> None:
    if not int8_engines():
        raise ValueError("dtype: this torch has no int8 linear layers (torch.ops.quantized.linear_dynamic)")
    if parameter.device.type != "cpu":
        raise ValueError(f"dtype: int8 needs a CPU; the model is on {parameter.device}")
    if parameter.dtype != torch.float32:
        raise ValueError(f"dtype: int8 needs float32 weights to start from; the model has {parameter.dtype}")
    if set(int8_parts(wanted)) - {*int8_engines()}:
        raise ValueError(f"linears: {wanted} is not in this torch; it has {', '.join(int8_engines())}")


def _fastest(kinds: list[LinearKind], model: nn.Module, outputs: int | None = None) -> LinearKind:
    """The fastest kind for a model's layers; the first one, unless another is clearly faster.

    outputs: measure calls that compute this many numbers; default: calls with few rows.
    """
    sizes = Counter(tuple(m.weight.shape) for m in model.modules() if type(m) is nn.Linear)
    large = {size: count for size, count in sizes.items() if size[0] * size[1] >= MIN_WEIGHTS}
    if not large:  # too small to measure
        return "plain" if "plain" in kinds else kinds[0]
    threads = torch.get_num_threads()
    best, least = kinds[0], float("inf")
    for kind in kinds:
        seconds = sum(count * _measured(kind, *size, threads, outputs) for size, count in large.items())
        if seconds < MAX_TIME_RATIO * least:
            best, least = kind, seconds
    return best


@functools.lru_cache
def _measured(kind: LinearKind, out: int, into: int, threads: int, outputs: int | None = None) -> float:
    """Seconds per call of a layer of this size; for a wide layer, extrapolated from a part of it."""
    part = min(out, MAX_MEASURED_OUTPUTS)
    weight, bias = torch.randn(part, into), torch.randn(part)
    layer = make_linear(kind, weight, bias) or (lambda x: F.linear(x, weight, bias))
    return out / part * _seconds(layer, into, ROWS if outputs is None else (-(-outputs // part),))


def _seconds(layer: Callable[[Tensor], Tensor], into: int, row_counts: Sequence[int]) -> float:
    """CPU time of a call, summed over row counts; the minimum of several runs, because the machine may be busy."""
    total = 0.0
    with torch.inference_mode():
        for rows in row_counts:
            x = torch.randn(rows, into)
            layer(x)
            times = []
            for _ in range(7):
                start = time.process_time()
                layer(x)
                times.append(time.process_time() - start)
            total += min(times)
    return total


# --- a model's layers --------------------------------------------------------------------------------------------


class Linears:
    """Replacements for the linear layers of a module, by layer: `layers[child]` replaces `child`."""

    def __init__(self, module: nn.Module, kind: LinearKind) -> None:
        self.layers: dict[nn.Module, PackedLinear | Int8Linear] = {}
        for child in module.modules():
            made = make_linear(kind, child.weight, child.bias) if type(child) is nn.Linear else None
            if made is not None:
                self.layers[child] = made

    def install(self, module: nn.Module) -> None:
        """Replace the layers in the module itself."""
        for parent in list(module.modules()):
            for name, child in parent.named_children():
                if child in self.layers:
                    parent._modules[name] = self.layers[child]

    @property
    def copied_bytes(self) -> int:
        """Size of the packed copies of weights."""
        return sum(made.copied_bytes for made in self.layers.values())


class MadeFrom(Generic[Made]):
    """Something made from a module's weights; made again when they change. One thread makes it, the others wait."""

    def __init__(self) -> None:
        self._current: tuple[Any, _Sample, Made] | None = None

    def __call__(self, module: nn.Module, kind: LinearKind, make: Callable[[], Made]) -> Made:
        made = self._if_current(module, kind)
        if made is None:
            with BUILDING:
                made = self._if_current(module, kind)
                if made is None:
                    stamp, sample = (kind, stamp_of(module)), _Sample(module if kind != "plain" else None)
                    made = make()
                    self._current = (stamp, sample, made)
        return made

    def _if_current(self, module: nn.Module, kind: LinearKind) -> Made | None:
        current = self._current
        if current is None or current[0] != (kind, stamp_of(module)) or current[1].has_changed():
            return None
        return current[2]

    def discard(self) -> None:
        """Make it again at the next call."""
        self._current = None

    @property
    def latest(self) -> Made | None:
        return None if self._current is None else self._current[2]


def stamp_of(module: nn.Module) -> tuple[Any, ...]:
    """A value that changes with the weights: optimizer steps, `load_state_dict`, `to`, in-place writes; not `.data`."""
    return tuple(
        (tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version)
        for tensors in (module.parameters(), module.buffers())
        for tensor in tensors
    )


class _Sample:
    """A few values of every weight on the CPU, to notice writes through `.data`, which `stamp_of` does not see.

    A write to a few single elements may miss them all.
    """

    def __init__(self, module: nn.Module | None) -> None:
        tensors = () if module is None else (*module.parameters(), *module.buffers())
        self._views = [
            _spread(tensor.detach())
            for tensor in tensors
            if tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.numel()
        ]
        self._values = self._read()

    def _read(self) -> Tensor | None:
        return torch.cat(self._views).view(torch.int32) if self._views else None  # as integers, NaN equals itself

    def has_changed(self) -> bool:
        now = self._read()
        return now is not None and self._values is not None and not torch.equal(now, self._values)


def _spread(tensor: Tensor) -> Tensor:
    """About `SAMPLED` elements of a tensor, sharing its memory."""
    while tensor.dim() > 1 and not tensor.is_contiguous():
        tensor = tensor[..., 0]
    flat = tensor.view(-1) if tensor.dim() != 1 else tensor
    return flat[:: max(1, len(flat) // SAMPLED)]
