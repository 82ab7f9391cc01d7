"""Dataclasses as JSON: how every file of a run is read, checked and written.

A dataclass is a JSON object, and its annotations are the schema. A field with a default may be missing in a file, as it
is in files of older versions. Every field is written, except those declared with `optional()` that have their default.

This is not pydantic: `bench` and `translate` write such files in the base installation, which does not have it.
"""

import dataclasses
import gzip
import json
import sys
import types
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, Union

from l0drop.data.whole import write_whole

VERSION = "version"
"""The key of a file's version. Files without it were written before files had versions."""
Settings = Mapping[str, Any]
"""Settings by name, as a function takes them; the function decides which there are."""
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_KEY, _FLAT, _OPTIONAL = "key", "flat", "optional"
One = TypeVar("One")


class FileError(ValueError):
    """A file that cannot be read; the message names the file, the field, and what to do."""


class FieldError(ValueError):
    """A value that does not fit its field; the message names the field."""


def optional(key: str | None = None, factory: Callable[[], Any] | None = None) -> Any:
    """A field that files have only if it is not None, or not what `factory` makes; `key`: its name in files."""
    metadata = {_OPTIONAL: True, **({} if key is None else {_KEY: key})}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=None, metadata=metadata)


def named(key: str) -> Any:
    """A field with another name in files, one that Python does not allow."""
    return dataclasses.field(metadata={_KEY: key})


def flat() -> Any:
    """A field whose own fields stand beside the others in files; None if a file has none of them."""
    return dataclasses.field(default=None, metadata={_FLAT: True})


class JsonFile:
    """Base of the dataclasses that are files.

    LATEST: the version that is written. COMMAND: the command that writes the file.
    """

    LATEST: ClassVar[int] = 1
    COMMAND: ClassVar[str]

    @classmethod
    def remedy(cls, path: Path) -> str:
        """What to do about a broken file."""
        return remedy(cls.COMMAND)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of this version or an older one; FileError if it is anything else."""
        return read_as(cls, path, cls.remedy(path), cls.LATEST)

    def write(self, path: Path) -> None:
        """Write the file; it gets its name when it is complete."""
        write_json(path, {**as_json(self), VERSION: self.LATEST})


class PackedJsonFile(JsonFile):
    """Base of the dataclasses that are compressed files, without spaces."""

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            content = gzip.decompress(path.read_bytes())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileError(f"{path}: not a gzip file ({error}); {cls.remedy(path)}") from error
        return checked(cls, parsed(content, path, cls.remedy(path)), path, cls.remedy(path), cls.LATEST)

    def write(self, path: Path) -> None:
        write_whole(path, self.as_bytes())

    def as_bytes(self) -> bytes:
        """The content of the file; equal values give equal bytes."""
        content = json.dumps({**as_json(self), VERSION: self.LATEST}, separators=(",", ":"), allow_nan=False)
        return gzip.compress(content.encode(), mtime=0)


def read_as(kind: type[One], path: Path, advice: str, latest: int = 1) -> One:
    """Read a file as a value of this type. advice: what to do if the file is broken."""
    return checked(kind, read_any(path, advice), path, advice, latest)


def checked(kind: type[One], content: Any, path: Path, advice: str, latest: int = 1) -> One:
    """The content of a file as a value of this type; FileError if the version or a field does not fit."""
    version = content.get(VERSION, latest) if isinstance(content, dict) else latest
    if not isinstance(version, int) or version > latest:
        raise FileError(
            f"{path}: {VERSION} {version!r}, but this l0drop reads versions up to {latest}; install a newer l0drop"
        )
    try:
        return from_json(kind, content)
    except FieldError as error:
        raise FileError(f"{path}: {error}; {advice}") from error


def read_any(path: Path, advice: str) -> Any:
    """The content of a JSON file, unchecked. advice: what to do if the file is broken."""
    return parsed(path.read_bytes(), path, advice)


def parsed(content: bytes, path: Path | str, advice: str) -> Any:
    """JSON from a file, or from a line of it, which `path` names."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not JSON ({error}); {advice}") from error


def remedy(command: str) -> str:
    """What to do about a broken file that this command writes."""
    return f"delete the file, and write it again with {command}"


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file; it gets its name when it is complete. NaN is an error: reading would refuse it."""
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def as_json(value: Any) -> Any:
    """The value as lists, dictionaries, text and numbers."""
    if dataclasses.is_dataclass(value):
        content: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.metadata.get(_FLAT):
                content |= {} if found is None else as_json(found)
            elif not (field.metadata.get(_OPTIONAL) and found == _default(field)):
                content[_key(field)] = as_json(found)
        return content
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def from_json(kind: type[One], content: Any) -> One:
    """A value of this type from JSON; FieldError that names the field if the content does not fit."""
    result: One = _value(kind, content, "")
    return result


def _key(field: "dataclasses.Field[Any]") -> str:
    key: str = field.metadata.get(_KEY, field.name)
    return key


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(kind: Any, content: Any, where: str) -> Any:
    """Check one value. where: its field, from the start of the file."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return content
    if origin in (Union, types.UnionType):
        return _one_of(arguments, content, where)
    if origin is Literal:
        return _expected(content in arguments, content, " or ".join(map(repr, arguments)), where)
    if dataclasses.is_dataclass(kind):
        return _record(kind, content, where)
    if origin in (dict, Mapping):
        _expected(isinstance(content, dict), content, "an object", where)
        return {key: _value(arguments[1], item, f"{where}.{key}".lstrip(".")) for key, item in content.items()}
    if origin in (list, Sequence):
        _expected(isinstance(content, list), content, "a list", where)
        return [_value(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(content)]
    if origin is tuple:
        return _tuple(arguments, content, where)
    if kind is type(None):
        return _expected(content is None, content, "null", where)
    accepted = (int, float) if kind is float else (kind,)
    fits = isinstance(content, accepted) and (kind is bool or not isinstance(content, bool))
    if fits and kind is float:  # JSON of Python has NaN, Infinity, and numbers of any length
        return _expected(abs(content) <= sys.float_info.max, content, "a finite number", where)
    return _expected(fits, content, _NAMES[kind], where)


def _one_of(kinds: Sequence[Any], content: Any, where: str) -> Any:
    """The first type that fits; the error of the last one that is not null."""
    last: FieldError | None = None
    for kind in kinds:
        try:
            return _value(kind, content, where)
        except FieldError as error:
            last = last if kind is type(None) and last is not None else error
    assert last is not None
    raise last


def _tuple(kinds: Sequence[Any], content: Any, where: str) -> tuple[Any, ...]:
    _expected(isinstance(content, list), content, "a list", where)
    expected = [kinds[0]] * len(content) if kinds[-1] is ... else list(kinds)
    _expected(len(content) == len(expected), content, f"a list of {len(expected)}", where)
    pairs = enumerate(zip(expected, content, strict=True))
    return tuple(_value(kind, item, f"{where}[{number}]") for number, (kind, item) in pairs)


def _record(kind: Any, content: Any, where: str) -> Any:
    _expected(isinstance(content, dict), content, "an object", where)
    if hasattr(kind, "upgraded"):
        try:
            content = kind.upgraded(content)
        except (LookupError, TypeError) as error:
            raise FieldError(
                f"{where or 'the whole file'}: an older form of {kind.__name__} with broken fields"
            ) from error
    values = {}
    for field in dataclasses.fields(kind):
        hint, key = _hints(kind)[field.name], _key(field)
        if field.metadata.get(_FLAT):
            inner = next(one for one in typing.get_args(hint) or (hint,) if dataclasses.is_dataclass(one))
            known = {_key(one) for one in dataclasses.fields(inner)}
            values[field.name] = _value(inner, content, where) if known & content.keys() else None
        elif key in content:
            values[field.name] = _value(hint, content[key], f"{where}.{key}".lstrip("."))
        elif field.default is field.default_factory:  # both are missing
            raise FieldError(f"{f'{where}.{key}'.lstrip('.')}: missing")
    try:
        return kind(**values)
    except FieldError:
        raise
    except ValueError as error:  # a check of the class itself
        raise FieldError(f"{where}: {error}" if where else str(error)) from error


def _expected(fits: bool, content: Any, expected: str, where: str) -> Any:
    if fits:
        return content
    shown = json.dumps(content, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    raise FieldError(f"{where or 'the whole file'}: expected {expected}, got {shown}")
