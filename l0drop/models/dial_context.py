"""The dials that are set in `with` blocks, by thread or asyncio task."""

import threading
import warnings
from contextvars import ContextVar

from l0drop.core.dial import Dial, Dials

_DIALS: ContextVar[tuple[tuple[object, Dial | Dials], ...]] = ContextVar("dials", default=())
"""The dials that are set in this thread or task, outermost first, each with the key of its model."""
_NO_DIAL = Dial()
_any_dial = False
"""Whether a dial is set in any thread or task. Compiled code checks it before each run."""
_dials_set = 0
_LOCK = threading.Lock()


def current_dial(key: object) -> Dial | Dials:
    """The innermost dial that this thread or task has set for the model with this key."""
    if not _any_dial:  # torch cannot compile the reading of a context variable
        return _NO_DIAL
    return next((dial for own, dial in reversed(_DIALS.get()) if own is key), _NO_DIAL)


class DialContext:
    """The dial of one `with` block. Dropping it without entering it warns, because then it has changed nothing."""

    def __init__(self, key: object, dial: Dial | Dials) -> None:
        self._key, self._setting = key, dial
        self._entered = False

    def __enter__(self) -> None:
        self._entered = True
        _count_dials(1)
        _DIALS.set((*_DIALS.get(), (self._key, self._setting)))

    def __exit__(self, *exception: object) -> None:
        dials = _DIALS.get()
        # found by identity, because a generator may leave its dial after a later one was set
        own = max((i for i, (_, dial) in enumerate(dials) if dial is self._setting), default=len(dials))
        _DIALS.set(dials[:own] + dials[own + 1 :])
        _count_dials(-1)

    def __del__(self) -> None:
        if not getattr(self, "_entered", True):
            warnings.warn(
                f"model.dial({self._setting}) changed nothing, because it was not entered: write "
                f"`with model.dial({self._setting}): ...`, with the calls it is for inside",
                stacklevel=2,
            )


def _count_dials(more: int) -> None:
    global _any_dial, _dials_set
    with _LOCK:
        _dials_set += more
        _any_dial = _dials_set > 0
