"""From generation_config's names to a `Search`; settings that the engine does not support raise."""

import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol

from transformers import GenerationConfig

from l0drop.decoding.search import Search
from l0drop.models.config_file import read_object

_DEFAULTS: dict[str, Any] = {
    "max_length": None,
    "max_new_tokens": None,
    "min_length": 0,
    "min_new_tokens": None,
    "early_stopping": False,
    "do_sample": False,
    "num_beams": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "renormalize_logits": False,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "num_return_sequences": 1,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "decoder_start_token_id": None,
}
# Settings that do not change the tokens of a plain search: caching and reporting in `generate`, and assisted decoding,
# which needs an assistant.
_WITHOUT_EFFECT = frozenset(
    {
        "use_cache",
        "cache_implementation",
        "cache_config",
        "max_cache_len",
        "return_dict_in_generate",
        "output_scores",
        "is_assistant",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "target_lookbehind",
        "assistant_ensemble_weight",
        "max_matching_ngram_size",
        "compile_config",
        "disable_compile",
        "continuous_batching_config",
        "low_memory",
        "prefill_chunk_size",
        "speculation_type",
        "_from_model_config",
        "transformers_version",
        "_commit_hash",
    }
)
# Settings of `generate` that the engine does not support, with the values at which they do nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "guidance_scale": (1, 1.0),
    "use_mtp": (False,),
}

_INTEGERS = frozenset(
    {
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens"),
        *("num_beams", "num_return_sequences", "no_repeat_ngram_size", "top_k"),
    }
)
_REAL = frozenset({"temperature", "top_p", "repetition_penalty", "length_penalty"})
_BOOLEANS = frozenset({"do_sample", "renormalize_logits"})
_ONE_TOKEN = frozenset({"forced_bos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id"})
_TOKENS = frozenset(name for name in _DEFAULTS if name.endswith(("_id", "_ids", "_tokens"))) - _INTEGERS

SCORING: dict[str, Any] = {"do_sample": False, "early_stopping": False}
"""Search settings of every run, in addition to its recipe's; they override a checkpoint's generation_config."""
STORED = "generation_config.json: "
"""The beginning of an error about a setting that comes from the model."""
MAX_LOG_PENALTY = 80.0
"""Largest logarithm of the divisor of a score, so that scores stay finite in float32."""
MAX_BEAMS = 10_000
DEFAULT_NEW_TOKENS = 20
"""Longest output of `generate` if neither caller nor model sets one."""


def check_stored_settings(file: Path) -> None:
    """Raise ValueError with file and name for a value of a generation_config.json that its setting cannot have."""
    if not file.exists():
        return
    for name, value in read_object(file).items():
        if value is not None:
            _check_kind(f"{file}: {name}", name, value, None)


class StoredSettings(Protocol):
    """A model's generation_config, or a part of it."""

    def to_dict(self) -> dict[str, Any]: ...


def resolve(
    model_settings: StoredSettings,
    given: Mapping[str, Any],
    style: str,
    positions: int | None = None,
    vocabulary: int | None = None,
) -> Search:
    """The search for these settings; unset ones come from the model's generation_config, then from generate's defaults.

    positions: the number of positions of the decoder. vocabulary: the number of tokens.
    """
    if style not in ("hf", "gnmt"):
        raise ValueError(f'`length_penalty_style`: expected "hf" or "gnmt", got {style!r}')
    check_names(given, model_settings)
    values = dict(_DEFAULTS)
    chosen = {name: value for name, value in given.items() if value is not None}
    stored = {name: value for name, value in model_settings.to_dict().items() if name not in chosen}
    labels = {name: f"`{name}`" for name in (*_DEFAULTS, *chosen)}
    labels |= {name: f"{STORED}{name}" for name, value in stored.items() if value is not None}
    for source in (stored, chosen):
        for name, value in source.items():
            if value is None:
                continue
            _check_kind(labels[name], name, value, vocabulary)
            if name in _DEFAULTS:
                values[name] = int(value) if name in _INTEGERS else value
            elif name not in _WITHOUT_EFFECT and value is not False and value not in _NEUTRAL.get(name, ()):
                raise ValueError(f"{labels[name]}: the engine does not support {value!r}; use model.generate")
    eos = _ids(values["eos_token_id"])
    start = values["decoder_start_token_id"]
    start = values["bos_token_id"] if start is None else start
    if start is None:
        raise ValueError(f"{STORED}decoder_start_token_id: expected one token id, got None")
    pad = values["pad_token_id"] if values["pad_token_id"] is not None else (eos[0] if eos else -1)
    max_length, min_length = _lengths(values, positions, given)
    _check_values(values, labels, max_length)
    sample, beams, returned = values["do_sample"], values["num_beams"], values["num_return_sequences"]
    return Search(
        max_length=max_length,
        min_length=min_length,
        start=start,
        eos=eos,
        pad=pad,
        beams=returned if sample else beams,
        returned=returned,
        length_penalty=float(values["length_penalty"]),
        penalty_style=style,  # type: ignore[arg-type]
        early_stopping=values["early_stopping"],
        repetition_penalty=float(values["repetition_penalty"]),
        no_repeat_ngram=values["no_repeat_ngram_size"],
        forced_first=values["forced_bos_token_id"],
        forced_last=_ids(values["forced_eos_token_id"]),
        banned=_single_tokens(values["bad_words_ids"], eos),
        suppressed=_ids(values["suppress_tokens"]),
        banned_first=_ids(values["begin_suppress_tokens"]),
        renormalize=bool(values["renormalize_logits"]),
        sample=sample,
        temperature=float(values["temperature"]),
        top_k=values["top_k"] or 0,
        top_p=float(values["top_p"]),
    )


def _check_values(values: Mapping[str, Any], labels: Mapping[str, str], max_length: int) -> None:
    """Raise for values outside their range, and for settings that contradict each other."""

    def require(name: str, fine: bool, message: str) -> None:
        if not fine:
            raise ValueError(f"{labels[name]}: {message}")

    sample, beams, returned = values["do_sample"], values["num_beams"], values["num_return_sequences"]
    for name in ("num_beams", "num_return_sequences"):
        require(name, 1 <= values[name] <= MAX_BEAMS, f"expected a number from 1 to {MAX_BEAMS}, got {values[name]}")
    require(
        "do_sample",
        not sample or beams == 1,
        "the engine samples without beams; set `num_beams=1` or use model.generate",
    )
    require("num_return_sequences", sample or returned <= beams, f"{returned} is more than `num_beams={beams}`")
    temperature, early, repetition = values["temperature"], values["early_stopping"], values["repetition_penalty"]
    require("temperature", not sample or temperature > 0, f"must be above 0, got {temperature}")
    require("early_stopping", early in (True, False, "never"), f'expected True, False or "never", got {early!r}')
    require("repetition_penalty", repetition > 0, f"must be above 0, got {repetition}")
    suppressed = set(_ids(values["suppress_tokens"]))
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        forced = set(_ids(values[name]))
        require(name, not forced or not forced <= suppressed, f"{values[name]} is also in `suppress_tokens`")
    penalty = values["length_penalty"]
    require(
        "length_penalty",
        abs(penalty) * math.log(max_length) < MAX_LOG_PENALTY,
        f"{penalty} is out of range for outputs of up to {max_length - 1} tokens; usual values are between -2 and 2",
    )


def check_names(given: Mapping[str, Any], model_settings: StoredSettings, others: Iterable[str] = ()) -> None:
    """Raise for a name that is neither a generation setting nor one of `others`, with the most similar known name."""
    known = {*GenerationConfig().to_dict(), *model_settings.to_dict(), *_DEFAULTS, *others}
    for name in given:
        if name not in known:
            public = sorted(other for other in known if not other.startswith("_"))
            close = get_close_matches(name, public, 1)
            hint = f"; did you mean `{close[0]}`?" if close else ""
            raise ValueError(f"`{name}`: not a generation setting{hint}")


def _check_kind(label: str, name: str, value: Any, vocabulary: int | None) -> None:
    """Raise for a value that this setting cannot have in any model; `label` names the setting in the error."""
    is_number = _is_finite(value)
    if name in _INTEGERS and not (is_number and value >= 0 and value == int(value)):
        raise ValueError(f"{label}: expected a whole number, at least 0, got {value!r}")
    if name in _REAL and not is_number:
        raise ValueError(f"{label}: expected a finite number, got {value!r}")
    if name in _BOOLEANS and not isinstance(value, bool):
        raise ValueError(f"{label}: expected True or False, got {value!r}")
    if name in _TOKENS:
        if name == "bad_words_ids" and not (isinstance(value, (list, tuple)) and all(map(_is_list, value))):
            raise ValueError(f"{label}: expected a list of lists of token ids, got {value!r}")
        if name in _ONE_TOKEN and not isinstance(value, Integral):
            raise ValueError(f"{label}: expected one token id, got {value!r}")
        for token in _token_ids(label, value, levels=2 if name == "bad_words_ids" else 1):
            if token < 0 or (vocabulary is not None and token >= vocabulary):
                raise ValueError(f"{label}: no token has the id {token}; the vocabulary has {vocabulary} tokens")


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def _token_ids(label: str, value: Any, levels: int) -> Iterator[int]:
    """All token ids of a setting: one, or lists in up to `levels` levels."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (list, tuple)) and levels:
        for part in value:
            yield from _token_ids(label, part, levels - 1)
    elif isinstance(value, Integral) and not isinstance(value, bool):
        yield int(value)
    else:
        raise ValueError(f"{label}: expected token ids, got {value!r}")


def _lengths(values: dict[str, Any], positions: int | None, given: Mapping[str, Any]) -> tuple[int, int]:
    """Maximum and minimum length of a hypothesis, including the start token."""
    if values["max_new_tokens"] is not None and (given.get("max_length") is None or "max_new_tokens" in given):
        longest = values["max_new_tokens"] + 1
    elif values["max_length"] is not None:
        longest = values["max_length"]
    else:
        longest = DEFAULT_NEW_TOKENS + 1
        longest = longest if positions is None else min(longest, positions)
    if longest < 2:
        raise ValueError(f"`max_new_tokens`: at least one new token must be allowed, got a `max_length` of {longest}")
    if positions is not None and longest - 1 > positions:
        raise ValueError(f"`max_new_tokens`: {longest - 1} is more than the {positions} positions of the decoder")
    new = values["min_new_tokens"]
    return longest, values["min_length"] if new is None else new + 1


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return (int(value),) if isinstance(value, Integral) else tuple(int(v) for v in value)


def _single_tokens(words: Any, eos: tuple[int, ...]) -> tuple[int, ...]:
    """Bad words of one token each; EOS alone is ignored, as in `generate`."""
    if words is None:
        return ()
    if any(len(word) != 1 for word in words):
        raise ValueError("`bad_words_ids`: the engine supports only bad words of one token; use model.generate")
    return tuple(word[0] for word in words if word[0] not in eos)
