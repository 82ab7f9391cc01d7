"""Progress bars for the phases of a run: preparing text, training steps, evaluation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

Update = Callable[[int], None]
"""Called with the number of items done so far."""


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f"/{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{total}", style="progress.download")


class _TimeColumn(ProgressColumn):
    """The remaining time where the total is known, otherwise the elapsed time."""

    def render(self, task: Task) -> Text:
        known = task.total is not None and not task.finished
        return (TimeRemainingColumn() if known else TimeElapsedColumn()).render(task)


class Bars:
    """One bar at a time, and below it those of phases inside it; they fit into 80 columns.

    shown: false in all processes but the main one.
    """

    def __init__(self, console: Console, shown: bool = True) -> None:
        self.console, self.shown = console, shown
        self._live: Progress | None = None

    @contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Update]:
        """Inside, a bar appears with the first update; the bar of a phase inside another disappears at its end."""
        task, is_outer, last = None, self._live is None, 0

        def update(done: int) -> None:
            nonlocal task, last
            last = done
            if not self.shown:
                return
            if self._live is None:
                columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), _CountColumn(), _TimeColumn())
                self._live = Progress(*columns, console=self.console)
                self._live.start()
            if task is None:
                task = self._live.add_task(title, total=total)
            self._live.update(task, completed=done)

        try:
            yield update
            if task is not None and self._live is not None and total is None:
                self._live.update(task, total=last)
        finally:
            if self._live is not None and is_outer:
                self._live.stop()
                self._live = None
            elif self._live is not None and task is not None:
                self._live.remove_task(task)


NO_BARS = Bars(Console(quiet=True), shown=False)
