"""Commands whose messages name options: the library writes `max_source`, the user reads --max-source.

Messages of the library name an argument in backquotes, alone or with a value: `resume=True`, `errors="replace"`.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from typer.core import TyperCommand, TyperGroup

ARGUMENT = re.compile(r"`(?P<name>[a-z]\w*)(?:=(?P<value>[^`]*))?`")

_options: ContextVar[Mapping[str, str]] = ContextVar("_options", default=MappingProxyType({}))
"""The options of the running command by the names of its parameters."""


class Command(TyperCommand):
    """A command; errors that it raises name its options."""

    def __init__(self, *args: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*args, help=help and one_line_paragraphs(help), **settings)

    def invoke(self, ctx: Any) -> Any:
        options = {str(parameter.name).rstrip("_"): max(parameter.opts, key=len) for parameter in self.params}
        token = _options.set({name: option for name, option in options.items() if option.startswith("--")})
        try:
            return super().invoke(ctx)
        except ValueError as error:
            if len(error.args) == 1 and isinstance(error.args[0], str):
                error.args = (with_options(error.args[0]),)
            raise
        finally:
            _options.reset(token)

    def get_params(self, ctx: Any) -> list[Any]:
        return without_flag_types(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_flag_types(super().get_params(ctx))


def one_line_paragraphs(text: str) -> str:
    """A docstring whose paragraphs are one line each, so that the help page wraps them at the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def with_options(message: str) -> str:
    """A message of the library with the running command's option for each argument; other backquotes stay."""

    def option(found: re.Match[str]) -> str:
        name, value = _options.get().get(found["name"].rstrip("_")), found["value"]
        if name is None:
            return found[0]
        return name if value in (None, "True") else f"{name} {value.strip(chr(34))}"

    return ARGUMENT.sub(option, message)


def without_flag_types(parameters: list[Any]) -> list[Any]:
    """Parameters as the help page lists them: a flag takes no value, so the page shows no type for it."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
