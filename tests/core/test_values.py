"""Values of users: accepted where they are clearly meant, and refused by name."""

import math
from typing import Any

import pytest
import torch

from l0drop.core.values import WrongKindError, count, number


@pytest.mark.parametrize("value", [2, 2.0, torch.tensor(2), torch.tensor([2.0])])
def test_whole_floats_and_single_tensors_are_counts(value: Any) -> None:
    assert count("beams", value) == 2
    assert type(count("beams", value)) is int


@pytest.mark.parametrize("value", ["2", [2], None, True, torch.ones(2), {}, 2j])
def test_values_of_another_kind_are_type_errors_and_value_errors(value: Any) -> None:
    for check in (count, number):
        with pytest.raises(WrongKindError, match="beams: expected a number, got") as error:
            check("beams", value)
        assert isinstance(error.value, TypeError)
        assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("value", [0, -1, 2.5, 10**30, 10**400, math.inf, math.nan])
def test_counts_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="beams: expected a (whole number from 1 to|finite number)"):
        count("beams", value)
