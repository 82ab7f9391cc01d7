"""Eval mode for some calls: of a view, while the model itself stays as it is, or of the model until they end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

_CONTAINERS = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set)))
"""The containers of every module: parameters, buffers, submodules, hooks."""


def eval_view(module: Any, replaced: Mapping[nn.Module, nn.Module] | None = None) -> Any:
    """New module objects in eval mode with the parameters, buffers, hooks and other attributes of `module`.

    Making one takes a few microseconds per module, so every call makes its own. Threads never share one, and it is
    never older than the model. Changing it, such as adding a buffer, does not change the model. `replaced` maps
    submodules to modules that are used instead, unchanged.
    """
    views = {id(old): new for old, new in (replaced or {}).items()}

    def view(old: nn.Module) -> nn.Module:
        if id(old) not in views:
            state = vars(old).copy()
            state.pop("_compiled_call_impl", None)  # it would call the original module
            for name in _CONTAINERS:
                state[name] = state[name].copy()
            state["training"] = False
            new = views[id(old)] = object.__new__(type(old))
            vars(new).update(state)
            children = new._modules
            for name, child in children.items():
                children[name] = None if child is None else view(child)
        return views[id(old)]

    return view(module)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for the calls inside; afterwards every module is in its former mode."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
