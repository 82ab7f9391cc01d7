"""The engine: gives the tokens of Hugging Face's `generate`, but faster on long inputs.

`generate` repeats the memory for every beam and copies its keys and values at every step. The engine encodes, gates
and compresses the memory once. The beams of a sentence share the memory's keys and values, and also those of the
target, which are not copied when beams are reordered (`caches.py`). Linear layers are packed for the machine
(`linear.py`), and finished sentences leave the batch.

The decoder's forward is Hugging Face's own (`decoder.py`).

Shapes: B sentences, N source positions, K memory rows, k beams, R = B·k rows, T tokens, V vocabulary.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0drop.core.dial import Dials
from l0drop.core.gates import Gates
from l0drop.core.memory import Memory, compress, full, keep_one
from l0drop.core.values import WrongKindError
from l0drop.decoding.caches import DecoderCache
from l0drop.decoding.decoder import Decoder
from l0drop.decoding.grouping import cheapest_groups, split_evenly
from l0drop.decoding.half_attention import use_half_attention
from l0drop.decoding.linear import HALF, Linears, MadeFrom, chosen_kind
from l0drop.decoding.search import Hypotheses, Search, beam_step, broken, refuse_broken, sample_step, start
from l0drop.decoding.settings import check_names, resolve
from l0drop.decoding.windows import ARGUMENTS as WINDOW_ARGUMENTS
from l0drop.decoding.windows import (
    REFUSED,
    SearchSettings,
    TokenSegment,
    Window,
    Windows,
    check_windows,
    segments_of,
)
from l0drop.models.controls import real_tokens
from l0drop.models.families import family_of, positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.outputs import L0DropEncoderOutput
from l0drop.models.view import eval_view
from l0drop.models.whisper import FRAMES_PER_ROW

SHRINK_AT = 0.75
"""Finished sentences are removed from the batch when at most this share of it is still running."""

ENCODE_COST = 1.5e8
"""Fixed cost of encoding a group of sentences, in multiply-adds; the cost per token comes on top."""

ENCODE_TOKENS = 2048
"""Maximum tokens to encode together, unless one sentence has more: activations should stay in the CPU's caches."""

GROUP_COST = 5.0
ROW_COST = 1 / 1_000
"""Cost of a decoding step and of one memory row, relative to the linear layers for one sentence."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded batch: the memory, and the gates that shaped it.

    gates: at full length [B, N]; None for a model without gates. kept: [B, N], True on real tokens in the memory.
    """

    memory: Memory
    gates: Gates | None
    kept: Tensor

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
        seen_BK = self.memory.bias[:, 0, 0] > -torch.inf
        number_K = torch.arange(1, seen_BK.shape[1] + 1, device=seen_BK.device)
        return (seen_BK * number_K).amax(1)


@dataclass(frozen=True, eq=False)
class Generation:
    """The engine's outputs, in the layout of Hugging Face's `generate`.

    sequences: [B · returned, T], starting with the start token, padded after EOS. scores: [B · returned], with length
    penalty. gates: at full length [B, N], None for a model without gates. kept: [B, N] bool.

    Of audio, sequences have new tokens alone, without EOS, as Whisper's `generate` returns them; gates and kept rows
    are those of each clip's first window. windows: all windows. segments: for each clip, its parts with their times.
    """

    sequences: Tensor
    scores: Tensor
    gates: Gates | None
    kept: Tensor
    windows: tuple[Window, ...] = ()
    segments: tuple[tuple[TokenSegment, ...], ...] = ()


class Engine:
    """Decodes with a sparsified model, or densely with a Hugging Face model of a supported family.

    dtype: "int8" rounds the weights of linear layers to 8 bits; None leaves them as they are. linears, for float32 on a
    CPU: "packed" stores weights in the machine's layout, "plain" does not, "auto" measures which is faster. Packed and
    rounded weights are copies; they are made again when the model's weights change (`refresh`). The attribute `linears`
    holds the choice.

    Any number of threads may share one engine, each with its own settings. Decoding does not change the model, not even
    its training mode: each call works on a private view in eval mode. Threads share the copies of weights; one thread
    makes them while the others wait. Nothing else is locked.

    LED has a custom attention that cannot share memories between beams. It decodes with `model.generate`, and
    `through_generate` is True.
    """

    def __init__(self, model: Any, *, dtype: str | None = None, linears: str = "auto") -> None:
        self.family = family_of(type(model))
        self.model = model
        if dtype not in (None, "int8"):
            raise ValueError(f"dtype: expected int8 or None, got {dtype!r}; other types are the model's own (model.to)")
        self.linears = chosen_kind("int8" if dtype else linears, model)
        self.through_generate = self.family.full_bias
        if dtype is not None and self.through_generate:
            raise ValueError(f"dtype: {type(model).__name__} decodes through generate, which has no int8")
        self.memory_bytes = 0
        """Peak size of the keys and values of the last decoded memory, of any thread."""
        self._made_decoder: MadeFrom[Decoder] = MadeFrom()
        self._made_encoder: MadeFrom[Linears] = MadeFrom()

    def generate(
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
        length_penalty_style: str = "hf",
        **generation: Any,
    ) -> Generation:
        """Encode, gate, compress and decode token ids [B, N], or features of audio [B, mels, frames].

        `gates` replaces the model's gates; `keep`, `max_memory`, `shift` and `dense` set the dial, for all sentences or
        as lists with one setting per sentence (None where it is unset). `generation` takes generation_config's names;
        unset ones come from the model's generation_config. For audio it also takes the names of Whisper's `generate`
        (`language`, `task`, `return_timestamps`, `prompt_ids`, ...), and more than 30 seconds are decoded window by
        window. `attention_mask` [B, frames] says where the audio of each clip ends.
        """
        if self.family.reads_audio:
            if gates is not None or hints is not None or length_penalty_style != "hf":
                name = "gates" if gates is not None else "length_penalty_style" if hints is None else "hints"
                raise ValueError(f"{name}: not supported for audio, which is decoded window by window; use encode")
            dial = {"keep": keep, "max_memory": max_memory, "shift": shift, "dense": dense}
            return self._generate_windows(inputs, attention_mask, dial, generation)
        check_names(generation, self.model.generation_config, self.argument_names)
        given = {name: generation.pop(name) for name in self.family.encoder_arguments if name in generation}
        encoded = self.encode(
            inputs, attention_mask, gates=gates, hints=hints, keep=keep, max_memory=max_memory, shift=shift,
            dense=dense, **given,
        )  # fmt: skip
        return self.decode(encoded, length_penalty_style=length_penalty_style, **generation)

    def _generate_windows(
        self, features: Tensor, attention_mask: Tensor | None, dial: dict[str, Any], generation: dict[str, Any]
    ) -> Generation:
        """Decode recordings of any length as Whisper's `generate` does, with this engine's search in every window."""
        per_clip = [name for name, value in dial.items() if isinstance(value, (list, tuple)) or torch.is_tensor(value)]
        if per_clip:
            raise ValueError(f"{per_clip[0]}: for audio, expected one setting for all clips")
        search = self.search_of_windows(generation)
        windows = Windows(self, dial)
        found = windows.generate(features, attention_mask=attention_mask, return_segments=True, **generation)
        clips = range(len(features))
        firsts = [next(window for window in windows.windows if window.clip == clip) for clip in clips]
        gates = None
        if firsts[0].gates is not None:
            columns = zip(*(window.gates for window in firsts if window.gates is not None), strict=True)
            gates = Gates(*(None if column[0] is None else torch.stack(column) for column in columns))  # type: ignore[arg-type]
        scores = [windows.totals[clip] / max(1, windows.lengths[clip]) ** search.length_penalty for clip in clips]
        return Generation(
            found["sequences"].long(),
            torch.tensor(scores),
            gates,
            torch.stack([window.kept for window in firsts]),
            tuple(windows.windows),
            tuple(map(segments_of, found["segments"])),
        )

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Named arguments of `generate`, apart from generation settings."""
        own = [
            name
            for name, value in inspect.signature(self.generate).parameters.items()
            if value.kind != value.VAR_KEYWORD
        ]
        return (*own, *self.family.encoder_arguments)

    @property
    def is_gated(self) -> bool:
        """Whether the model has gates, and they are enabled."""
        return isinstance(self.model, L0DropModel) and self.model.config.l0drop.enabled

    @property
    def dtype(self) -> str:
        """The type it computes in: int8, or the type of the model's weights."""
        return "int8" if self.linears.startswith("int8") else str(self.model.dtype).removeprefix("torch.")

    @property
    def copied_bytes(self) -> int:
        """Size of the packed or rounded copies of weights made so far."""
        made = (self._made_decoder.latest, self._made_encoder.latest)
        return sum(part.copied_bytes for part in made if part is not None)

    def refresh(self) -> None:
        """Make the copies of weights again at the next call.

        Changed weights are noticed without it, except for writes to a few elements through `.data`.
        """
        self._made_decoder.discard()
        self._made_encoder.discard()

    # --- encoding ------------------------------------------------------------------------------------------------

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
            batch["attention_mask"] = _tensor("attention_mask", attention_mask).to(device)
        if self.family.reads_audio:
            rows = positions_of(self.model, "encoder") or 0
            _check_features(inputs, self.model.config.num_mel_bins, rows * FRAMES_PER_ROW)
            batch["input_features"] = inputs.to(device, self.model.dtype)
            mask_BN = torch.ones(len(inputs), rows, dtype=torch.bool, device=device)
            if self.is_gated and self.model.config.l0drop.cut_padding is not None:
                mask_BN = self.model.audio_rows(batch["input_features"])  # clips of similar length are encoded together
        else:
            self._check_inputs(inputs)
            batch["input_ids"] = inputs.to(device)
            mask_BN = real_tokens(batch.get("attention_mask"), batch["input_ids"])
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
        groups = self._groups_to_encode(mask_BN, dense)
        view = self._view()
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
        lowest, highest = (int(id_) for id_ in inputs.aminmax())
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

    def _view(self) -> Any:
        """The model for one call, whose encoder has this engine's linear layers and, in int8, its attention.

        The decoder is the model's own and is not called.
        """
        kind, encoder, decoder = self.linears, self._base_encoder(self.model), self.model.get_decoder()
        packed = self._made_encoder(encoder, kind, lambda: Linears(encoder, kind))
        view = eval_view(self.model, {**packed.layers, decoder: decoder})
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
        if mask_BN.device.type != "cpu" or self.through_generate or per_sentence:
            return [sentences]
        weights = sum(parameter.numel() for parameter in self._base_encoder(self.model).parameters())
        overhead = ENCODE_COST / max(1, weights)
        lengths = _lengths(mask_BN[sentences]).tolist()
        groups = cheapest_groups(lengths, lambda members, longest: overhead + members * longest)
        parts = [part for group in groups for part in split_evenly(group, ENCODE_TOKENS // max(1, lengths[group[0]]))]
        return [[sentences[i] for i in part] for part in parts] if len(parts) > 1 else [sentences]

    # --- decoding ------------------------------------------------------------------------------------------------

    def decode(self, encoded: Encoded, *, length_penalty_style: str = "hf", **generation: Any) -> Generation:
        """Search the best outputs for a batch of memories, in groups of sentences with memories of similar length."""
        search = self.search(length_penalty_style=length_penalty_style, **generation)
        if self.through_generate:
            _check_memory(encoded.memory)
            return self._decode_through_generate(encoded, search, generation)
        return self.run_search(encoded, search)

    def run_search(self, encoded: Encoded, search: Search, given_BP: Tensor | None = None) -> Generation:
        """The outputs of a search on a batch of memories. `given_BP` are the tokens that outputs begin with."""
        _check_memory(encoded.memory)
        self.memory_bytes = 0
        rows = encoded.rows
        sentences = len(rows)
        tokens = torch.empty(sentences, search.returned, search.max_length, dtype=torch.long, device=rows.device)
        scores = torch.empty(sentences, search.returned, device=rows.device)
        lengths = torch.empty_like(scores, dtype=torch.long)
        with torch.inference_mode():
            decoder = self._decoder()
            for group in group_by_rows(rows.tolist()):
                chosen = torch.tensor(group, device=rows.device)
                given = None if given_BP is None else given_BP[chosen]
                done = self._search(decoder, encoded.memory, chosen, rows[chosen], search, given)
                tokens[chosen] = done.done_tokens[:, : search.returned]
                scores[chosen] = done.done_scores[:, : search.returned]
                lengths[chosen] = done.done_length[:, : search.returned]
        sequences = tokens.flatten(0, 1)[:, : int(lengths.max())]
        return Generation(sequences, scores.flatten(), encoded.gates, encoded.kept)

    def search(self, *, length_penalty_style: str = "hf", **generation: Any) -> Search:
        """The search that these generation settings describe; raises ValueError for one that cannot be done."""
        config = self.model.config
        positions = positions_of(self.model, "decoder")
        vocabulary = getattr(config, "decoder_vocab_size", None) or config.vocab_size
        own: Any = self.model.generation_config
        stored = SearchSettings(own) if self.family.reads_audio else own
        return resolve(stored, generation, length_penalty_style, positions, vocabulary)

    def search_of_windows(self, generation: Mapping[str, Any]) -> Search:
        """The search in every window of audio that these settings describe; raises ValueError as `search` does."""
        check_names(generation, self.model.generation_config, (*self.argument_names, *WINDOW_ARGUMENTS, *REFUSED))
        check_windows(generation)
        plain = {name: value for name, value in generation.items() if name not in WINDOW_ARGUMENTS}
        if isinstance(plain.get("temperature"), (list, tuple)):
            del plain["temperature"]
        return self.search(**plain)

    def _search(
        self,
        decoder: Decoder,
        memory: Memory,
        sentences: Tensor,
        rows_B: Tensor,
        search: Search,
        given_BP: Tensor | None,
    ) -> Hypotheses:
        """The finished hypotheses of these sentences of a batch."""
        longest = int(rows_B.max())
        states = memory.states[sentences, :longest]
        bias = memory.bias[sentences, :, :, :longest]
        beams = search.beams
        count = len(sentences)
        groups, width = (count * beams, 1) if search.sample else (count, beams)
        cache = DecoderCache(decoder.layers, groups, width, search.max_length - 1, states.device, search.given)
        hypotheses = start(search, count, states.device, given_BP)
        result = hypotheses
        present = torch.arange(count, device=states.device)  # the sentences that are still in the batch
        step = sample_step if search.sample else beam_step
        # one row per group up to the first step: its beams are still identical
        shared = hypotheses.tokens[:, :, : search.given].flatten(0, 1)[::width]
        for position in range(search.given - 1):
            decoder.read(shared[:, position : position + 1], states, bias, cache)
        tokens = shared[:, -1:]
        for length in range(search.given, search.max_length):
            logits = decoder(tokens, states, bias, cache)
            if length == search.given:
                self.memory_bytes = max(self.memory_bytes, cache.memory_bytes)
                states = states[:, :1]  # from now on only the cached keys and values are read
            were_open = hypotheses.open
            hypotheses, parents = step(logits, hypotheses, length, search)
            # one transfer from the device for both numbers
            running, not_finite = torch.stack([hypotheses.open.sum(), broken(hypotheses, were_open)]).tolist()
            if not_finite:
                refuse_broken(logits, length, search)
            if not search.sample:
                cache.descend(parents)
            if running <= SHRINK_AT * len(present) or length + 1 == search.max_length:
                result = _merged(result, present, hypotheses)
                if running == 0 or length + 1 == search.max_length:
                    break
                stay = hypotheses.open.nonzero().flatten()
                longest = int(rows_B[present[stay]].max())
                cache.keep(stay, _rows_of(stay, beams) if search.sample else stay, longest)
                present, hypotheses = present[stay], hypotheses.take(stay)
                bias, states = bias[stay, :, :, :longest], states[stay]
            tokens = hypotheses.tokens[:, :, length].reshape(-1, 1)
        return result

    def _decoder(self) -> Decoder:
        """The engine's version of the model's decoder; made again when weights, dtype or device of the model change."""
        kind = self.linears
        return self._made_decoder(self.model, kind, lambda: Decoder(self.model, kind))

    @torch.no_grad()
    def _decode_through_generate(self, encoded: Encoded, search: Search, generation: dict[str, Any]) -> Generation:
        if search.penalty_style != "hf":
            raise ValueError(
                f"length_penalty_style: {type(self.model).__name__} decodes through generate, which supports only hf"
            )
        memory: Any = L0DropEncoderOutput(
            last_hidden_state=encoded.memory.states,  # type: ignore[arg-type]
            memory_bias=encoded.memory.bias,
            memory_index=encoded.memory.index,
            gates=encoded.gates,
            penalty=encoded.memory.count * 0.0,
            dropped=encoded.memory.count,
            real=encoded.memory.count,
        )
        settings = {**generation, "return_dict_in_generate": True, "output_scores": True}
        if encoded.gates is None:
            seen_BK = encoded.memory.bias[:, 0, 0] > -torch.inf
            memory = self.family.encoder_output(last_hidden_state=encoded.memory.states)
            settings["attention_mask"] = seen_BK.long()
        view = eval_view(self.model)
        output = view.generate(encoder_outputs=memory, **settings)
        not_finite = torch.stack([~(scores < torch.inf).all() for scores in output.scores])
        if bool(not_finite.any()):
            first = int(not_finite.nonzero()[0])
            refuse_broken(output.scores[first], first + 1, search)
        if search.beams > 1 and not search.sample:
            return Generation(output.sequences, output.sequences_scores, encoded.gates, encoded.kept)
        gains = view.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        new = output.sequences[:, 1:]
        counted = torch.isin(new, torch.tensor(search.eos, device=new.device)).cumsum(1).cumsum(1) <= 1
        scores = (gains * counted).sum(1) / counted.sum(1) ** search.length_penalty
        return Generation(output.sequences, scores, encoded.gates, encoded.kept)


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


def _check_memory(memory: Memory) -> None:
    """Raise ValueError if a row that the decoder sees has a NaN or infinite value."""
    seen_BK = memory.bias[:, 0, 0] > -torch.inf
    bad_B = (~memory.states.isfinite().all(-1) & seen_BK).any(1)
    if bool(bad_B.any()):
        dtype = str(memory.states.dtype).removeprefix("torch.")
        raise ValueError(
            f"encodings: the encoder gives NaN or infinite values in {dtype} for {int(bad_B.sum())} of {len(bad_B)} "
            "sentences; its weights are damaged, or its values too large for this dtype: try float32"
        )


def group_by_rows(rows: Sequence[int]) -> list[list[int]]:
    """Sentences to decode together, longest memory first, so that short memories are not padded to long ones.

    A group costs its decoding steps, and each of its sentences costs as much as the longest memory of the group.
    """
    return cheapest_groups(rows, lambda members, longest: GROUP_COST + members * (1 + ROW_COST * longest))


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


def _rows_of(sentences: Tensor, beams: int) -> Tensor:
    """[R], the rows of these sentences."""
    return (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()


def _merged(result: Hypotheses, present: Tensor, hypotheses: Hypotheses) -> Hypotheses:
    """The result for all sentences, updated with the sentences that are still in the batch."""
    return Hypotheses(*(whole.index_copy(0, present, part) for whole, part in zip(result, hypotheses, strict=True)))
