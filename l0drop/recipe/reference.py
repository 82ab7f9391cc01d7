"""The reference page of all recipe keys, in Markdown, made from the schema."""

import math
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from l0drop.recipe.checks import Section, section_of
from l0drop.recipe.data import CORPORA
from l0drop.recipe.recipe import Recipe

INTRODUCTION = """# Recipe reference

A recipe is a YAML file with the keys below. `recipes/starter.yaml` is a commented example.
On the command line, `--set train.steps=100` changes a key. Relative paths are relative to the working directory.

This page is generated from the schema (`python scripts/recipe_reference.py`); do not edit it.
"""

_CORPORA = """## Corpora

`data.train`, `data.valid` and `data.test` each name a text in one of five ways. Its keys say which.
"""

_NAMES = {"source": "Text files", "tsv": "TSV", "jsonl": "JSON lines", "hub": "Hugging Face dataset", "toy": "Toy text"}


def recipe_reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION, _part("## Top level", Recipe)]
    for name, section in _sections(Recipe):
        parts.append(_part(f"## {name}", section))
        if name == "data":
            parts += [_CORPORA, *(_part(f"### {_NAMES[corpus.kind]}", corpus) for corpus in CORPORA)]
    return "\n".join(parts)


def _sections(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    for name, field in section.model_fields.items():
        if (inner := section_of(field.annotation)) is not None:
            yield prefix + name, inner
            yield from _sections(inner, f"{prefix}{name}.")


def _part(heading: str, section: type[Section]) -> str:
    lines = [
        heading,
        "",
        *_paragraphs(section.__doc__ or ""),
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in section.model_fields.items():
        meaning, _, described = " ".join((field.description or "").split()).partition(" Default: ")
        cells = (f"`{name}`", _type(field.annotation, field.metadata), _default(field, described.rstrip(".")), meaning)
        lines.append("| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _paragraphs(docstring: str) -> Iterator[str]:
    for paragraph in docstring.split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""


def _default(field: FieldInfo, described: str) -> str:
    """The default value, or the words that describe it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, Section):
        return described or ("none" if value is None else "its defaults")
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, float) and not math.isclose(plain, round(plain, 12), rel_tol=1e-15):
        return f"`{plain:.4g}…`"
    text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf).removesuffix("\n...\n").strip()
    return f"`{text}`"


def _type(annotation: Any, metadata: Any = ()) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0], (*inner[1:], *metadata))
    if origin in (Union, UnionType):
        others = [option for option in inner if option is not NoneType]
        if all(section_of(_plain(option)) in CORPORA for option in others):
            return "[corpus](#corpora)"
        return " or ".join(dict.fromkeys(_type(option, metadata) for option in others))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        if inner[-1] is not Ellipsis:
            return f"list of {len(inner)} ({'; '.join(dict.fromkeys(map(_type, inner)))})"
        return f"list of {_type(inner[0])}"
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "mapping"
    if section_of(annotation) is not None:
        return "section"
    name = {str: "text", bool: "true or false", int: "integer", float: "number"}[annotation]
    bounds = _bounds(metadata)
    return f"{name} {', '.join(f'{sign} {bounds[sign]:,}' for sign in bounds)}".strip()


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _bounds(metadata: Any) -> dict[str, Any]:
    """The bounds of a number by their sign; of two lower bounds, the larger."""
    found: dict[str, Any] = {}
    for item in metadata:
        for bound in item.metadata if isinstance(item, FieldInfo) else (item,):
            for kind, sign in ((Ge, "≥"), (Gt, ">"), (Le, "≤"), (Lt, "<")):
                if isinstance(bound, kind):
                    value = getattr(bound, kind.__name__.lower())
                    found[sign] = max(value, found.get(sign, value))
    return found
