"""Linear layers for a CPU: weights packed for the machine, or rounded to int8.

`torch.nn.functional.linear` lays out weights anew at every call, which does not pay for the few rows of a decoding
step. oneDNN packs them once. Which of the two is faster depends on the machine and the layer, so it is measured, once
for all layers of a model. Packed weights are copies: `Linears` notices when the model's change, and packs them again.
"""

import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0drop.decoding import half_attention

Kind = str
"""Of linear layers: `plain`, `packed`, or `int8-FEW-MANY`, after torch's engines for few and for many outputs, with
`-bf16` behind it where the encoder's attention is in bfloat16 (`half_attention`)."""

HALF = "bf16"

MIN_WEIGHTS = 1 << 16
"""Smaller layers are not measured: their time goes into the call, not into the product."""

ROWS = (4, 40)
"""Rows to measure a layer with: one sentence by four beams, and ten."""

WIDE = 4096
"""Wider layers, of outputs, are measured in part: to make one takes longer than to measure it."""

MANY = 1 << 20
"""From so many numbers that a call makes on, it is of the kind that makes many."""

CLEARLY = 0.9
"""What another kind has to take, at most, of the first one's time to be chosen instead: the same model on the same
machine should get the same kind, however busy others are, because kinds round differently."""

MAX_ROWS = 128
"""The row count that oneDNN is told to pack for; it serves others as well."""


class PackedLinear(nn.Module):
    """A linear layer whose weight oneDNN has laid out for this machine."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.weight = weight_OI  # T5 looks at its dtype
        self.bias_O = None if bias_O is None else bias_O.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), MAX_ROWS)

    @property
    def copied_bytes(self) -> int:
        return self.weight.nbytes

    def forward(self, x: Tensor, then: str = "none") -> Tensor:
        """`then` is done to the outputs in passing: none, relu."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias_O, then, [], "")


class Int8Linear(nn.Module):
    """A linear layer with weights of 8 bits, each output with a scale of its own; inputs are rounded as they come.

    torch has several engines for it. One is quickest for the few numbers that a step of the decoder makes, another for
    the many of an encoder or of an output layer, so the weights are packed for both.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, few: str, many: str | None = None) -> None:
        super().__init__()
        self.weight = weight_OI  # T5 looks at its dtype
        self.out = len(weight_OI)
        weight_OI = weight_OI.detach()
        scales_O = weight_OI.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        zeros_O = torch.zeros(self.out, dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces another home for quantization, which has no such kernel
            rounded = torch.quantize_per_channel(weight_OI, scales_O, zeros_O, 0, torch.qint8)
        self.few = _packed_int8(rounded, bias_O, few)
        self.many = self.few if many in (None, few) else _packed_int8(rounded, bias_O, str(many))
        # without VNNI, sums of two 8-bit products overflow 16 bits: one bit of the inputs goes
        self.reduce_range = not _has_vnni()

    @property
    def copied_bytes(self) -> int:
        return self.weight.numel() * (1 if self.many is self.few else 2)

    def forward(self, x: Tensor) -> Tensor:
        many = x.numel() // x.shape[-1] * self.out >= MANY
        return torch.ops.quantized.linear_dynamic(x, self.many if many else self.few, self.reduce_range)


def _packed_int8(rounded: Tensor, bias_O: Tensor | None, engine: str) -> Any:
    with quantized_engine(engine):
        return torch.ops.quantized.linear_prepack(rounded, None if bias_O is None else bias_O.detach())


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


def make_linear(kind: Kind, weight_OI: Tensor, bias_O: Tensor | None) -> PackedLinear | Int8Linear | None:
    """A layer of this kind for these weights; None where the plain one is to stay."""
    if kind.startswith("int8-"):
        _check_int8(kind, weight_OI)  # the model may have moved since the kind was chosen
        return Int8Linear(weight_OI, bias_O, *int8_parts(kind))
    if kind == "packed" and can_pack(weight_OI):
        return PackedLinear(weight_OI, bias_O)
    return None


def chosen_kind(wanted: str, model: nn.Module) -> Kind:
    """The kind of linear layers for a model: `auto` is plain or packed, `int8` with one engine or the other, whichever
    is quicker here; other kinds are checked. ValueError if this model or this torch cannot have it."""
    parameter = next(model.parameters())
    if wanted.startswith("int8"):
        _check_int8(wanted, parameter)
        if wanted != "int8":
            return wanted
        kinds = [f"int8-{engine}" for engine in int8_engines()]
        few, many = _quickest(kinds, model), _quickest(sorted(kinds, key=lambda k: k != "int8-onednn"), model, MANY)
        halves = f"-{HALF}" if half_attention.pays(torch.get_num_threads()) else ""
        return few + many.removeprefix("int8") + halves
    if wanted == "packed" and not can_pack(parameter):
        raise ValueError(
            "linears: packed needs a float32 model on a CPU and a torch with oneDNN; "
            f"the model is {parameter.dtype} on {parameter.device}"
        )
    if wanted == "auto":
        return _quickest(["packed", "plain"], model) if can_pack(parameter) else "plain"
    if wanted not in ("plain", "packed"):
        raise ValueError(f"linears: expected auto, plain or packed, got {wanted!r}")
    return wanted


def int8_parts(kind: Kind) -> list[str]:
    """The engines that an int8 kind names."""
    return [part for part in kind.split("-")[1:] if part != HALF]


def _check_int8(wanted: str, parameter: Tensor) -> None:
    if not int8_engines():
        raise ValueError("dtype: this torch has no int8 linear layers (torch.ops.quantized.linear_dynamic)")
    if parameter.device.type != "cpu":
        raise ValueError(f"dtype: int8 is for a CPU; the model is on {parameter.device}")
    if parameter.dtype != torch.float32:
        raise ValueError(f"dtype: int8 starts from float32 weights; the model has {parameter.dtype}")
    if set(int8_parts(wanted)) - {*int8_engines()}:
        raise ValueError(f"linears: {wanted} is not in this torch; it has {', '.join(int8_engines())}")


def _quickest(kinds: list[Kind], model: nn.Module, outputs: int | None = None) -> Kind:
    """The kind whose layers take the least time in a model; the first one, unless another is clearly quicker.

    Of calls that make so many numbers; left out, of calls with few rows.
    """
    sizes = Counter(tuple(m.weight.shape) for m in model.modules() if type(m) is nn.Linear)
    large = {size: count for size, count in sizes.items() if size[0] * size[1] >= MIN_WEIGHTS}
    if not large:  # too small to tell
        return "plain" if "plain" in kinds else kinds[0]
    threads = torch.get_num_threads()
    best, least = kinds[0], float("inf")
    for kind in kinds:
        seconds = sum(count * _measured(kind, *size, threads, outputs) for size, count in large.items())
        if seconds < CLEARLY * least:
            best, least = kind, seconds
    return best


@functools.lru_cache
def _measured(kind: Kind, out: int, into: int, threads: int, outputs: int | None = None) -> float:
    """Seconds of a layer of this size; of a wide one, by the time of a part of it."""
    part = min(out, WIDE)
    weight, bias = torch.randn(part, into), torch.randn(part)
    layer = make_linear(kind, weight, bias) or (lambda x: F.linear(x, weight, bias))
    return out / part * _seconds(layer, into, ROWS if outputs is None else (-(-outputs // part),))


def _seconds(layer: Callable[[Tensor], Tensor], into: int, row_counts: Sequence[int]) -> float:
    """What a call takes of the processor, over several row counts; the least of a few: others use the machine too."""
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
    """Linear layers for the modules of a model, put in their places for as long as they run.

    The model itself is left as it is: outside of `running` it has its own layers.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._places: list[tuple[nn.Module, str, nn.Linear, PackedLinear | Int8Linear]] = []
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
                        self._places.append((parent, name, child, made))
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

    @property
    def copied_bytes(self) -> int:
        """What packed weights take beside the model's own."""
        return sum(made.copied_bytes for _, _, _, made in self._places)


def stamp_of(module: nn.Module) -> tuple[Any, ...]:
    """What changes when weights do: optimizer steps, `load_state_dict`, `to`, in-place writes; not through `.data`."""
    return tuple(
        (tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version)
        for tensors in (module.parameters(), module.buffers())
        for tensor in tensors
    )
