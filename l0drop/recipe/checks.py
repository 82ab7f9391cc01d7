"""The base class of recipe sections: it finds all errors at once and reports them in the terms of a recipe."""

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError


class RecipeError(ValueError):
    """A recipe that cannot be used: one line per error, with the file, the key and the problem."""


Faults = Iterator[tuple[str, str]]
"""Pairs of a key, relative to its section, and the problem with it."""

_RuleMethod = TypeVar("_RuleMethod", bound=Callable[[Any], Faults])


def rule(method: _RuleMethod) -> _RuleMethod:
    """Mark a method of a section that yields the faults between fields that are valid individually.

    If some fields are invalid, the rule still runs, on an object that only has the valid ones.
    """
    method.__dict__["is_rule"] = True
    return method


class Section(BaseModel):
    """A part of a recipe: frozen, without unknown keys, and checked by its rules."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    root: ClassVar[type["Section"]]
    """The section that holds all others; a misspelt key is looked up in it."""

    @model_validator(mode="wrap")
    @classmethod
    def _find_all_faults(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        """Build the section, or raise all faults at once: of single fields, and between valid ones."""
        faults: list[tuple[tuple[int | str, ...], str]] = []
        section: Self | None = None
        try:
            section = build(values)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                path = tuple(part for part in details["loc"] if not _TAG.fullmatch(str(part)))
                faults.append((path, _message(cls, details)))
        fields = section if section is not None else _valid_fields(cls, values)
        for check in [method for method in vars(cls).values() if getattr(method, "is_rule", False)]:
            try:
                for key, message in check(fields):
                    faults.append((tuple(key.split(".")), message))
            except AttributeError:  # a field that the rule needs is invalid
                if section is not None:
                    raise
        if section is None or faults:
            raise ValidationError.from_exception_data(cls.__name__, [_ready(*fault) for fault in faults])
        return section


MOST = 10**12
"""The largest whole number in a recipe."""
FLOAT32 = 3.4e38
"""The largest number in a recipe; models are trained in float32."""

_TAG = re.compile(r"<\w+>")
"""The tag of a corpus kind, which pydantic puts into the paths of errors."""
_READY = "ready"  # the type of errors whose message needs no further translation


def _ready(path: tuple[int | str, ...], message: str) -> InitErrorDetails:
    return {"type": PydanticCustomError(_READY, "{message}", {"message": message}), "loc": path, "input": None}


def _valid_fields(section: type[Section], values: Any) -> SimpleNamespace:
    """The fields of a section that are valid individually, and the valid fields of the sections inside it."""
    fields = SimpleNamespace()
    if not isinstance(values, Mapping):
        return fields
    for name, field in section.model_fields.items():
        if name not in values:
            if not field.is_required():
                setattr(fields, name, field.get_default(call_default_factory=True))
            continue
        try:
            alone: Any = Annotated[field.annotation, field]
            setattr(fields, name, TypeAdapter(alone).validate_python(values[name]))
        except ValidationError:
            if (inner := section_of(field.annotation)) is not None:
                setattr(fields, name, _valid_fields(inner, values[name]))
    return fields


def section_of(annotation: Any) -> type[Section] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _message(section: type[Section], details: ErrorDetails) -> str:
    """The problem, in the terms of a recipe rather than of Python."""
    if details["type"] == _READY:
        return details["msg"]
    value = details["input"]
    match details["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"unknown key; {_suggestion(str(details['loc'][-1]), section)}"
        case "corpus_kind":
            found = f"the keys {', '.join(map(str, value))}" if isinstance(value, Mapping) else reprlib.repr(value)
            return f"{details['msg']}, got {found}"
        case "model_type" | "model_attributes_type":
            return f"should be a section with keys from {', '.join(section.model_fields)}, got {reprlib.repr(value)}"
        case "string_type":
            quotes = ", write it in quotes" if isinstance(value, (bool, int, float)) else ""
            return f"should be text, got {reprlib.repr(value)}{quotes}"
        case "string_pattern_mismatch":
            return f"should be letters, digits and . _ -, not begin with . or -, got {reprlib.repr(value)}"
        case _:
            message = details["msg"].replace("Input should", "should").replace("valid tuple", "list")
            return f"{message[0].lower()}{message[1:]}, got {reprlib.repr(value)}"


def _suggestion(key: str, section: type[Section]) -> str:
    elsewhere = [path for path in _keys(Section.root) if path.split(".")[-1] == key]
    if similar := elsewhere[:2] or get_close_matches(key, section.model_fields, n=1):
        return f"did you mean {' or '.join(similar)}?"
    return f"the keys here are {', '.join(section.model_fields)}"


def _keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The paths of all keys of a recipe, except those inside corpora."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if (inner := section_of(field.annotation)) is not None:
            yield from _keys(inner, f"{prefix}{name}.")


def _number(value: Any) -> Any:
    """Accept 3e-4, which is a string in YAML, and refuse true, which is a number in Python."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "should be a number")
    return float(value) if isinstance(value, str) and EXPONENT.match(value) else value


def _not_absurd(value: int) -> int:
    """Refuse sizes that are mistakes and overflow somewhere inside."""
    if value > MOST:
        raise PydanticCustomError("size", "should be at most {most}", {"most": MOST})
    return value


def _fits_float32(value: float) -> float:
    if abs(value) > FLOAT32:
        raise PydanticCustomError("size", "should be a number that float32 can hold")
    return value


def _token(value: Any) -> Any:
    if (isinstance(value, int) and not isinstance(value, bool) and value >= 0) or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError("token", "should be a token such as </s> or its id")


EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+\Z")

Text = Annotated[str, StringConstraints(min_length=1)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1), AfterValidator(_not_absurd)]
Index = Annotated[int, BeforeValidator(_number), Field(ge=0), AfterValidator(_not_absurd)]
Layers = Annotated[Count, Field(le=1_000)]
Beams = Annotated[Count, Field(le=10_000)]
Width = Annotated[Count, Field(le=1_000_000)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False), AfterValidator(_fits_float32)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Token = Annotated[int | str, BeforeValidator(_token)]
