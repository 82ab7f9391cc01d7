"""Encoding for the engine: a batch of token ids or audio features becomes memories, in groups of similar length.

Shapes: B sentences, N source positions, K memory rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0drop.core.dial import Dial, Dials
from l0drop.core.gates import Gates
from l0drop.core.memory import Memory, compress, full, keep_one, real_tokens
from l0drop.core.values import WrongKindError
from l0drop.decoding.gpu.encoding import (
    EncoderGraphs,
    GraphPart,
    ReplayedEncoder,
    can_capture,
    gates_in_graph,
    settings_of,
)
from l0drop.decoding.grouping import cheapest_groups, split_evenly
from l0drop.decoding.half_attention import use_half_attention
from l0drop.decoding.linear import HALF, LinearKind, Linears, MadeFrom
from l0drop.models.families import family_of, positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.view import eval_view
from l0drop.models.whisper import FRAMES_PER_ROW

ENCODE_COST = 1.5e8
"""Fixed cost of encoding a group of sentences, in multiply-adds; the cost per token comes on top."""

ENCODE_TOKENS = 2048
"""Maximum tokens to encode together, unless one sentence has more: activations should stay in the CPU's caches."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded batch: the memory, and the gates that shaped it.

    gates: at full length [B, N]; None for a model without gates. kept: [B, N], True on real tokens in the memory.
    known_rows: `rows` on the host, if they are known and the memory was checked.
    """

    memory: Memory
    gates: Gates | None
    kept: Tensor
    known_rows: Sequence[int] | None = None

    def take(self, sentences: Tensor) -> "Encoded":
        """The memories of these sentences."""
        memory, gates = self.memory, self.gates
        return Encoded(
            Memory(*(tensor[sentences] for tensor in (memory.states, memory.bias, memory.index, memory.count))),
            None if gates is None else Gates(*(None if t is None else t[sentences] for t in gates)),  # type: ignore[arg-type]
            self.kept[sentences],
        )

    @property
    def rows(self) -> Tensor:
        """[B], the number of memory rows of each sentence, up to its last visible one."""
        return self.memory.rows

    def checked_rows(self) -> Sequence[int]:
        """`rows` on the host. ValueError if a row that the decoder sees has a NaN or infinite value."""
        if self.known_rows is not None:
            return self.known_rows
        memory = self.memory
        seen_BK = memory.bias[:, 0, 0] > -torch.inf
        bad_B = (~memory.states.isfinite().all(-1) & seen_BK).any(1)
        rows = torch.where(bad_B, -1, memory.rows).tolist()  # one transfer for both
        if (bad := rows.count(-1)) > 0:
            dtype = str(memory.states.dtype).removeprefix("torch.")
            raise ValueError(
                f"encodings: the encoder gives NaN or infinite values in {dtype} for {bad} of {len(rows)} sentences; "
                "its weights are damaged, or its values too large for this dtype: try float32"
            )
        return rows


class Encoder:
    """Encodes, gates and compresses batches with a model; the first half of `Engine`.

    linears: the kind of its linear layers. The attribute may be set; their copies are made again at the next call.
    """

    def __init__(self, model: Any, linears: LinearKind) -> None:
        self.family = family_of(type(model))
        self.model = model
        self.linears = linears
        self._made_encoder: MadeFrom[Linears] = MadeFrom()
        self._made_graphs: MadeFrom[EncoderGraphs] = MadeFrom()

    @property
    def is_gated(self) -> bool:
        """Whether the model shortens its memory with gates, or with another shortener, and they are enabled."""
        return isinstance(self.model, L0DropModel) and self.model.config.l0drop.enabled

    @property
    def shortener(self) -> str | None:
        """The class of the shortener that builds the memory instead of gates; None with gates, and without either."""
        own = self.model.shortener if self.is_gated else None
        return None if own is None else type(own).__name__

    @torch.no_grad()
    def encode(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        *,
        gates: Gates | Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        keep: float | Tensor | Sequence[float | None] | None = None,
        max_memory: int | Sequence[int | None] | None = None,
        shift: float | Sequence[float | None] | None = None,
        dense: bool | Sequence[bool] = False,
        **encoder_arguments: Any,
    ) -> Encoded:
        """The memory of a batch of token ids [B, N], or of features of one window of audio each."""
        device = self.model.device
        batch: dict[str, Any] = {**encoder_arguments}
        if attention_mask is not None:
            _tensor("attention_mask", attention_mask)
        if self.family.reads_audio:
            rows = positions_of(self.model, "encoder") or 0
            _check_features(inputs, self.model.config.num_mel_bins, rows * FRAMES_PER_ROW)
            batch["input_features"] = inputs.to(device, self.model.dtype)
            mask_BN = torch.ones(len(inputs), rows, dtype=torch.bool, device=device)
            if self.is_gated and self.model.config.l0drop.cut_padding is not None:
                mask_BN = self.model.audio_rows(batch["input_features"])  # clips of similar length are encoded together
        else:
            self._check_inputs(inputs)
            mask_BN = real_tokens(attention_mask, inputs)  # where they are: on a GPU, a check waits for it
        gated = self.is_gated
        dial = {"keep": keep, "max_memory": max_memory, "shift": shift}
        used = [name for name, value in dial.items() if _is_set(value)]
        for name, value in {**dial, "dense": dense}.items():
            if isinstance(value, (list, tuple)) and len(value) != len(mask_BN):
                raise ValueError(f"{name}: expected one setting for each of {len(mask_BN)} sentences, got {len(value)}")
        if gates is not None and used:
            raise ValueError(f"{used[0]}: the dial changes the model's own gates; it cannot be combined with gates")
        if used and not gated:
            raise ValueError(f"{used[0]}: this model has no gates, so nothing can be dropped")
        if gates is not None:
            if not hasattr(self.model.config, "l0drop"):
                raise ValueError("gates: a plain model has no gating; sparsify it first")
            given = gates if isinstance(gates, Gates) else Gates(gates)
            gates = Gates(*(None if t is None else _tensor("gates", t).to(device) for t in given))  # type: ignore[arg-type]
        if gated and gates is None:
            if hints is not None and not isinstance(hints, Mapping):
                raise WrongKindError(f"hints: expected tensors [B, N] by name, got {type(hints).__name__}")
            given_hints = {} if hints is None else hints
            moved = {name: _tensor(f"hints[{name!r}]", hint).to(device) for name, hint in given_hints.items()}
            batch["hints"] = None if hints is None else moved
        graphs = self._graphs(batch)
        if graphs is not None and gates is None and not hints and isinstance(dense, bool):
            found = self._memory_from_graph(graphs, inputs, mask_BN, dial, dense)
            if found is not None:
                return found
        if attention_mask is not None:
            batch["attention_mask"] = attention_mask.to(device)
        if not self.family.reads_audio:
            batch["input_ids"], mask_BN = inputs.to(device), mask_BN.to(device)
        groups = self._groups_to_encode(mask_BN, dense)
        view = self._view(graphs)
        if len(groups) == 1:
            return self._encode(view, batch, mask_BN, gates, dial, _first(dense))
        parts = []
        for group in groups:
            chosen = torch.tensor(group, device=device)
            longest = None if self.family.reads_audio else int(_lengths(mask_BN[chosen]).max())
            group_batch, group_mask, group_gates, group_dial, group_dense = (
                _part(value, chosen, longest) for value in (batch, mask_BN, gates, dial, dense)
            )
            parts.append(self._encode(view, group_batch, group_mask, group_gates, group_dial, _first(group_dense)))
        return _joined(parts, groups, mask_BN.shape[1])

    def _check_inputs(self, inputs: Any) -> None:
        """Raise unless `inputs` are token ids [B, N] that the encoder has embeddings and positions for.

        On a GPU, an id without an embedding would end the process.
        """
        first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else inputs
        if isinstance(first, str):
            raise WrongKindError(
                "inputs: expected token ids, got text; tokenize it first, or use l0drop.load(folder).generate(texts)"
            )
        if not isinstance(inputs, Tensor):
            raise WrongKindError(f"inputs: expected a tensor of token ids [B, N], got {type(inputs).__name__}")
        if inputs.dim() != 2 or inputs.dtype not in (torch.int64, torch.int32) or not inputs.numel():
            shape = tuple(inputs.shape)
            one = "; for one sentence, use inputs[None]" if inputs.dim() == 1 else ""
            raise ValueError(
                f"inputs: expected token ids [B, N] of type int64, got {inputs.dtype} of shape {shape}{one}"
            )
        rows = int(self.model.get_input_embeddings().num_embeddings)
        lowest, highest = torch.stack(inputs.aminmax()).tolist()
        if lowest < 0 or highest >= rows:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"inputs: no token has the id {wrong}; the vocabulary has {rows} tokens")
        positions = positions_of(self.model, "encoder")
        if positions is not None and inputs.shape[1] > positions:
            raise ValueError(f"inputs: {inputs.shape[1]} is more than the {positions} positions of the encoder")

    def _encode(
        self, view: Any, batch: dict[str, Any], mask_BN: Tensor, gates: Gates | None, dial: dict[str, Any], dense: bool
    ) -> Encoded:
        if gates is not None or "hints" not in batch:
            return self._encode_without_gate(view, batch, mask_BN, gates, dense)
        if dense or any(_is_set(value) for value in dial.values()):
            with view.dial(dense=dense, **dial):
                output = view.get_encoder()(**batch)
        else:  # a dial that the caller has set stays in effect
            output = view.get_encoder()(**batch)
        memory = Memory(output.last_hidden_state, output.memory_bias, output.memory_index, output.dropped)
        return Encoded(memory, output.gates, output.gates.values != 0)

    def _encode_without_gate(
        self, view: Any, batch: dict[str, Any], mask_BN: Tensor, gates: Gates | None, dense: bool
    ) -> Encoded:
        """Encode with the caller's gates, or with none, instead of the model's own."""
        encodings = self._base_encoder(view)(**batch, return_dict=True).last_hidden_state
        if gates is None:
            everything = Gates(mask_BN.to(encodings.dtype))
            return Encoded(full(encodings, everything, mask_BN, "mask"), None, mask_BN)
        l0drop = self.model.config.l0drop
        if self.shortener is not None:
            raise ValueError(f"gates: the memory of this model comes from its shortener, {self.shortener}")
        if l0drop.cut_padding is not None:
            raise ValueError("gates: a model with cut_padding decides by itself which rows there are")
        if l0drop.layerwise:
            raise ValueError(
                "gates: the layer-wise variant computes its gates inside the encoder and takes none from the caller"
            )
        gates = gates._replace(values=gates.values.to(torch.promote_types(encodings.dtype, torch.float32)))
        memory = (full if dense else compress)(encodings, gates, mask_BN, l0drop.gating)
        gates = keep_one(gates, mask_BN, l0drop.gating)
        return Encoded(memory, gates, gates.values != 0)

    def _base_encoder(self, model: Any) -> Any:
        return getattr(model, "base_class", type(model)).get_encoder(model)

    def _graphs(self, arguments: Mapping[str, Any]) -> EncoderGraphs | None:
        """The encoder's graphs; None if there are none, on a CPU or for an encoder that they cannot replace.

        arguments: those of the encoder beside ids and mask.
        """
        if not self._can_capture() or set(arguments) - {"hints"}:
            return None
        encoder = self._base_encoder(self.model)
        settings = settings_of(self.model, encoder)
        return self._made_graphs(encoder, str(settings), lambda: EncoderGraphs(self.model))

    def _can_capture(self) -> bool:
        return self.model.device.type == "cuda" and can_capture(self.model, self._base_encoder(self.model))

    def _memory_from_graph(
        self, graphs: EncoderGraphs, inputs: Tensor, mask_BN: Tensor, dial: dict[str, Any], dense: bool
    ) -> Encoded | None:
        """The memory of a batch, if encoder, gate and memory are one graph: at the gate's own setting."""
        part: GraphPart = "ungated"
        if self.is_gated:
            current = self.model.current_dial
            turned = not isinstance(current, Dial) or any(
                map(_is_set, (current.keep, current.max_memory, current.shift))
            )
            if turned or any(map(_is_set, dial.values())) or not gates_in_graph(self.model):
                return None
            part = "dense" if dense or current.dense else "short"
        found = graphs.memory(part, inputs, mask_BN)
        if found is None:
            return None
        kept = found.memory.index >= 0 if found.gates is None else found.gates.values != 0
        return Encoded(found.memory, found.gates, kept, found.rows)

    def _view(self, graphs: EncoderGraphs | None) -> Any:
        """The model for one call, whose encoder has this engine's linear layers and, in int8, its attention.

        The decoder is the model's own and is not called.
        """
        kind, encoder, decoder = self.linears, self._base_encoder(self.model), self.model.get_decoder()
        packed = self._made_encoder(encoder, kind, lambda: Linears(encoder, kind))
        replaced = {**packed.layers, decoder: decoder}
        if graphs is not None:
            replaced[encoder] = ReplayedEncoder(graphs, eval_view(encoder))
        view = eval_view(self.model, replaced)
        if kind.endswith(HALF):
            use_half_attention(self._base_encoder(view))
        return view

    def _groups_to_encode(self, mask_BN: Tensor, dense: bool | Sequence[bool] = False) -> list[list[int]]:
        """Sentences to encode together: all short or all dense, and of similar length (`_groups_by_length`)."""
        sentences = list(range(len(mask_BN)))
        if not isinstance(dense, (list, tuple)):
            return self._groups_by_length(mask_BN, sentences)
        parts = ([i for i in sentences if bool(dense[i]) is kind] for kind in (False, True))
        return [group for part in parts if part for group in self._groups_by_length(mask_BN, part)]

    def _groups_by_length(self, mask_BN: Tensor, sentences: list[int]) -> list[list[int]]:
        """Similar lengths together, to avoid padding, in groups that fit the CPU's caches.

        One group on a GPU, where padding costs less.
        """
        dial = getattr(self.model, "current_dial", None)
        per_sentence = isinstance(dial, Dials) or torch.is_tensor(getattr(dial, "keep", None))
        if mask_BN.device.type != "cpu" or self.family.full_bias or per_sentence:
            return [sentences]
        weights = sum(parameter.numel() for parameter in self._base_encoder(self.model).parameters())
        overhead = ENCODE_COST / max(1, weights)
        lengths = _lengths(mask_BN[sentences]).tolist()
        groups = cheapest_groups(lengths, lambda members, longest: overhead + members * longest)
        parts = [part for group in groups for part in split_evenly(group, ENCODE_TOKENS // max(1, lengths[group[0]]))]
        return [[sentences[i] for i in part] for part in parts] if len(parts) > 1 else [sentences]


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise WrongKindError(f"{name}: expected a tensor [B, N], got {type(value).__name__}")
    return value


def _check_features(inputs: Any, mels: int, frames: int) -> None:
    if not isinstance(inputs, Tensor):
        raise WrongKindError(
            f"inputs: expected features of audio [B, {mels}, {frames}], got {type(inputs).__name__}; extract them "
            "first, or use l0drop.load(folder).transcribe(files)"
        )
    if inputs.dim() != 3 or inputs.shape[1:] != (mels, frames) or not inputs.is_floating_point():
        raise ValueError(
            f"inputs: expected features of audio [B, {mels}, {frames}], got {inputs.dtype} of shape "
            f"{tuple(inputs.shape)}"
        )


def _is_set(setting: Any) -> bool:
    """Whether a setting of the dial is given, for at least one sentence."""
    return any(value is not None for value in setting) if isinstance(setting, (list, tuple)) else setting is not None


def _first(setting: bool | Sequence[bool]) -> bool:
    """The setting that all sentences of a group share."""
    return bool(setting[0]) if isinstance(setting, (list, tuple)) else setting  # type: ignore[return-value]


def _lengths(mask_BN: Tensor) -> Tensor:
    """[B], the position of each sentence's last real token, counted from 1."""
    return (mask_BN * torch.arange(1, mask_BN.shape[1] + 1, device=mask_BN.device)).amax(1)


def _part(value: Any, sentences: Tensor, length: int | None) -> Any:
    """Select sentences, up to `length` positions, from tensors [B, N] or [B], lists of B, and containers of them."""
    if isinstance(value, Gates):
        return Gates(*(_part(tensor, sentences, length) for tensor in value))
    if isinstance(value, (list, tuple)):
        return [value[sentence] for sentence in sentences.tolist()]
    if isinstance(value, dict):
        return {name: _part(inner, sentences, length) for name, inner in value.items()}
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value[sentences] if value.dim() == 1 else value[sentences, :length]


def _joined(parts: list[Encoded], groups: list[list[int]], length: int) -> Encoded:
    """The groups as one batch in the original order, with `length` source positions."""
    order = torch.tensor([index for group in groups for index in group]).argsort()
    rows = max(part.memory.states.shape[1] for part in parts)

    def joined(tensors: list[Tensor], size: int, dim: int, fill: float) -> Tensor:
        padded = []
        for tensor in tensors:
            padding = [0, 0] * (tensor.dim() - 1 - dim) + [0, size - tensor.shape[dim]]
            padded.append(torch.nn.functional.pad(tensor, padding, value=fill))
        return torch.cat(padded)[order]

    memories = [part.memory for part in parts]
    memory = Memory(
        joined([m.states for m in memories], rows, 1, 0),
        joined([m.bias for m in memories], rows, 3, -torch.inf),
        joined([m.index for m in memories], rows, 1, -1),
        torch.cat([m.count for m in memories])[order],
    )
    gates: Gates | None = None
    if parts[0].gates is not None:
        columns = zip(*(part.gates for part in parts if part.gates is not None), strict=True)
        gates = Gates(
            *(None if column[0] is None else joined([*column], length, 1, 0) for column in columns)  # type: ignore[arg-type]
        )
    return Encoded(memory, gates, joined([part.kept for part in parts], length, 1, False))
