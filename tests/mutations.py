"""Broken versions of JSON objects: every field deleted, or replaced by values of other kinds."""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

VALUES: dict[str, Any] = {
    "null": None,
    "string": "x",
    "half": "\ud800",
    "list": [],
    "numbers": [1],
    "object": {"a": 1},
    "true": True,
    "negative": -1,
    "fraction": 2.5,
    "huge": 10**30,
    "nan": math.nan,
}
KINDS = ("delete", *VALUES)
"""Names of the mutations."""


def fields(content: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all fields of an object, inner ones included."""
    for name, value in content.items():
        yield (*above, name)
        if isinstance(value, Mapping):
            yield from fields(value, (*above, name))


def mutated(content: Mapping[str, Any], field: tuple[str, ...], kind: str) -> dict[str, Any]:
    """A copy in which one field is deleted or replaced."""
    whole = copy.deepcopy(dict(content))
    inner = whole
    for name in field[:-1]:
        inner = inner[name]
    if kind == "delete":
        del inner[field[-1]]
    else:
        inner[field[-1]] = copy.deepcopy(VALUES[kind])
    return whole
