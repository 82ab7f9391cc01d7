"""The engine: the tokens of Hugging Face's `generate`, without what makes it slow on long inputs.

`generate` repeats the memory for every beam and copies its keys and values at every step. Here the memory is encoded,
gated and compressed once; its keys and values are computed once for each sentence and shared by the beams; the
self-attention cache is made in advance and reordered only where beams differ; finished sentences leave the batch.

The decoder's forward is Hugging Face's own: the engine holds the model's parameters in modules of its own, whose
configuration asks for the attention of `attention.py`, and hands them the caches of `caches.py`.

Shapes: B sentences, N source positions, K memory rows, k beams, R = B·k rows, T tokens, V vocabulary.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from l0drop.core.gates import Gates
from l0drop.core.memory import Memory, compress, full, keep_one
from l0drop.decoding.attention import NAME
from l0drop.decoding.caches import DecoderCache
from l0drop.decoding.search import Hypotheses, Search, beam_step, sample_step, settled, start
from l0drop.decoding.settings import resolve
from l0drop.models.adopt import adopt_parameters
from l0drop.models.controls import evaluating, real_tokens
from l0drop.models.families import family_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.outputs import L0DropEncoderOutput

LEAVE_AT = 0.75
"""Finished sentences are taken out of the batch when no more than this share of it is still running."""

GROUP_COST = 5.0
ROW_COST = 1 / 1_000
"""What a decoding step costs beside one sentence's share of the linear layers: the step itself, and a memory row."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """What the decoder needs of a batch: the memory, and the decisions behind it.

    gates: at full length [B, N]; None for a plain model. kept: [B, N], True on real tokens that are in the memory.
    """

    memory: Memory
    gates: Gates | None
    kept: Tensor

    @property
    def rows(self) -> Tensor:
        """[B], how many memory rows reach up to the last one that a sentence has."""
        seen_BK = self.memory.bias[:, 0, 0] > -torch.inf
        place_K = torch.arange(1, seen_BK.shape[1] + 1, device=seen_BK.device)
        return (seen_BK * place_K).amax(1)


@dataclass(frozen=True, eq=False)
class Generation:
    """What the engine returns, laid out as by Hugging Face's `generate`.

    sequences: [B · returned, T], the start token in front, padded behind EOS. scores: [B · returned], with length
    penalty. gates: at full length [B, N], None for a plain model. kept: [B, N] bool.
    """

    sequences: Tensor
    scores: Tensor
    gates: Gates | None
    kept: Tensor


class Engine:
    """Decodes with a sparsified model, or densely with a plain Hugging Face one of the same families.

    LED's attention is its own and does not take shared memories: `through_generate` says that it decodes with
    `model.generate`.
    """

    def __init__(self, model: Any) -> None:
        self.family = family_of(type(model))
        self.model = model
        self.through_generate = self.family.full_bias
        self.memory_bytes = 0
        """What the keys and values of the last decoded memory took, at most."""
        self._modules: tuple[Any, PreTrainedModel] | None = None

    def generate(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        *,
        gates: Gates | Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        keep: float | Tensor | None = None,
        max_memory: int | None = None,
        shift: float | None = None,
        dense: bool = False,
        length_penalty_style: str = "hf",
        **generation: Any,
    ) -> Generation:
        """Encode, gate, compress and decode token ids [B, N].

        `gates` replaces the model's own decisions; `keep`, `max_memory`, `shift` and `dense` turn the dial. The rest
        are generation_config's names; what is unset comes from the model's.
        """
        given = {name: generation.pop(name) for name in self.family.encoder_arguments if name in generation}
        encoded = self.encode(
            inputs, attention_mask, gates=gates, hints=hints, keep=keep, max_memory=max_memory, shift=shift,
            dense=dense, **given,
        )  # fmt: skip
        return self.decode(encoded, length_penalty_style=length_penalty_style, **generation)

    # --- encoding ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        *,
        gates: Gates | Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        keep: float | Tensor | None = None,
        max_memory: int | None = None,
        shift: float | None = None,
        dense: bool = False,
        **encoder_arguments: Any,
    ) -> Encoded:
        """The memory of a batch of token ids, ready to be decoded."""
        device = self.model.device
        batch: dict[str, Any] = {"input_ids": inputs.to(device), **encoder_arguments}
        if attention_mask is not None:
            batch["attention_mask"] = attention_mask.to(device)
        mask_BN = real_tokens(batch.get("attention_mask"), batch["input_ids"])
        gated = isinstance(self.model, L0DropModel) and self.model.config.l0drop.enabled
        turned = {"keep": keep, "max_memory": max_memory, "shift": shift}
        asked = [name for name, value in turned.items() if value is not None]
        if gates is not None and asked:
            raise ValueError(f"{asked[0]}: the dial turns the model's own gates; it does not go with gates")
        if asked and not gated:
            raise ValueError(f"{asked[0]}: this model has no gates to turn")
        with evaluating(self.model):
            if not gated or gates is not None:
                return self._encode_plainly(batch, mask_BN, gates, dense)
            batch["hints"] = None if hints is None else {name: hint.to(device) for name, hint in hints.items()}
            if asked or dense:
                with self.model.dial(dense=dense, **turned):
                    output = self.model.get_encoder()(**batch)
            else:  # the dial stays where the caller has turned it
                output = self.model.get_encoder()(**batch)
        memory = Memory(output.last_hidden_state, output.memory_bias, output.memory_index, output.dropped)
        return Encoded(memory, output.gates, output.gates.values != 0)

    def _encode_plainly(
        self, batch: dict[str, Any], mask_BN: Tensor, gates: Gates | Tensor | None, dense: bool
    ) -> Encoded:
        """Without the model's own gates: with those of the caller, or with none."""
        l0drop = getattr(self.model.config, "l0drop", None)
        base = getattr(self.model, "base_class", type(self.model))
        encodings = base.get_encoder(self.model)(**batch, return_dict=True).last_hidden_state
        if gates is None:
            everything = Gates(mask_BN.to(encodings.dtype))
            return Encoded(full(encodings, everything, mask_BN, "mask"), None, mask_BN)
        if l0drop is None:
            raise ValueError("gates: a plain model has no gating; sparsify it first")
        if l0drop.layerwise:
            raise ValueError("gates: the layer-wise variant decides inside its encoder and takes no gates from outside")
        gates = gates if isinstance(gates, Gates) else Gates(gates)
        gates = Gates(*(None if t is None else t.to(encodings.device) for t in gates))  # type: ignore[arg-type]
        gates = gates._replace(values=gates.values.to(torch.promote_types(encodings.dtype, torch.float32)))
        memory = (full if dense else compress)(encodings, gates, mask_BN, l0drop.gating)
        gates = keep_one(gates, mask_BN, l0drop.gating)
        return Encoded(memory, gates, gates.values != 0)

    # --- decoding ------------------------------------------------------------------------------------------------

    def decode(self, encoded: Encoded, *, length_penalty_style: str = "hf", **generation: Any) -> Generation:
        """Search the best outputs for a batch of memories. Sentences are grouped by the length of theirs."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        search = resolve(self.model.generation_config, generation, length_penalty_style, positions)
        if self.through_generate:
            return self._decode_through_generate(encoded, search, generation)
        self.memory_bytes = 0
        rows = encoded.rows
        sentences = len(rows)
        tokens = torch.empty(sentences, search.returned, search.max_length, dtype=torch.long, device=rows.device)
        scores = torch.empty(sentences, search.returned, device=rows.device)
        lengths = torch.empty_like(scores, dtype=torch.long)
        with torch.inference_mode():
            for group in group_by_rows(rows.tolist()):
                chosen = torch.tensor(group, device=rows.device)
                done = self._search(encoded.memory, chosen, rows[chosen], search)
                tokens[chosen] = done.done_tokens[:, : search.returned]
                scores[chosen] = done.done_scores[:, : search.returned]
                lengths[chosen] = done.done_length[:, : search.returned]
        sequences = tokens.flatten(0, 1)[:, : int(lengths.max())]
        return Generation(sequences, scores.flatten(), encoded.gates, encoded.kept)

    def _search(self, memory: Memory, sentences: Tensor, rows_B: Tensor, search: Search) -> Hypotheses:
        """The finished hypotheses of some sentences of a batch."""
        decoder = self._decoder()
        longest = int(rows_B.max())
        states = memory.states[sentences, :longest]
        bias = memory.bias[sentences, :, :, :longest]
        beams = search.beams
        cache = DecoderCache(layers=_layers(decoder), rows=len(sentences) * beams, positions=search.max_length - 1)
        hypotheses = start(search, len(sentences), states.device)
        result = hypotheses
        present = torch.arange(len(sentences), device=states.device)  # which sentences are still in the batch
        parents = torch.zeros(len(sentences), beams, dtype=torch.long, device=states.device)
        step = sample_step if search.sample else beam_step
        tokens = hypotheses.tokens[:, 0, :1]  # one row per sentence: the beams are still the same
        shared = 0
        for length in range(1, search.max_length):
            output = decoder(
                decoder_input_ids=tokens,
                encoder_outputs=BaseModelOutput(last_hidden_state=states),  # type: ignore[arg-type]
                attention_mask=bias,
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
            )
            if length == 1:
                self.memory_bytes = max(self.memory_bytes, cache.memory_bytes)
                states = states[:, :1]  # its keys and values are all that is read from now on
            before = hypotheses.tokens
            hypotheses, parents = step(output.logits[:, -1], hypotheses, length, search)
            running = int(hypotheses.open.sum())
            if running <= LEAVE_AT * len(present) or length + 1 == search.max_length:
                result = _placed(result, present, hypotheses)
                if running == 0 or length + 1 == search.max_length:
                    break
                stay = hypotheses.open.nonzero().flatten()
                longest = int(rows_B[present[stay]].max())
                cache.keep(stay, _rows_of(stay, parents), longest)
                present, hypotheses = present[stay], hypotheses.rows(stay)
                bias, states = bias[stay, :, :, :longest], states[stay]
            elif not search.sample and beams > 1:
                shared = settled(before, shared, length)
                everyone = torch.arange(len(present), device=states.device)
                cache.reorder(_rows_of(everyone, parents), shared)
            tokens = hypotheses.tokens[:, :, length].reshape(-1, 1)
        return result

    def _decoder(self) -> PreTrainedModel:
        """The model's parameters in modules that attend as the engine wants; made anew when the model has moved."""
        parameter = next(self.model.parameters())
        state = (parameter.device, parameter.dtype)
        if self._modules is None or self._modules[0] != state:
            gated = isinstance(self.model, L0DropModel)
            config = self.model.config.to_base() if gated else copy.deepcopy(self.model.config)
            config._attn_implementation = NAME
            base = self.model.base_class if gated else type(self.model)
            self._modules = (state, adopt_parameters(self.model, base, config).eval())
        return self._modules[1]

    @torch.no_grad()
    def _decode_through_generate(self, encoded: Encoded, search: Search, generation: dict[str, Any]) -> Generation:
        if search.penalty_style != "hf":
            raise ValueError(
                f"length_penalty_style: {type(self.model).__name__} decodes through generate, which knows only hf"
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
        with evaluating(self.model):
            output = self.model.generate(encoder_outputs=memory, **settings)
        if search.beams > 1 and not search.sample:
            return Generation(output.sequences, output.sequences_scores, encoded.gates, encoded.kept)
        gains = self.model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        new = output.sequences[:, 1:]
        counted = torch.isin(new, torch.tensor(search.eos, device=new.device)).cumsum(1).cumsum(1) <= 1
        scores = (gains * counted).sum(1) / counted.sum(1) ** search.length_penalty
        return Generation(output.sequences, scores, encoded.gates, encoded.kept)


def group_by_rows(rows: Sequence[int]) -> list[list[int]]:
    """Sentences to decode together, longest memory first, so that a long memory does not make short ones as long.

    Every group pays for its steps, every sentence for the longest memory of its group; of all ways to cut the sorted
    sentences, the cheapest.
    """
    order = sorted(range(len(rows)), key=lambda i: -rows[i])
    # a cut between equal memories gains nothing, so a group may start only where they get shorter
    starts = [place for place in range(len(order)) if place == 0 or rows[order[place]] != rows[order[place - 1]]]
    # by the place where the rest begins: the cheapest cost of what comes before, and where its last group starts
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    for end in [*starts[1:], len(order)]:
        best[end] = min(
            (best[first][0] + GROUP_COST + (end - first) * (1 + ROW_COST * rows[order[first]]), first)
            for first in starts
            if first < end
        )
    groups: list[list[int]] = []
    end = len(order)
    while end:
        first = best[end][1]
        groups.append(order[first:end])
        end = first
    return groups[::-1]


def _rows_of(sentences: Tensor, parents_Bk: Tensor) -> Tensor:
    """[R], the row of each sentence's and beam's parent."""
    beams = parents_Bk.shape[1]
    return (sentences[:, None] * beams + parents_Bk[sentences]).flatten()


def _placed(result: Hypotheses, present: Tensor, hypotheses: Hypotheses) -> Hypotheses:
    """The sentences still in the batch, in their places among all."""
    return Hypotheses(*(whole.index_copy(0, present, part) for whole, part in zip(result, hypotheses, strict=True)))


def _layers(model: PreTrainedModel) -> int:
    decoder = model.get_decoder()
    return len(decoder.block if hasattr(decoder, "block") else decoder.layers)
