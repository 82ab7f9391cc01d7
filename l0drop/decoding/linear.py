"""Linear layers for a CPU: weights packed for the machine, or rounded to int8.

`torch.nn.functional.linear` lays out weights anew at every call, which does not pay for the few rows of a decoding
step. oneDNN packs them once. Which of the two is faster depends on the machine and the layer, so it is measured, once
for each size. Packed weights are copies: `Linears` notices when the model's have changed, and packs them again.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["auto", "plain", "packed", "int8"]
KINDS = ("auto", "plain", "packed", "int8")

MIN_WEIGHTS = 1 << 16
"""Smaller layers are left as they are: their time goes into the call, not into the product."""

ROWS = (4, 40)
"""Rows to measure a layer with: one sentence by four beams, and ten."""

MAX_ROWS = 128
"""The row count that oneDNN is told to pack for; it serves others as well."""


class PackedLinear(nn.Module):
    """A linear layer whose weight oneDNN has laid out for this machine."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.weight = weight_OI  # T5 looks at its dtype
        self.bias_O = None if bias_O is None else bias_O.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), MAX_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias_O, "none", [], "")


class Int8Linear(nn.Module):
    """A linear layer with weights of 8 bits, each output with a scale of its own; inputs are rounded as they come."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, engine: str) -> None:
        super().__init__()
        self.weight = weight_OI  # T5 looks at its dtype
        weight_OI = weight_OI.detach()
        scales_O = weight_OI.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        zeros_O = torch.zeros(len(weight_OI), dtype=torch.long)
        with quantized_engine(engine), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces another home for quantization, which has no such kernel
            rounded = torch.quantize_per_channel(weight_OI, scales_O, zeros_O, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(rounded, None if bias_O is None else bias_O.detach())
        # without VNNI, sums of two 8-bit products overflow 16 bits: one bit of the inputs goes
        self.reduce_range = not _has_vnni()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed, self.reduce_range)


@contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Inside, torch packs int8 weights for this engine; each layer stays with the one it was packed for."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def int8_engines() -> list[str]:
    """The engines of this torch that multiply int8 weights by inputs rounded as they come."""
    if not hasattr(torch.ops.quantized, "linear_dynamic"):
        return []
    return [name for name in ("fbgemm", "onednn", "qnnpack") if name in torch.backends.quantized.supported_engines]


def can_pack(tensor: Tensor) -> bool:
    """Whether oneDNN can pack this weight here."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _has_vnni() -> bool:
    known: Any = getattr(torch.cpu, "_is_vnni_supported", None) or getattr(torch.cpu, "_is_avx512_vnni_supported", None)
    return bool(known is not None and known())


# --- the choice --------------------------------------------------------------------------------------------------


def make_linear(kind: Kind, weight_OI: Tensor, bias_O: Tensor | None) -> nn.Module | None:
    """A layer of this kind for these weights; None where the plain one serves best, or no other is possible."""
    if kind == "int8":
        engine = _quickest_int8(*weight_OI.shape, torch.get_num_threads())
        return Int8Linear(weight_OI, bias_O, engine)
    if kind == "plain" or not can_pack(weight_OI):
        return None
    if kind == "auto" and (
        weight_OI.numel() < MIN_WEIGHTS or not _packing_pays(*weight_OI.shape, torch.get_num_threads())
    ):
        return None
    return PackedLinear(weight_OI, bias_O)


@functools.lru_cache
def _packing_pays(out: int, into: int, threads: int) -> bool:
    weight, bias = torch.randn(out, into), torch.randn(out)
    packed = PackedLinear(weight, bias)
    return _seconds(packed, into) < _seconds(lambda x: F.linear(x, weight, bias), into)


@functools.lru_cache
def _quickest_int8(out: int, into: int, threads: int) -> str:
    engines = int8_engines()
    if len(engines) == 1 or out * into < MIN_WEIGHTS:
        return engines[0]
    weight, bias = torch.randn(out, into), torch.randn(out)
    return min(engines, key=lambda engine: _seconds(Int8Linear(weight, bias, engine), into))


def _seconds(layer: Callable[[Tensor], Tensor], into: int) -> float:
    """What a call takes, over several row counts; the least of a few, because others use the machine too."""
    total = 0.0
    with torch.inference_mode():
        for rows in ROWS:
            x = torch.randn(rows, into)
            layer(x)
            times = []
            for _ in range(5):
                start = time.perf_counter()
                layer(x)
                times.append(time.perf_counter() - start)
            total += min(times)
    return total


# --- a model's layers --------------------------------------------------------------------------------------------


class Linears:
    """Linear layers for the modules of a model, put in their places for as long as they run.

    The model itself is left as it is: outside of `running` it has its own layers.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._places: list[tuple[nn.Module, str, nn.Linear, nn.Module]] = []
        self._stamp: Any = None

    def prepare(self, module: nn.Module) -> None:
        """Pack what is linear in a module; a second time only if its weights have changed since."""
        stamp = stamp_of(module)
        if stamp == self._stamp:
            return
        self._places = []
        for parent in module.modules():
            for name, child in parent.named_children():
                if type(child) is nn.Linear:
                    made = make_linear(self.kind, child.weight, child.bias)
                    if made is not None:
                        self._places.append((parent, name, child, made.eval()))
        self._stamp = stamp

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the packed layers stand where the plain ones were."""
        try:
            for parent, name, _, made in self._places:
                parent._modules[name] = made
            yield
        finally:
            for parent, name, child, _ in self._places:
                parent._modules[name] = child

    def install(self) -> None:
        """Leave the packed layers in their places."""
        for parent, name, _, made in self._places:
            parent._modules[name] = made

    @property
    def count(self) -> int:
        """How many layers are replaced."""
        return len(self._places)


def stamp_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when weights do: optimizer steps, `load_state_dict`, `to`, in-place writes; not through `.data`."""
    return tuple(
        (tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version)
        for tensors in (module.parameters(), module.buffers())
        for tensor in tensors
    )


def checked_kind(kind: Any, model: Any) -> Any:
    """A kind of linear layers that this model and this torch can have, or ValueError."""
    if kind not in KINDS:
        raise ValueError(f"linears: expected one of {', '.join(KINDS)}, got {kind!r}")
    parameter = next(model.parameters())
    if kind == "int8":
        if not int8_engines():
            raise ValueError("dtype: this torch has no int8 linear layers (torch.ops.quantized.linear_dynamic)")
        if parameter.device.type != "cpu":
            raise ValueError(f"dtype: int8 is for a CPU; the model is on {parameter.device}")
        if parameter.dtype != torch.float32:
            raise ValueError(f"dtype: int8 starts from float32 weights; the model has {parameter.dtype}")
    if kind == "packed" and not can_pack(parameter):
        raise ValueError(
            "linears: packed needs a float32 model on a CPU and a torch with oneDNN; "
            f"the model is {parameter.dtype} on {parameter.device}"
        )
    return kind
