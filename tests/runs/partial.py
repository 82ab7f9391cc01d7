"""Files of runs for tests: only what a test is about is given, the rest is filled in."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from l0drop.runs.json_file import from_json

One = TypeVar("One")


def filled(kind: type[One], content: Any) -> One:
    """An object of this type from some of its fields, as files have them."""
    return from_json(kind, completed(kind, content))


def completed(kind: Any, content: Any) -> Any:
    """The content of a file with a value for every field that it must have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if content is None:
        return None
    if origin in (Union, types.UnionType):
        return completed(next(one for one in arguments if one is not type(None)), content)
    if origin in (dict, Mapping):
        return {key: completed(arguments[1], item) for key, item in content.items()}
    if origin in (list, Sequence):
        return [completed(arguments[0], item) for item in content]
    if not dataclasses.is_dataclass(kind):
        return content
    content = kind.upgraded({**content}) if hasattr(kind, "upgraded") else {**content}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, key = hints[field.name], field.metadata.get("key", field.name)
        if field.metadata.get("flat"):
            inner = next(one for one in typing.get_args(hint) or (hint,) if dataclasses.is_dataclass(one))
            if {one.metadata.get("key", one.name) for one in dataclasses.fields(inner)} & content.keys():
                content = completed(inner, content)
        elif key in content:
            content[key] = completed(hint, content[key])
        elif field.default is field.default_factory:
            content[key] = placeholder(hint)
    return content


def placeholder(kind: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return None if type(None) in arguments else placeholder(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return [] if arguments[-1] is ... else [placeholder(one) for one in arguments]
    if dataclasses.is_dataclass(kind):
        return completed(kind, {})
    return (origin or kind)() if origin not in (Mapping, Sequence) else {} if origin is Mapping else []
