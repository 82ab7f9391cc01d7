"""A griffe extension for the API reference: `beta, epsilon: the temperature and ...` becomes an item of a list.

Our docstrings name arguments and fields that way because it reads well in the source; Markdown would run them
together into one paragraph.
"""

import re
from collections.abc import Collection
from typing import Any

import griffe

NAMES = re.compile(r"(?:^|(?<=[.;] ))(\w+(?:, \w+)*):\s", re.MULTILINE)


def as_list(text: str, known: Collection[str]) -> str:
    """`text` with a list item for every description of known names, at the start of a line or of a sentence."""
    return "\n\n".join(_paragraph(paragraph, known) for paragraph in text.split("\n\n"))


def _paragraph(text: str, known: Collection[str]) -> str:
    found = [match for match in NAMES.finditer(text) if set(match[1].split(", ")) <= set(known)]
    if not found:
        return text
    starts = [match.start() for match in found]
    parts = [text[: starts[0]].strip()] if text[: starts[0]].strip() else []
    items = []
    for match, end in zip(found, [*starts[1:], len(text)], strict=True):
        names = ", ".join(f"`{name}`" for name in match[1].split(", "))
        items.append(f"- {names}: {' '.join(text[match.end() : end].split())}")
    return "\n\n".join([*parts, "\n".join(items)])


class DocstringLists(griffe.Extension):
    """Rewrites docstrings when the package is loaded for the reference."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        _rewrite(pkg)


def _rewrite(item: Any) -> None:
    if item.docstring is not None and not item.is_module:
        known = {parameter.name for parameter in getattr(item, "parameters", ())} | set(item.members)
        item.docstring.value = as_list(item.docstring.value, known)
    for member in item.members.values():
        if not member.is_alias:
            _rewrite(member)
