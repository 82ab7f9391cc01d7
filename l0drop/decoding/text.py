"""Text in, text out: a model with its tokenizers, and the source tokens it keeps.

    model = load("runs/sparse")                    # a run folder, a model folder, or a name on the Hugging Face hub
    result = model.generate(["The house is small."])[0]
    result.text, result.score, result.kept         # kept: source tokens with character offsets

Shapes: N source positions, K memory rows, T output tokens, L decoder layers, H heads.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.core.values import WrongKindError, count
from l0drop.data.batches import collate
from l0drop.data.hints import TextAnnotator, annotator_for
from l0drop.data.offsets import spans
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.eager import cross_attention, eager_twin
from l0drop.decoding.engine import Engine
from l0drop.decoding.folder import (
    OtherInputError,
    check_vocabulary,
    dtype_of,
    load_model,
    load_pair,
    locate_model,
    place,
    recipe_settings,
)
from l0drop.decoding.languages import language_id, language_ids, target_language_setting
from l0drop.decoding.results import Alternative, Explained, Result, SourceToken
from l0drop.decoding.settings import check_names
from l0drop.decoding.sources import (
    BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    MAX_BATCH_TOKENS,
    MIN_CPU_TOKENS,
    Source,
    batches,
    check_text,
    dials,
    examples,
    truncation,
    without_prefix,
)
from l0drop.models.families import family_of, positions_of
from l0drop.models.modeling import L0DropModel

MAX_SOURCE = 1024
"""Longest source if neither the model's positions nor its tokenizer set a limit."""
MAX_NEW_TOKENS = 256
"""Longest output if neither caller nor model sets one; generate's own default of 20 would cut sentences short."""


_TOKENIZING = threading.Lock()
"""Held while a tokenizer works: its source language is a setting of the tokenizer, which several models may share."""


class OutOfMemoryError(ValueError):
    """A single text does not fit into memory."""


_ARGUMENTS = ("source_lang", "target_lang", "prefix", "max_source", "batch_tokens")
"""The arguments of `TextModel.generate` apart from texts and generation settings."""
_INPUTS = ("inputs", "attention_mask", "hints")
"""The arguments of `Engine.generate` that are computed from the texts."""


class TextModel:
    """A model with its tokenizers, returned by `load`.

    defaults: generation settings of the model's run. prefix: text put before every source. limit: maximum source length
    of the run. annotator: computes the hints that a rule needs. int8: whether linear layers have 8-bit weights.

    Any number of threads may share it, each with its own settings. One thread at a time uses a tokenizer; for the rest
    see `Engine`.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizers: TokenizerPair,
        defaults: Mapping[str, Any] | None = None,
        prefix: str = "",
        annotator: TextAnnotator | None = None,
        int8: bool = False,
        limit: int | None = None,
    ) -> None:
        self.name, self.model, self.tokenizers, self.annotator = name, model, tokenizers, annotator
        self.defaults, self.prefix, self.limit = dict(defaults or {}), prefix, limit
        self.engine = Engine(model, dtype="int8" if int8 else None)
        self._source_lang = getattr(tokenizers.source, "src_lang", None)

    def __repr__(self) -> str:
        config = self.model.config
        facts = [f"model_type={config.model_type!r}"]
        l0drop = getattr(config, "l0drop", None)
        if l0drop is None:
            facts.append("gating=None")
        else:
            how = f"gating={l0drop.gating!r}" if l0drop.shortener is None else f"shortener={l0drop.shortener!r}"
            facts.append(how if l0drop.enabled else f"{how} (disabled)")
            facts.append(f"gate={l0drop.gate!r}" if l0drop.gate != "learned" else "")
            aims = (f"{name}={value}" for name in ("target_sparsity", "lambda_") if (value := getattr(l0drop, name)))
            facts += aims
        facts += [f"device={str(self.model.device)!r}", f"dtype={self.dtype!r}"]
        return f"{type(self).__name__}({self.name!r}, {type(self.model).__name__}, {', '.join(filter(None, facts))})"

    @property
    def is_gated(self) -> bool:
        return self.engine.is_gated

    @property
    def dtype(self) -> str:
        """The type it computes in: int8, or the type of its weights."""
        return self.engine.dtype

    @property
    def max_source(self) -> int:
        """The longest source in tokens: the run's limit, else the minimum of the encoder's positions and the limit of
        the tokenizer, else MAX_SOURCE."""
        if self.limit is not None:
            return self.limit
        limits = (positions_of(self.model, "encoder"), self.tokenizers.source.model_max_length)
        return min((int(limit) for limit in limits if limit is not None and limit < 1e6), default=MAX_SOURCE)

    # --- from texts to results -----------------------------------------------------------------------------------

    def generate(
        self,
        texts: Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefix: str | None = None,
        max_source: int | None = None,
        batch_tokens: int | None = None,
        **generation: Any,
    ) -> list[Result]:
        """One result per text, in order.

        `generation` takes the settings of `Engine.generate`: generation_config's names, `keep`, `max_memory`, `shift`,
        `dense`, `length_penalty_style`. Unset ones come from the run's recipe, then from the model's generation_config.
        `num_return_sequences` above 1 gives alternatives. Texts longer than `max_source` tokens are cut with a warning.
        """
        if isinstance(texts, str):
            raise ValueError("texts: expected a list of texts, got one text; put it into a list")
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise WrongKindError(f"texts: expected a list of texts, got {type(texts).__name__}")
        texts = list(texts)
        if batch_tokens is None:
            batch_tokens = self.batch_tokens
        batch_tokens = count("`batch_tokens`", batch_tokens, most=MAX_BATCH_TOKENS)
        settings = self.settings(target_lang, generation)
        sources = self.encode(texts, source_lang=source_lang, prefix=prefix, max_source=max_source)
        cut = [source for source in sources if source.cut]
        if cut:
            warnings.warn(
                f"{len(cut)} of {len(texts)} texts were too long for the model and were cut; the first is "
                f"{cut[0].name}, cut to {len(cut[0].ids)} tokens",
                stacklevel=2,
            )
        results = [Result("") for _ in sources]
        for batch in self.batches(sources, batch_tokens):
            for index, result in zip(batch, self.decode([sources[i] for i in batch], settings), strict=True):
                results[index] = result
        return results

    def explain(
        self,
        text: str,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefix: str | None = None,
        max_source: int | None = None,
        **generation: Any,
    ) -> Explained:
        """The best output for one text, with gates and cross-attention. A long text is cut with a warning."""
        if isinstance(text, (list, tuple)):
            raise TypeError("text: explain takes one text, not a list; call it for each text")
        if self.engine.shortener is not None:
            raise ValueError(
                f"explain: shows the gate of each token, and the memory of {self.name} comes from its shortener, "
                f"{self.engine.shortener}, without gates"
            )
        settings = {**self.settings(target_lang, generation), "num_return_sequences": 1}
        (source,) = self.encode(
            [text], source_lang=source_lang, prefix=prefix, max_source=max_source, names=lambda _: "text"
        )
        if source.is_blank:
            raise ValueError("text: is blank, there is nothing to explain")
        if source.cut:
            warnings.warn(f"the text was too long for the model and was cut to {len(source.ids)} tokens", stacklevel=2)
        dial = {name: settings.pop(name) for name in ("keep", "max_memory", "shift") if name in settings}
        settings.pop("dense", None)  # the short memory gives the same result, and one row for all dropped tokens
        encoded = self.engine.encode(**self._batch([source]), **dial)
        generated = self.engine.decode(encoded, **settings)
        ids = generated.sequences[0, : _lengths(generated.sequences, self.model)[0] + 1]
        attentions_LHTK = cross_attention(self._eager, encoded.memory, ids)
        index_K = encoded.memory.index[0]
        attentions_LHTN = attentions_LHTK.new_zeros(*attentions_LHTK.shape[:3], len(source.ids))
        attentions_LHTN[..., index_K[index_K >= 0]] = attentions_LHTK[..., index_K >= 0]
        gates = encoded.gates
        return Explained(
            text=self._texts(generated.sequences)[0],
            score=float(generated.scores[0]),
            source=self._tokens(source, range(len(source.ids))),
            gates=None if gates is None else gates.values[0],
            log_alpha=None if gates is None or gates.log_alpha is None else gates.log_alpha[0],
            kept=encoded.kept[0].nonzero().flatten().tolist(),
            output=[*self.tokenizers.target.convert_ids_to_tokens(ids[1:].tolist())],
            attentions=attentions_LHTN,
            zero_row=attentions_LHTK[..., index_K < 0].sum(-1),
            cut=source.cut,
        )

    def output_spans(self, explained: Explained) -> list[tuple[int, int]]:
        """The characters of the output that each of its tokens adds, as start and end."""
        tokenizer: Any = self.tokenizers.target
        ids = [tokenizer.convert_tokens_to_ids(token) for token in explained.output]
        ends = [0]
        for length in range(1, len(ids) + 1):
            with _TOKENIZING:
                text = tokenizer.decode(ids[:length], skip_special_tokens=True)
            shared = next((i for i, (a, b) in enumerate(zip(text, explained.text, strict=False)) if a != b), len(text))
            ends.append(max(ends[-1], min(shared, len(explained.text))))
        return [*pairwise(ends)]

    @property
    def batch_tokens(self) -> int:
        """Padded source tokens decoded at once, unless the caller says otherwise."""
        return BATCH_TOKENS if self.model.device.type == "cpu" else GPU_BATCH_TOKENS

    def batches(self, sources: Sequence[Source], batch_tokens: int) -> list[list[int]]:
        """Indices of the sources that are not blank, in batches to decode together; the longest first."""
        return batches(sources, batch_tokens, MIN_CPU_TOKENS if self.model.device.type == "cpu" else 1)

    # --- the steps, for streams ----------------------------------------------------------------------------------

    def encode(
        self,
        texts: Sequence[str],
        *,
        source_lang: str | None = None,
        prefix: str | None = None,
        max_source: int | None = None,
        names: Callable[[int], str] = "texts[{}]".format,
    ) -> list[Source]:
        """Tokenize texts; `names` maps the index of a text to its name in messages."""
        prefix = self.prefix if prefix is None else prefix
        check_text(prefix, "prefix")
        limit = self._limit(max_source)
        for index, text in enumerate(texts):
            check_text(text, names(index))
        filled = [index for index, text in enumerate(texts) if text.strip()]
        sources = [Source(names(index)) for index in range(len(texts))]
        if not filled:
            return sources
        tokenizer = self.tokenizers.source
        with _TOKENIZING:
            self._set_source_language(source_lang)
            inputs = [self._model_input(texts[index], prefix, names(index)) for index in filled]
            encoding = tokenizer(inputs, return_attention_mask=False, verbose=False)
            hints = {} if self.annotator is None else self.annotator(inputs, encoding)
            all_spans = spans(tokenizer, inputs, encoding)
        special = frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        for number, (index, text_spans) in enumerate(zip(filled, all_spans, strict=True)):
            ids = encoding["input_ids"][number]
            truncate = truncation(ids, limit, special)
            sources[index] = Source(
                name=names(index),
                ids=truncate(ids),
                spans=[without_prefix(span, len(prefix)) for span in truncate(text_spans)],
                hints={name: truncate(values[number]) for name, values in hints.items()},
                cut=max(0, len(ids) - limit),
            )
        return sources

    def settings(self, target_lang: str | None, generation: Mapping[str, Any]) -> dict[str, Any]:
        """All settings that `decode` passes to the engine, from the caller, the run and the model."""
        others = {*self.engine.argument_names, *_ARGUMENTS}.difference(_INPUTS)
        check_names(generation, self.model.generation_config, others)
        settings = {**self.defaults, **generation}
        if "max_length" in generation and "max_new_tokens" not in generation:
            settings.pop("max_new_tokens", None)
        own = self.model.generation_config
        if all(settings.get(name) is None and getattr(own, name) is None for name in ("max_new_tokens", "max_length")):
            settings["max_new_tokens"] = min(MAX_NEW_TOKENS, positions_of(self.model, "decoder") or MAX_NEW_TOKENS)
        first_token = [name for name in ("forced_bos_token_id", "decoder_start_token_id") if name in settings]
        if not first_token:
            settings.update(self._target_language(target_lang))
        elif target_lang is not None:
            raise ValueError(
                f"`target_lang` and `{first_token[0]}`: both set the token that outputs begin with; give one of them"
            )
        return settings

    def decode(
        self,
        sources: Sequence[Source],
        settings: Mapping[str, Any],
        halved: Callable[[Sequence[Source]], None] | None = None,
    ) -> list[Result]:
        """Results of one batch. A batch that does not fit into memory is halved; `halved` is called each time."""
        try:
            return self._decode(sources, settings)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(sources) == 1:
                raise OutOfMemoryError(
                    f"{sources[0].name}: out of memory with this text alone ({len(sources[0].ids)} tokens); "
                    "use a smaller max_source, fewer beams or another device"
                ) from error
        # outside the except block, so that the failed attempt's tensors are freed with its traceback
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if halved:
            halved(sources)
        middle = len(sources) // 2
        return self.decode(sources[:middle], settings, halved) + self.decode(sources[middle:], settings, halved)

    def _decode(self, sources: Sequence[Source], settings: Mapping[str, Any]) -> list[Result]:
        generation = self.engine.generate(**self._batch(sources), **{**settings, **dials(sources)})
        texts, scores = self._texts(generation.sequences), generation.scores.tolist()
        each = len(texts) // len(sources)
        lengths = _lengths(generation.sequences[::each], self.model)
        results = []
        for row, (source, kept) in enumerate(zip(sources, generation.kept.cpu(), strict=True)):
            (text, score), *others = zip(texts[row * each : (row + 1) * each], scores[row * each :], strict=False)
            results.append(
                Result(
                    text=text,
                    score=score,
                    kept=self._tokens(source, kept.nonzero().flatten().tolist()),
                    source_tokens=len(source.ids),
                    output_tokens=lengths[row],
                    cut=source.cut,
                    alternatives=tuple(Alternative(*other) for other in others),
                )
            )
        return results

    def _batch(self, sources: Sequence[Source]) -> dict[str, Any]:
        """The engine's inputs for these sources: padded ids, mask, hints."""
        pad = self.tokenizers.source.pad_token_id
        pad = self.model.config.pad_token_id if pad is None else pad
        batch = collate(examples(sources), pad_id=pad or 0)
        return {
            "inputs": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "hints": batch["hints"] or None,
        }

    def _model_input(self, text: str, prefix: str, name: str) -> str:
        """The text that the tokenizer reads."""
        if self.annotator is None:
            return prefix + text
        try:
            return self.annotator.read(prefix + text)
        except ValueError as error:  # a text that must contain its own tags
            raise ValueError(f"{name}: {error}") from error

    def _texts(self, sequences: Tensor) -> list[str]:
        with _TOKENIZING:
            return self.tokenizers.target.batch_decode(sequences, skip_special_tokens=True)

    def _tokens(self, source: Source, positions: Sequence[int]) -> tuple[SourceToken, ...]:
        tokens = self.tokenizers.source.convert_ids_to_tokens([source.ids[i] for i in positions])
        offsets = (source.spans[i] or (None, None) for i in positions)
        return tuple(SourceToken(token, *span) for token, span in zip(tokens, offsets, strict=True))

    @cached_property
    def _eager(self) -> PreTrainedModel:
        return eager_twin(self.model)

    def _limit(self, max_source: int | None) -> int:
        if max_source is None:
            return self.max_source
        max_source = count("`max_source`", max_source)
        most = positions_of(self.model, "encoder")
        if most is not None and max_source > most:
            raise ValueError(f"`max_source`: {max_source} is more than the {most} positions of the encoder")
        with _TOKENIZING:
            fewest = len(self.tokenizers.source("")["input_ids"]) + 1
        if max_source < fewest:
            raise ValueError(
                f"`max_source`: {max_source} leaves no room for text next to special tokens; use at least {fewest}"
            )
        return max_source

    # --- languages -----------------------------------------------------------------------------------------------

    def _set_source_language(self, source_lang: str | None) -> None:
        tokenizer = self.tokenizers.source
        if self._source_lang is None:
            if source_lang is not None:
                raise ValueError(f"`source_lang`: the tokenizer of {self.name} knows no languages; omit this")
            return
        language = source_lang or self._source_lang
        language_id(tokenizer, language, "`source_lang`")
        tokenizer.src_lang = language

    def _target_language(self, target_lang: str | None) -> dict[str, int]:
        """The generation setting that selects the output language of a multilingual model."""
        tokenizer, own = self.tokenizers.target, self.model.generation_config
        if self._source_lang is None:
            if target_lang is not None:
                raise ValueError(
                    f"`target_lang`: the tokenizer of {self.name} knows no languages; omit this (some models take the "
                    'language as a prefix, such as ">>fra<< ")'
                )
            return {}
        with _TOKENIZING:
            language = target_lang or getattr(tokenizer, "tgt_lang", None)
            if language is not None:
                return target_language_setting(tokenizer, language, own.decoder_start_token_id)
        starts_with = {own.forced_bos_token_id, own.decoder_start_token_id}
        if not starts_with & language_ids(tokenizer):
            raise ValueError(f"`target_lang`: {self.name} translates into several languages; choose one")
        return {}


def load(
    dir_or_name: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
) -> TextModel:
    """Load a text model with its tokenizers from a run folder, a model folder, or the Hugging Face hub.

    device: default: a GPU if there is one. dtype: default: the type of the stored weights; "int8", on a CPU, rounds the
    weights of linear layers to 8 bits. A model without gates decodes densely. A run's recipe sets the defaults for
    generation settings, source prefix and maximum source length; arguments of a call override them.
    """
    name = str(dir_or_name)
    folder, run = locate_model(name)
    int8 = dtype == "int8"
    model = load_model(name, folder, dtype_of("float32" if int8 else dtype))
    if family_of(type(model)).reads_audio:
        raise OtherInputError(f"{name}: is a speech model, which reads audio; use `l0drop.load`", "transcribe")
    tokenizers = load_pair(name, folder, run, model)
    check_vocabulary(model, tokenizers, name)
    defaults, prefix, limit = recipe_settings(run)
    annotator = None
    if isinstance(model, L0DropModel) and model.gate.needs:
        annotator = annotator_for(folder or name, tokenizers.source)
        if annotator is None:
            needs = ", ".join(model.gate.needs)
            raise ValueError(f"{name}: its gate needs hints ({needs}), but the model folder has no hints.json")
    place(model, name, "cpu" if int8 and device is None else device)
    return TextModel(name, model, tokenizers, defaults, prefix, annotator, int8, limit)


def _lengths(sequences: Tensor, model: Any) -> list[int]:
    """Tokens of each sequence after the start token, with EOS, without padding."""
    eos = model.generation_config.eos_token_id
    ends = torch.tensor([] if eos is None else eos, device=sequences.device).reshape(-1)
    ended = torch.isin(sequences[:, 1:], ends)
    return (ended.cumsum(1) - ended.int() == 0).sum(1).tolist()
