"""Settings of the engine: the tokens of Hugging Face's generate, or an error that names the setting."""

from typing import Any

import torch
from hypothesis import strategies as st

from l0drop.decoding.settings import _DEFAULTS
from tests.decoding.test_against_generate import FAMILIES, compare, gated, generations
from tests.fuzz.findings import require
from tests.fuzz.stage import Stage
from tests.models import zoo

GATINGS = ("zero", "mask", "weight")
DIALS = st.sampled_from([{}, {"dense": True}]) | st.one_of(
    st.fixed_dictionaries({"keep": st.floats(0.01, 1)}),
    st.fixed_dictionaries({"max_memory": st.integers(2, 20)}),
    st.fixed_dictionaries({"shift": st.floats(-6, 6)}),
)
NAMES = (*_DEFAULTS, *("keep", "max_memory", "shift", "dense", "length_penalty_style", "num_beam", "typical_p"))
VALUES = (
    *(None, True, False, 0, 1, 2, 3, -1, 96, 97, 10**30, -(10**30), 0.0, 0.5, 1.0, 2.0, -0.5, 1e30, 1e-30, 1e308),
    *(float("nan"), float("inf"), "", "2", "never", "x", "\ud800", [], [2], [2, 9], [97], [-1], [[]], [[5]], [[5, 6]]),
    *([None], [2.0], ["2"], [[["2"]]], {}, {"a": 1}, [float("nan")], "gnmt", "hf"),
)


def cases() -> st.SearchStrategy[Any]:
    """Settings that the twin takes too, or any values for any names."""
    batch = {
        "family": st.sampled_from(FAMILIES),
        "gating": st.sampled_from(GATINGS),
        "lengths": st.lists(st.integers(1, 14), min_size=1, max_size=4),
        "seed": st.integers(0, 10**6),
    }
    any_values = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), min_size=1, max_size=3)
    compared = st.fixed_dictionaries({**batch, "generation": generations(), "dial": DIALS})
    return compared | st.fixed_dictionaries({**batch, "any": any_values})


def check(case: Any, stage: Stage) -> None:
    del stage
    batch = zoo.ragged_batch(tuple(case["lengths"]), case["seed"])
    if "any" not in case:
        compare(case["family"], case["gating"], case["generation"], case["dial"], batch)
        return
    model, engine = gated(case["family"], case["gating"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        result = engine.generate(batch["input_ids"], batch["attention_mask"], **{"max_new_tokens": 5, **case["any"]})
    except (ValueError, TypeError) as error:
        require(any(name in str(error) for name in (*NAMES, "generation_config")), f"names no setting: {error}")
    else:
        rows = len(case["lengths"]) * int(case["any"].get("num_return_sequences") or 1)
        require(len(result.sequences) == rows, f"{len(result.sequences)} sequences for {rows}")
        require(bool(result.scores.isfinite().all()), f"the scores are {result.scores.tolist()}")
    for name, value in model.state_dict().items():
        require(torch.equal(value, before[name]), f"{name}: a weight was changed")
