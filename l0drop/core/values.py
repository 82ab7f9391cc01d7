"""Numbers that users pass: refused by name where they are none, instead of failing somewhere inside."""

import math
from numbers import Real
from typing import Any

from torch import Tensor


def number(name: str, value: Any) -> float:
    """`value` as a float; TypeError unless it is a number or a tensor with one element, ValueError unless finite."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        what = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name}: expected a number, got {what}")
    if not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return float(value)


def share(name: str, value: Any) -> float:
    """`value` as a float in [0, 1]."""
    found = number(name, value)
    if not 0 <= found <= 1:
        raise ValueError(f"{name}: expected a share between 0 and 1 (0.4 for 40%), got {found:g}")
    return found
