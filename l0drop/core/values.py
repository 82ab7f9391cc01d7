"""Values that users pass: refused by name where they are of the wrong kind, instead of failing somewhere inside."""

import math
from numbers import Real
from typing import Any

from torch import Tensor


class WrongKindError(TypeError, ValueError):
    """An argument of the wrong type; also a ValueError, so that one handler serves wrong types and wrong values."""


def number(name: str, value: Any) -> float:
    """`value`, a number or a tensor with one element, as a finite float; WrongKindError for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        what = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise WrongKindError(f"{name}: expected a number, got {what}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return found


def count(name: str, value: Any, *, most: int = 2**31 - 1) -> int:
    """`value` as a whole number above 0; a whole float such as 2.0 is one."""
    found = number(name, value)
    if found != int(found) or not 1 <= found <= most:
        raise ValueError(f"{name}: expected a whole number from 1 to {most}, got {value}")
    return int(found)


def share(name: str, value: Any) -> float:
    """`value` as a float in [0, 1]."""
    found = number(name, value)
    if not 0 <= found <= 1:
        raise ValueError(f"{name}: expected a share between 0 and 1 (0.4 for 40%), got {found:g}")
    return found
