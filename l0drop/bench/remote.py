"""Objects in separate processes, called synchronously."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


class Remote:
    """An object in another process."""

    def __init__(self, name: str, pipe: Connection) -> None:
        self.name, self._pipe = name, pipe

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method there and return its result; its errors are raised here."""
        with self._alive():
            self._pipe.send((method, arguments))
        return self.answer()

    def answer(self) -> Any:
        """The next answer. The first one arrives without a question, once the object has been built."""
        with self._alive():
            error, answer = self._pipe.recv()
        if error is not None:
            error.add_note(f"in the process of {self.name}")
            raise error
        return answer

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            raise RuntimeError(f"{self.name}: its process has ended, possibly for lack of memory") from None


@contextmanager
def running(
    builders: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]], preload: Sequence[str]
) -> Iterator[dict[str, Remote]]:
    """Build each object from a callable and its arguments in a separate process; the processes end with the block.

    They are forked from a server that has imported `preload` and nothing else. It lives as long as this process, so
    the first call decides its imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with ExitStack() as stack:
        remotes = {}
        for name, (build, arguments) in builders.items():
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, build, arguments), daemon=True)
            process.start()
            there.close()
            stack.callback(_end, process, here)
            remotes[name] = Remote(name, here)
            remotes[name].answer()
        yield remotes


def _end(process: BaseProcess, pipe: Connection) -> None:
    pipe.close()
    process.join(timeout=2)  # an idle process sees the closed pipe by then
    process.terminate()
    process.join()


def _serve(pipe: Connection, build: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """The process: build the object, then answer calls until the pipe is closed."""
    built = None
    while True:
        try:
            if built is None:
                built, answer = build(*arguments), None
            else:
                method, given = pipe.recv()
                answer = getattr(built, method)(*given)
        except (EOFError, KeyboardInterrupt):
            return
        except Exception as error:
            # other errors may not survive pickling
            pipe.send((error if isinstance(error, ValueError | OSError) else RuntimeError(repr(error)), None))
            return
        pipe.send((None, answer))
