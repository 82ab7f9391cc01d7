"""Modules that a saved model builds again, from a registered name and the constructor's arguments."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import nn


class Buildable(nn.Module):
    """A module that records its constructor's arguments, which must be plain JSON values.

    arguments_field: the name of the user's setting that holds them, for messages.
    """

    arguments: dict[str, Any]
    arguments_field: ClassVar[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        module = super().__new__(cls)
        try:
            bound = inspect.signature(cls.__init__).bind(module, *args, **kwargs)
        except TypeError:
            return module  # __init__ raises a better error; a copy gets its arguments with the other attributes
        bound.apply_defaults()
        arguments: dict[str, Any] = {}
        for name, value in list(bound.arguments.items())[1:]:
            variadic = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            arguments.update(value if variadic else {name: value})
        module.__dict__["arguments"] = arguments
        return module

    def __init__(self) -> None:
        super().__init__()  # nn.Module takes any arguments; a module without its own constructor takes none

    @classmethod
    def build(cls, arguments: Mapping[str, Any], **offered: Any) -> Self:
        """The module with these arguments, and with those of `offered` that its constructor names."""
        signature = inspect.signature(cls.__init__)
        given = {**{k: v for k, v in offered.items() if k in signature.parameters}, **arguments}
        try:
            signature.bind(None, **given)
        except TypeError as error:
            raise ValueError(
                f"{cls.arguments_field}: {cls.__name__} does not take {dict(arguments)}: {error}"
            ) from None
        return cls(**given)


class UnregisteredError(ValueError):
    """No class is registered under this name. `remedy` tells an interface, in a word, what the user can do."""

    remedy = "import"


Kind = TypeVar("Kind", bound=Buildable)


class Registry(Generic[Kind]):
    """The classes of one kind by the names that saved models find them under.

    kind: what they are, as a word; users register a class with the decorator `@register_<kind>("name")`.
    """

    def __init__(self, kind: str, classes: Mapping[str, type[Kind]]) -> None:
        self.kind = kind
        self.classes = dict(classes)

    def add(self, name: str, registered: type[Kind]) -> None:
        """Register a class under this name."""
        known = self.classes.get(name)
        if known is not None and _path(known) != _path(registered):
            raise ValueError(f"{self.kind}: the name {name!r} is taken by {_path(known)}")
        self.classes[name] = registered

    def class_of(self, name: str) -> type[Kind]:
        """The class of that name."""
        if name not in self.classes:
            raise UnregisteredError(
                f"{self.kind}: no {self.kind} is registered as {name!r} (known: {', '.join(sorted(self.classes))}); "
                f"import the module that defines it, with @register_{self.kind}, before loading the model"
            )
        return self.classes[name]

    def name_of(self, module: Kind) -> str:
        """The name that a module's class is registered under."""
        for name, known in self.classes.items():
            if _path(known) == _path(type(module)):  # not identity: running a notebook cell again makes a new class
                return name
        raise ValueError(
            f"{self.kind}: {type(module).__name__} is not registered, so a saved model could not find it again; "
            f'decorate the class with @register_{self.kind}("name")'
        )


def _path(registered: type) -> str:
    return f"{registered.__module__}.{registered.__qualname__}"
