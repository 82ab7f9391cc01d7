"""The engine: gives the tokens of Hugging Face's `generate`, but faster on long inputs.

`generate` repeats the memory for every beam and copies its keys and values at every step. The engine encodes, gates
and compresses the memory once. The beams of a sentence share the memory's keys and values, and also those of the
target, which are not copied when beams are reordered (`caches.py`). Linear layers are packed for the machine
(`linear.py`), and finished sentences leave the batch.

The decoder's forward is Hugging Face's own (`decoder.py`). On a GPU a search runs in captured steps instead (`gpu/`).

Shapes: B sentences, N source positions, K memory rows, k beams, R = B·k rows, T tokens, V vocabulary.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0drop.core.gates import Gates
from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.decoding.decoder import Decoder
from l0drop.decoding.encode import Encoded, Encoder
from l0drop.decoding.gpu.slots import BrokenScoresError, CannotCaptureError, Slots, reason_against
from l0drop.decoding.linear import MadeFrom, chosen_kind
from l0drop.decoding.loop import group_by_rows, search_memories
from l0drop.decoding.search import Search, refuse_broken
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
from l0drop.models.families import positions_of
from l0drop.models.outputs import L0DropEncoderOutput
from l0drop.models.view import eval_view


@dataclass(frozen=True, eq=False)
class Generation:
    """The engine's outputs, in the layout of Hugging Face's `generate`.

    sequences: [B · returned, T], starting with the start token, padded after EOS. scores: [B · returned], with length
    penalty. gates: at full length [B, N], None for a model without gates. kept: [B, N] bool. With a shortener both mark
    the tokens that a row of the memory begins with: a row that is a mean stands for tokens up to the next mark too.

    Of audio, sequences have new tokens alone, without EOS, as Whisper's `generate` returns them; gates and kept rows
    are those of each clip's first window. windows: all windows. segments: for each clip, its parts with their times.
    """

    sequences: Tensor
    scores: Tensor
    gates: Gates | None
    kept: Tensor
    windows: tuple[Window, ...] = ()
    segments: tuple[tuple[TokenSegment, ...], ...] = ()


class Engine(Encoder):
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
        super().__init__(model, linears)
        if dtype not in (None, "int8"):
            raise ValueError(f"dtype: expected int8 or None, got {dtype!r}; other types are the model's own (model.to)")
        self.linears = chosen_kind("int8" if dtype else linears, model)
        self.through_generate = self.family.full_bias
        if dtype is not None and self.through_generate:
            raise ValueError(f"dtype: {type(model).__name__} decodes through generate, which has no int8")
        self.memory_bytes = 0
        """Peak size of the keys and values of the last decoded memory, of any thread."""
        self._made_decoder: MadeFrom[Decoder] = MadeFrom()
        self._made_slots: MadeFrom[Slots] = MadeFrom()
        self._reasons: set[str] = set()

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
            with self._freeing():
                return self._generate_windows(inputs, attention_mask, dial, generation)
        check_names(generation, self.model.generation_config, self.argument_names)
        given = {name: generation.pop(name) for name in self.family.encoder_arguments if name in generation}
        with self._freeing():
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
    def dtype(self) -> str:
        """The type it computes in: int8, or the type of the model's weights."""
        return "int8" if self.linears.startswith("int8") else str(self.model.dtype).removeprefix("torch.")

    @property
    def copied_bytes(self) -> int:
        """Size of the packed or rounded copies of weights made so far."""
        made = (self._made_decoder.latest, self._made_encoder.latest, self._made_slots.latest)
        return sum(part.copied_bytes for part in made if part is not None)

    def refresh(self) -> None:
        """Make the copies of weights again at the next call.

        Changed weights are noticed without it, except for writes through `.data`: of a few elements, or on a GPU.
        """
        self._made_decoder.discard()
        self._made_slots.discard()
        self._made_encoder.discard()
        self._made_graphs.discard()

    def free(self) -> None:
        """Free what was kept on the GPU for later batches, apart from weights; it is made again when needed."""
        for made in (self._made_slots.latest, self._made_graphs.latest):
            if made is not None:
                made.free()

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        """If memory runs out inside, free what was kept for later batches, so that a smaller batch has all of it."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                self.free()
            raise

    # --- decoding ------------------------------------------------------------------------------------------------

    def decode(self, encoded: Encoded, *, length_penalty_style: str = "hf", **generation: Any) -> Generation:
        """Search the best outputs for a batch of memories, in groups of sentences with memories of similar length."""
        search = self.search(length_penalty_style=length_penalty_style, **generation)
        if self.through_generate:
            encoded.checked_rows()
            return self._decode_through_generate(encoded, search, generation)
        return self.run_search(encoded, search)

    def run_search(self, encoded: Encoded, search: Search, given_BP: Tensor | None = None) -> Generation:
        """The outputs of a search on a batch of memories. `given_BP` are the tokens that outputs begin with."""
        counts = encoded.checked_rows()
        if self._fits_slots(search):
            try:
                return self._search_in_slots(encoded, counts, search, given_BP)
            except BrokenScoresError:
                pass  # the plain search raises an error that says where they are from
            except CannotCaptureError as error:
                self._warn_once(f"its steps cannot be captured ({error})", stacklevel=5)
        self.memory_bytes = 0
        rows = torch.tensor(counts, device=encoded.kept.device)
        sentences = len(rows)
        tokens = torch.empty(sentences, search.returned, search.max_length, dtype=torch.long, device=rows.device)
        scores = torch.empty(sentences, search.returned, device=rows.device)
        lengths = torch.empty_like(scores, dtype=torch.long)
        with torch.inference_mode():
            decoder = self._decoder()
            for group in group_by_rows(counts):
                chosen = torch.tensor(group, device=rows.device)
                given = None if given_BP is None else given_BP[chosen]
                done, size = search_memories(decoder, encoded.memory, chosen, rows[chosen], search, given)
                self.memory_bytes = max(self.memory_bytes, size)
                tokens[chosen] = done.done_tokens[:, : search.returned]
                scores[chosen] = done.done_scores[:, : search.returned]
                lengths[chosen] = done.done_length[:, : search.returned]
        sequences = tokens.flatten(0, 1)[:, : int(lengths.max())]
        return Generation(sequences, scores.flatten(), encoded.gates, encoded.kept)

    def _fits_slots(self, search: Search) -> bool:
        """Whether this search runs in captured steps. A GPU's search that does not is slower, and says why, once."""
        if self.model.device.type != "cuda":
            return False
        reason = reason_against(self.model, search)
        if reason is not None:
            self._warn_once(f"{reason}: the engine has no captured step for it", stacklevel=6)
        return reason is None

    def _warn_once(self, reason: str, stacklevel: int) -> None:
        if reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(f"{reason}; decoding is slower", stacklevel=stacklevel)

    def _search_in_slots(
        self, encoded: Encoded, rows: Sequence[int], search: Search, given_BP: Tensor | None
    ) -> Generation:
        slots = self._made_slots(self.model, "slots", lambda: Slots.on_gpu(self.model))
        found, self.memory_bytes = slots.search(encoded.memory, rows, search, given_BP)
        sequences = found.tokens.flatten(0, 1)[:, : int(found.lengths.max())]
        return Generation(sequences, found.scores.flatten(), encoded.gates, encoded.kept)

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
