"""Values of users: accepted where they are clearly meant, and refused by name."""

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from l0drop.core.values import WrongKindError, count, number, share


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


def test_counts_have_limits() -> None:
    assert count("x", 1) == 1
    assert count("x", 2**31 - 1) == 2**31 - 1
    assert count("x", 5, most=5) == 5
    with pytest.raises(ValueError, match="^x: expected a whole number from 1 to 5, got 6$"):
        count("x", 6, most=5)
    with pytest.raises(ValueError, match="^x: expected a whole number from 1 to 5, got 2.5$"):
        count("x", 2.5, most=5)


@pytest.mark.parametrize("value", [3, 0.5, Fraction(1, 4), np.float32(0.5), torch.tensor(2.0), torch.tensor([[7]])])
def test_numbers_of_any_kind_are_taken(value: Any) -> None:
    found = number("x", value)
    assert type(found) is float
    assert found == float(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1", "'1'"), (None, "None"), (True, "True"), ([1.0], "[1.0]"), (torch.zeros(2), "a tensor of shape [2]"),
        (torch.zeros(0), "a tensor of shape [0]"), (torch.tensor(1j), "a tensor of shape []"),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_name(value: Any, shown: str) -> None:
    with pytest.raises(TypeError, match=rf"^x: expected a number, got {re.escape(shown)}$"):
        number("x", value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.tensor(-torch.inf)])
def test_numbers_that_are_not_finite_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^x: expected a finite number, got (nan|inf|-inf)$"):
        number("x", value)


def test_shares_lie_between_0_and_1() -> None:
    assert [share("x", value) for value in (0, 0.25, 1)] == [0.0, 0.25, 1.0]
    for value in (-0.1, 1.5, 2):
        message = rf"^x: expected a share between 0 and 1 \(0.4 for 40%\), got {value:g}$"
        with pytest.raises(ValueError, match=message):
            share("x", value)
    with pytest.raises(TypeError, match="^x: expected a number"):
        share("x", "0.5")
