"""Encoding on a GPU: small batches are padded to one of few shapes; encoder, gate and memory of a shape are one graph.

    ids, mask ─ pad ─▶ static inputs ─▶ encoder ─▶ gate ─▶ memory at full length ─▶ static outputs ─ cut, copy ─▶ memory

Launching the kernels of a small batch takes longer than running them. A shape is captured when it occurs for the second
time. The host waits for the GPU once per batch, for the lengths of the memories.

Shapes: B sentences, N source positions, K memory rows, D model width.
"""

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.modeling_outputs import BaseModelOutput

from l0drop.core.gates import Gates
from l0drop.core.memory import Memory, dense_memory, keep_one, short_memory
from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.decoding.gpu.graphs import Graphs
from l0drop.decoding.gpu.slots import SLOTS
from l0drop.decoding.linear import rounded_rows, stamp_of
from l0drop.models.attention import padding_bias
from l0drop.models.families import family_of, positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.view import eval_view

GraphPart = Literal["short", "dense", "ungated", "encodings"]
"""What is computed: the short or the dense memory, all rows as the memory of a model without gates, or encodings."""

TOKENS = 1 << 14
"""Padded tokens of the largest batch that is padded and captured; in larger ones the GPU is busy anyway."""

LENGTH_STEP = 8
"""Lengths are multiples of it with at most four significant bits: at most an eighth of a long batch is padding."""

SCORES = 1 << 28
"""Bytes of all attention scores of a layer, if they are computed as one tensor: more are not captured."""

CAPTURED = 64
"""Captured shapes to keep."""


class Replayed(NamedTuple):
    """What a batch gives. rows: of the memory of each sentence; gates: None for a model without gates."""

    memory: Memory
    gates: Gates | None
    rows: list[int]


@dataclass(frozen=True, eq=False)
class _Outputs:
    """The outputs for a shape, without a decision that needs the host.

    states: [B, K, D], the memory at full length, or encodings. numbers: the rows of each memory, then whether a value
    is not finite.
    """

    states: Tensor
    numbers: Tensor
    memory: Memory | None = None
    gates: Gates | None = None


@dataclass(frozen=True, eq=False)
class _Shape:
    """A shape whose graph writes these outputs."""

    replay: Callable[[], None]
    outputs: _Outputs


def can_capture(model: Any, encoder: nn.Module) -> bool:
    """Whether a graph of this model's encoder computes what the encoder does."""
    family, l0drop = family_of(type(model)), getattr(model.config, "l0drop", None)
    config: Any = encoder.config
    shortener = model.shortener if isinstance(model, L0DropModel) else None
    return (
        not family.full_bias
        and not family.reads_audio
        and model.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and config._attn_implementation in ("sdpa", "eager")
        and not (l0drop is not None and l0drop.layerwise)
        and not (shortener is not None and shortener.needs_attention)  # of the encoder's own layers
        and not torch.is_autocast_enabled(model.device.type)
        and not any(map(_is_changed, encoder.modules()))
    )


def _is_changed(module: nn.Module) -> bool:
    """Whether Python code of somebody else runs in a module: a graph would not run it."""
    if "forward" in vars(module) or not _is_known(type(module).__module__):
        return True
    if not module._forward_pre_hooks and not module._forward_hooks:
        return False
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    # Hugging Face's own hooks record hidden states if they are asked for
    return any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)


@functools.lru_cache
def _is_known(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "transformers", "l0drop")


def settings_of(model: Any, encoder: Any) -> tuple[Any, ...]:
    """What a graph depends on beside the encoder's weights."""
    if not isinstance(model, L0DropModel):
        return (encoder.config._attn_implementation,)
    return (
        encoder.config._attn_implementation,
        model.config.l0drop.gating,
        type(model.gate),
        model.gate.graph_key(),
        stamp_of(model.gate),
    )


def gates_in_graph(model: Any) -> bool:
    """Whether a model's gates and memory can be part of a graph."""
    answers = "graph_key" in vars(type(model.gate)) and model.gate.graph_key() is not None
    return answers and not model.config.l0drop.always_keep


class EncoderGraphs:
    """The captured shapes of a model's encoder. One thread at a time; others wait.

    capture: whether to capture graphs; otherwise the same computations run one by one.
    """

    def __init__(self, model: Any, capture: bool = True) -> None:
        decoder = model.get_decoder()
        self.view = eval_view(model, {decoder: decoder})  # keeps the weights that graphs read
        self.encoder = getattr(model, "base_class", type(model)).get_encoder(self.view)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.positions = positions_of(model, "encoder")
        pad = model.config.pad_token_id
        self.pad = 0 if pad is None else int(pad)
        config = model.config
        self.width: int = config.hidden_size
        heads = getattr(config, "encoder_attention_heads", None) or config.num_heads
        all_scores = self.positions is None or self.encoder.config._attn_implementation == "eager"
        self.score_bytes = heads * self.dtype.itemsize if all_scores else 0
        self.capture = capture
        self.captured: OrderedDict[tuple[GraphPart, int, int], _Shape] = OrderedDict()
        self._seen: set[tuple[GraphPart, int, int]] = set()
        self.refused = False
        self._lock = threading.Lock()
        self._graphs = Graphs(self.device)
        self._given: Tensor | None
        self._staged: Tensor | None
        self._states: Tensor | None
        self._event: Any
        self._forget_all()

    def memory(self, part: GraphPart, ids_BN: Tensor, mask_BN: Tensor) -> Replayed | None:
        """The memory of a batch; None if the batch must be encoded without a graph."""
        with self._lock:
            outputs = self._outputs(part, ids_BN, mask_BN)
            if outputs is None:
                return None
            (B, N), rows = ids_BN.shape, outputs.numbers.tolist()
            if rows.pop():
                return None  # the plain computation says what is wrong
            assert outputs.memory is not None
            rows = rows[:B]
            K = max(rows) if part == "short" else N
            memory = outputs.memory
            found = Replayed(
                Memory(
                    _copied(memory.states[:B, :K]),
                    _copied(memory.bias[:B, ..., :K]),
                    _copied(memory.index[:B, :K]),
                    _copied(memory.count[:B]),
                ),
                None
                if outputs.gates is None
                else Gates(*(None if tensor is None else _copied(tensor[:B, :N]) for tensor in outputs.gates)),  # type: ignore[arg-type]
                rows,
            )
            self._read()
            return found

    def encodings(self, ids_BN: Tensor, mask_BN: Tensor) -> Tensor | None:
        """The encodings [B, N, D] of a batch; None if the batch must be encoded without a graph."""
        with self._lock:
            outputs = self._outputs("encodings", ids_BN, mask_BN)
            if outputs is None or bool(outputs.numbers[-1]):
                return None
            found = _copied(outputs.states[: len(ids_BN), : ids_BN.shape[1]])
            self._read()
            return found

    def free(self) -> None:
        """Free all buffers and graphs, after an allocation failed; they are made again when needed."""
        with self._lock:
            self._graphs.wait()  # other threads' streams may still copy outputs
            self._forget_all()

    def _forget_all(self) -> None:
        self.captured.clear()
        self._seen.clear()
        self._given = self._staged = self._states = None
        self._event = None

    def _read(self) -> None:
        """Outputs are being copied: the next replay, perhaps on another thread's stream, waits for it."""
        if self.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(self.device))

    def shape_for(self, sentences: int, length: int) -> tuple[int, int] | None:
        """The shape to which so many sentences of this length are padded; None if they are too many."""
        if sentences > SLOTS[-1] or sentences * length > TOKENS:
            return None
        B = next(size for size in SLOTS if size >= sentences)
        N = -(-rounded_rows(length) // LENGTH_STEP) * LENGTH_STEP
        N = N if self.positions is None else min(N, self.positions)
        return None if B * N > TOKENS or B * N * N * self.score_bytes > SCORES else (B, N)

    def _outputs(self, part: GraphPart, ids_BN: Tensor, mask_BN: Tensor) -> _Outputs | None:
        """The outputs for a batch in its shape, which the next call overwrites."""
        shape = self.shape_for(*ids_BN.shape)
        if shape is None or self.refused:
            return None
        key = (part, *shape)
        if self.capture and key not in self._seen:
            self._seen.add(key)
            return None
        with torch.inference_mode():
            if self._event is not None:
                torch.cuda.current_stream(self.device).wait_event(self._event)
            try:
                given = self._pad(ids_BN, mask_BN, shape)
                if not self.capture:
                    return self._compute(part, given)
                captured = self._captured(key, given)
            except RuntimeError as error:
                self._graphs.wait()
                self._forget_all()
                if not is_out_of_memory(error):
                    self._refuse(error)
                return None
            captured.replay()
            return captured.outputs

    def _refuse(self, error: RuntimeError) -> None:
        self.refused = True
        reason = str(error).partition("\n")[0]
        warnings.warn(f"{type(self.view).__name__}: its encoder cannot be captured ({reason})", stacklevel=6)

    def _captured(self, key: tuple[GraphPart, int, int], given: Tensor) -> _Shape:
        known = self.captured.get(key)
        if known is not None:
            self.captured.move_to_end(key)
            return known
        while len(self.captured) >= CAPTURED:
            self.captured.popitem(last=False)
        if not self.captured:
            self._graphs.forget()
        made: list[_Outputs] = []

        def run() -> None:
            made[:] = [self._compute(key[0], given)]

        replay = self._graphs.capture(run)
        self.captured[key] = _Shape(replay, made[0])
        return self.captured[key]

    def _pad(self, ids_BN: Tensor, mask_BN: Tensor, shape: tuple[int, int]) -> Tensor:
        """[2, B, N], ids and mask in the static inputs. Sentences and positions that fill the shape are padding, but
        every sentence has a real token: attention over nothing is undefined."""
        on_gpu = self.device.type == "cuda"
        if self._given is None:
            self._given = torch.zeros(2 * TOKENS, dtype=torch.long, device=self.device)
            self._staged = torch.zeros(2 * TOKENS, dtype=torch.long, pin_memory=on_gpu)
            rows = TOKENS + SLOTS[-1]  # with one for the dropped ones of each sentence
            self._states = torch.empty(rows * self.width, dtype=self.dtype, device=self.device)
        assert self._staged is not None
        (B, N), (sentences, length) = shape, ids_BN.shape
        given = self._given[: 2 * B * N].view(2, B, N)
        here = ids_BN.device.type == mask_BN.device.type == "cpu"
        # numbers on the CPU travel together; the transfer has ended when the outputs of the last batch are read
        target = self._staged[: 2 * B * N].view(2, B, N) if here else given
        target[0] = self.pad
        target[1] = 0
        target[1, sentences:, 0] = 1
        target[0, :sentences, :length].copy_(ids_BN)
        target[1, :sentences, :length].copy_(mask_BN)
        if here:
            given.copy_(target, non_blocking=True)
        return given

    def _compute(self, part: GraphPart, given: Tensor) -> _Outputs:
        """The outputs for static inputs [2, B, N]; reads no value."""
        ids_BN, mask_BN = given[0], given[1] != 0
        bias = padding_bias(mask_BN, self.dtype)  # a mask that Hugging Face takes as it is, without looking into it
        with _TakenAsFinite():
            encodings = self.encoder(input_ids=ids_BN, attention_mask=bias, return_dict=True).last_hidden_state
        broken = ~encodings.isfinite().all()
        if part == "encodings":
            return _Outputs(self._kept(encodings), broken.long()[None])
        gates = None
        if part == "ungated":
            memory = dense_memory(encodings, mask_BN.to(encodings.dtype), mask_BN, "mask")
        else:
            gating = self.view.config.l0drop.gating
            gates = self.view.gate(encodings, mask_BN, input_ids=ids_BN)
            if gates.log_alpha is not None:
                broken = broken | ~gates.log_alpha.isfinite().all()
            gates = keep_one(gates, mask_BN, gating)
            if part == "short":
                memory = short_memory(encodings, gates.values, mask_BN, gating, mask_BN.shape[1])
            else:
                memory = dense_memory(encodings, gates.values, mask_BN, gating)
        states = self._kept(memory.states)
        memory = Memory(states, memory.bias, memory.index, memory.count)
        return _Outputs(states, torch.cat([memory.rows, broken.long()[None]]), memory, gates)

    def _kept(self, states_BKD: Tensor) -> Tensor:
        """A copy in the buffer that all shapes share: a graph's own outputs would stay in memory, for every shape."""
        B, K, D = states_BKD.shape
        assert self._states is not None
        return self._states[: B * K * D].view(B, K, D).copy_(states_BKD)


class ReplayedEncoder(nn.Module):
    """Takes the place of an encoder in a view of its model, and replays graphs where it can."""

    def __init__(self, graphs: EncoderGraphs, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.replayed = graphs.encodings
        self.eval()

    @property
    def config(self) -> Any:
        return self.encoder.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **arguments: Any) -> Any:
        found = None
        if not {name for name, value in arguments.items() if value is not None} - {"return_dict"}:
            mask_BN = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            found = self.replayed(input_ids, mask_BN != 0)
        if found is None:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask, **arguments)
        return BaseModelOutput(last_hidden_state=found)  # type: ignore[arg-type]


class _TakenAsFinite(TorchFunctionMode):
    """In float16 some of Hugging Face's layers look whether all their values are finite, which no graph can.

    Here the answer is yes. A value that is not spreads to the encodings; then the plain computation decides.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.isfinite:
            return torch.ones((), dtype=torch.bool)
        return func(*args, **(kwargs or {}))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
