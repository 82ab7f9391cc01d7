"""Objects in processes of their own, each asked to do one thing at a time."""

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
        """Call a method there, and wait for what it returns; errors are raised here."""
        with self._alive():
            self._pipe.send((method, arguments))
        return self.answer()

    def answer(self) -> Any:
        """What comes next; the first answer, which nobody asked for, says that the object has been built."""
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
            raise RuntimeError(f"{self.name}: its process has ended; is there memory enough?") from None


@contextmanager
def running(
    builders: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]], preload: Sequence[str]
) -> Iterator[dict[str, Remote]]:
    """The objects that these callables build of these arguments, each in its process; they end with the block.

    Processes are forked from one that has imported `preload`, and done nothing with it. It lives as long as this
    process, so that the first call decides what is imported.
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
    process.join(timeout=2)  # by then an idle one has seen that the pipe is closed
    process.terminate()
    process.join()


def _serve(pipe: Connection, build: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """The life of such a process: build the object, then answer until the pipe is closed."""
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
            # others may not survive the way through the pipe
            pipe.send((error if isinstance(error, ValueError | OSError) else RuntimeError(repr(error)), None))
            return
        pipe.send((None, answer))
