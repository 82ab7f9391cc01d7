"""From generation_config's names to a `Search`: where each value comes from, and which values are refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from l0drop.decoding.search import Search
from l0drop.decoding.settings import check_names, check_stored_settings, resolve

TOKENS = {"decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def resolved(
    model: dict[str, Any] | None = None, positions: int | None = None, vocabulary: int | None = 50, **given: Any
) -> Search:
    """The search for these arguments and a model with these settings."""
    stored = GenerationConfig()
    for name, value in (TOKENS if model is None else {**TOKENS, **model}).items():
        setattr(stored, name, value)
    return resolve(stored, given, given.pop("style", "hf"), positions, vocabulary)


def refused(message: str, *, model: dict[str, Any] | None = None, **given: Any) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        resolved(model, **given)


def test_nothing_given_is_greedy_search_of_twenty_tokens() -> None:
    assert resolved() == Search(max_length=21, start=1, eos=(2,), pad=0, top_k=50)


def test_every_setting_reaches_the_search() -> None:
    found = resolved(
        max_new_tokens=7, min_new_tokens=2, num_beams=4, num_return_sequences=3, length_penalty=2, style="gnmt",
        early_stopping="never", repetition_penalty=2, no_repeat_ngram_size=3, forced_bos_token_id=5,
        forced_eos_token_id=[2, 6], bad_words_ids=[[7], [2], [8]], suppress_tokens=[9, 10], begin_suppress_tokens=[11],
        renormalize_logits=True, pad_token_id=12, eos_token_id=[2, 13], decoder_start_token_id=14, bos_token_id=15,
    )  # fmt: skip
    assert found == Search(
        max_length=8, min_length=3, start=14, eos=(2, 13), pad=12, beams=4, returned=3, length_penalty=2.0,
        penalty_style="gnmt", early_stopping="never", repetition_penalty=2.0, no_repeat_ngram=3, forced_first=5,
        forced_last=(2, 6), banned=(7, 8), suppressed=(9, 10), banned_first=(11,), renormalize=True, top_k=50,
    )  # fmt: skip
    assert isinstance(found.length_penalty, float)
    assert isinstance(found.repetition_penalty, float)


def test_samples_take_the_place_of_beams() -> None:
    found = resolved(do_sample=True, num_return_sequences=5, temperature=2, top_k=3, top_p=0.5)
    assert found == Search(
        max_length=21, start=1, eos=(2,), pad=0, beams=5, returned=5, sample=True, temperature=2.0, top_k=3, top_p=0.5
    )
    assert isinstance(found.temperature, float)
    assert resolved(do_sample=True, top_k=0).top_k == 0


def test_what_is_not_given_comes_from_the_model() -> None:
    model = {"num_beams": 3, "length_penalty": 0.5, "max_new_tokens": 4, "forced_eos_token_id": 2, "use_cache": True}
    found = resolved(model, num_beams=2, length_penalty=None)
    assert (found.beams, found.length_penalty, found.max_length, found.forced_last) == (2, 0.5, 5, (2,))


def test_whole_numbers_may_be_floats_or_of_numpy() -> None:
    found = resolved(num_beams=2.0, max_new_tokens=np.int64(3), no_repeat_ngram_size=np.float32(2))
    assert (found.beams, found.max_length, found.no_repeat_ngram) == (2, 4, 2)
    assert all(type(value) is int for value in (found.beams, found.max_length, found.no_repeat_ngram))
    tokens = resolved(suppress_tokens=torch.tensor([3, 4]), eos_token_id=np.array([5, 6]))
    assert (tokens.suppressed, tokens.eos) == ((3, 4), (5, 6))
    assert all(type(token) is int for token in (*tokens.suppressed, *tokens.eos))


def test_the_start_token_is_the_decoders_or_bos() -> None:
    assert resolved({"decoder_start_token_id": None, "bos_token_id": 4}).start == 4
    assert resolved({"decoder_start_token_id": 0, "bos_token_id": 4}).start == 0
    refused(
        "generation_config.json: decoder_start_token_id: expected one token id, got None",
        model={"decoder_start_token_id": None},
    )


def test_without_a_padding_token_eos_fills_the_output() -> None:
    assert resolved({"pad_token_id": None, "eos_token_id": [3, 4]}).pad == 3
    assert resolved({"pad_token_id": None, "eos_token_id": None}).pad == -1
    assert resolved({"eos_token_id": None}).eos == ()


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        ({}, {"max_new_tokens": 5}, 6),
        ({}, {"max_length": 5}, 5),
        ({}, {"max_length": 9, "max_new_tokens": 5}, 6),
        ({"max_new_tokens": 5}, {"max_length": 9}, 9),
        ({"max_new_tokens": 5}, {"max_length": None}, 6),
        ({"max_length": 7}, {}, 7),
        ({"max_length": 7}, {"max_new_tokens": 3}, 4),
        ({"max_length": 7, "max_new_tokens": 3}, {}, 4),
        ({}, {"max_length": 2}, 2),
        ({}, {"max_new_tokens": 1}, 2),
    ],
)
def test_the_longest_output(model: dict[str, Any], given: dict[str, Any], expected: int) -> None:
    assert resolved(model, **given).max_length == expected


def test_the_shortest_output() -> None:
    assert resolved(min_length=4).min_length == 4
    assert resolved(min_length=9, min_new_tokens=4).min_length == 5
    assert resolved(min_new_tokens=0).min_length == 1
    assert resolved().min_length == 0


def test_positions_limit_the_output() -> None:
    assert resolved(positions=10).max_length == 10, "the default of 20 new tokens is no request"
    assert resolved(positions=30).max_length == 21
    assert resolved(positions=10, max_new_tokens=10).max_length == 11
    refused("`max_new_tokens`: 11 is more than the 10 positions of the decoder", positions=10, max_new_tokens=11)
    refused("`max_new_tokens`: at least one new token must be allowed, got a `max_length` of 1", max_new_tokens=0)
    refused("`max_new_tokens`: at least one new token must be allowed, got a `max_length` of 1", max_length=1)


@pytest.mark.parametrize("name", ["max_length", "max_new_tokens", "min_length", "num_beams", "no_repeat_ngram_size"])
@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), "2", True, [2], 1j])
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    refused(f"`{name}`: expected a whole number, at least 0, got {value!r}", **{name: value})


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty", "length_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 10**400, "2", True, [1.0]])
def test_numbers_are_finite(name: str, value: Any) -> None:
    refused(f"`{name}`: expected a finite number, got {value!r}", **{name: value})


@pytest.mark.parametrize("name", ["do_sample", "renormalize_logits"])
def test_switches_are_true_or_false(name: str) -> None:
    refused(f"`{name}`: expected True or False, got 1", **{name: 1})


@pytest.mark.parametrize("name", ["suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id", "eos_token_id"])
def test_token_ids_are_ids_of_the_vocabulary(name: str) -> None:
    assert resolved(**{name: [49]})
    assert resolved(vocabulary=None, **{name: [50]})
    refused(f"`{name}`: no token has the id 50; the vocabulary has 50 tokens", **{name: [3, 50]})
    refused(f"`{name}`: no token has the id -1", **{name: [-1]})
    refused(f"`{name}`: no token has the id -1", vocabulary=None, **{name: [-1]})
    for value in ([[2]], ["2"], [2.0], [True], [None], "2", {"a": 1}):
        refused(f"`{name}`: expected token ids, got ", **{name: value})


@pytest.mark.parametrize("name", ["forced_bos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id"])
def test_settings_of_one_token_take_one(name: str) -> None:
    assert resolved(**{name: np.int64(3)})
    for value in ([3], "3", 3.0):
        refused(f"`{name}`: expected one token id, got {value!r}", **{name: value})
    refused(f"`{name}`: no token has the id 50", **{name: 50})
    refused(f"`{name}`: expected token ids, got True", **{name: True})


def test_bad_words_are_lists_of_one_token() -> None:
    assert resolved(bad_words_ids=[]).banned == ()
    assert resolved(bad_words_ids=((3,), [4])).banned == (3, 4)
    assert resolved(bad_words_ids=[[2]]).banned == (), "generate ignores EOS here"
    for value in (5, [5], [[]], "ab", [[3], []]):
        refused(f"`bad_words_ids`: expected a list of lists of token ids, got {value!r}", bad_words_ids=value)
    refused(
        "`bad_words_ids`: the engine supports only bad words of one token; use model.generate", bad_words_ids=[[3, 4]]
    )
    refused("`bad_words_ids`: no token has the id 50", bad_words_ids=[[50]])
    refused("`bad_words_ids`: expected token ids, got [3]", bad_words_ids=[[[3]]])


def test_ranges() -> None:
    for name in ("num_beams", "num_return_sequences"):
        for value in (0, 10_001):
            refused(f"`{name}`: expected a number from 1 to 10000, got {value}", **{name: value})
    assert resolved(num_beams=10_000).beams == 10_000
    refused("`num_return_sequences`: 3 is more than `num_beams=2`", num_beams=2, num_return_sequences=3)
    assert resolved(num_beams=2, num_return_sequences=2).returned == 2
    refused(
        "`do_sample`: the engine samples without beams; set `num_beams=1` or use model.generate",
        do_sample=True,
        num_beams=2,
    )
    for value in (0, -1.0):
        refused(f"`temperature`: must be above 0, got {value}", do_sample=True, temperature=value)
        refused(f"`repetition_penalty`: must be above 0, got {value}", repetition_penalty=value)
    assert resolved(temperature=0).temperature == 0, "it has no effect without sampling"
    refused("`early_stopping`: expected True, False or \"never\", got 'always'", early_stopping="always")
    assert [resolved(early_stopping=value).early_stopping for value in (True, False, "never")] == [True, False, "never"]
    refused('`length_penalty_style`: expected "hf" or "gnmt", got \'google\'', style="google")


def test_a_forced_token_must_be_allowed() -> None:
    refused("`forced_bos_token_id`: 4 is also in `suppress_tokens`", forced_bos_token_id=4, suppress_tokens=[3, 4])
    refused(
        "`forced_eos_token_id`: [2, 3] is also in `suppress_tokens`", forced_eos_token_id=[2, 3], suppress_tokens=[3, 2]
    )
    assert resolved(forced_eos_token_id=[2, 3], suppress_tokens=[3]).forced_last == (2, 3)
    assert resolved(forced_eos_token_id=2, suppress_tokens=[3]).suppressed == (3,)


def test_a_length_penalty_leaves_scores_finite() -> None:
    message = "`length_penalty`: 40.0 is out of range for outputs of up to 20 tokens; usual values are between -2 and 2"
    refused(message, length_penalty=40.0)
    refused("`length_penalty`: -40.0 is out of range", length_penalty=-40.0)
    assert resolved(length_penalty=40.0, max_new_tokens=2).length_penalty == 40.0
    assert resolved(length_penalty=-26.0).length_penalty == -26.0


def test_errors_in_the_models_settings_name_its_file() -> None:
    refused("generation_config.json: num_beams: expected a whole number", model={"num_beams": "2"})
    refused("generation_config.json: num_beams: expected a number from 1 to 10000, got 0", model={"num_beams": 0})
    refused("generation_config.json: early_stopping: expected True", model={"early_stopping": "x"})
    refused("`num_beams`: expected a number from 1 to 10000, got 0", model={"num_beams": 3}, num_beams=0)
    assert resolved({"num_beams": "2"}, num_beams=3).beams == 3, "it is not used"
    refused("generation_config.json: bad_words_ids: no token has the id 99", model={"bad_words_ids": [[99]]})


@pytest.mark.parametrize(
    ("name", "neutral", "other"),
    [
        ("typical_p", 1.0, 0.5), ("epsilon_cutoff", 0.0, 0.1), ("eta_cutoff", 0.0, 0.1), ("guidance_scale", 1, 2),
        ("encoder_repetition_penalty", 1.0, 1.1), ("encoder_no_repeat_ngram_size", 0, 2), ("num_beam_groups", 1, 2),
        ("diversity_penalty", 0.0, 0.5), ("penalty_alpha", None, 0.6), ("constraints", None, [1]),
    ],
)  # fmt: skip
def test_settings_that_the_engine_does_not_support_may_be_neutral(name: str, neutral: Any, other: Any) -> None:
    assert resolved({name: neutral}) == resolved(**{name: neutral}) == resolved()
    refused(f"`{name}`: the engine does not support {other!r}; use model.generate", **{name: other})
    refused(f"generation_config.json: {name}: the engine does not support {other!r}", model={name: other})


def test_settings_without_effect_on_tokens_are_ignored() -> None:
    assert (
        resolved(use_cache=False, output_scores=True, return_dict_in_generate=True, disable_compile=True) == resolved()
    )
    assert resolved(output_attentions=False) == resolved()
    refused("`output_attentions`: the engine does not support True", output_attentions=True)


def test_unknown_names_are_refused_with_the_most_similar_one() -> None:
    refused("`num_beam`: not a generation setting; did you mean `num_beams`?", num_beam=2)
    refused("`zzz`: not a generation setting", zzz=2)
    with pytest.raises(ValueError, match="^`zzz`: not a generation setting$"):
        check_names({"zzz": 1}, GenerationConfig())
    with pytest.raises(ValueError, match=r"did you mean `keep_all`\?"):
        check_names({"keep_al": 1}, GenerationConfig(), ["keep_all"])
    check_names({"keep": 1, "num_beams": 2}, GenerationConfig(), ["keep"])
    with pytest.raises(ValueError, match="^`commit_has`: not a generation setting$"):
        check_names({"commit_has": 1}, GenerationConfig())  # _commit_hash is private


def test_a_stored_file_is_checked_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    check_stored_settings(file)
    file.write_text('{"num_beams": 2, "max_length": null, "suppress_tokens": [99999]}')
    check_stored_settings(file)
    file.write_text('{"num_beams": "2"}')
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: num_beams: expected a whole number"):
        check_stored_settings(file)
