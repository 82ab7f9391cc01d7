"""`l0drop demo`: train, drop, decode and report on two toy tasks, in less than five minutes on two cores."""

import statistics
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from l0drop.app.options import use_threads
from l0drop.app.pieces import MarkedPiece, is_styled, mark_dropped
from l0drop.app.terminal import console, log, say

if TYPE_CHECKING:
    from l0drop.runs.demo import DemoTask, Word
    from l0drop.runs.table import Table


class TaskName(StrEnum):
    documents = "documents"
    translation = "translation"


class GatingName(StrEnum):
    zero = "zero"
    mask = "mask"
    weight = "weight"
    mean = "mean"


def demo(
    task: Annotated[
        TaskName | None, typer.Option(help="Run one task alone: long documents or short sentences. Default: both.")
    ] = None,
    gating: Annotated[GatingName, typer.Option(help="How a gate acts on an encoding.")] = GatingName.zero,
    target: Annotated[
        float | None,
        typer.Option(help="Target sparsity. Default: 0.7 for documents, 0.4 for translation.", min=0.05, max=0.95),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data and training.", min=0)] = 1,
    folder: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1, max=1024)] = 2,
) -> None:
    """Train small models on built-in text, fine-tune them with gates, and show quality and decoding time.

    Ctrl-C stops the demo; the same command resumes it.
    """
    tasks = [name.value for name in TaskName] if task is None else [task.value]
    try:
        _demo(tasks, folder, gating.value, target, seed, threads)
    except KeyboardInterrupt:
        say("stopped; the same command resumes")
        raise typer.Exit(130) from None


def _demo(tasks: list[str], folder: Path, gating: str, target: float | None, seed: int, threads: int) -> None:
    from l0drop.app.demo_page import write_page
    from l0drop.app.demo_run import TASKS, DemoSettings, run_task
    from l0drop.runs.demo import Demo
    from l0drop.runs.provenance import provenance
    from l0drop.runs.run import RunFolder
    from l0drop.runs.table import for_terminal

    use_threads(threads)
    log.print(plan({name: (TASKS[name].about, TASKS[name].minutes) for name in tasks}), highlight=False)
    settings = DemoSettings(gating, target, seed)
    found = {name: run_task(folder / name, name, settings, log) for name in tasks}
    Demo(found, provenance()).write(RunFolder(folder).metrics)
    page = write_page(folder)
    console.print()
    console.print(for_terminal(results_table(found), compact=True))
    for name, metrics in found.items():
        console.print(dropped_classes(name, metrics))
    marked = "struck out" if is_styled(console) else "between ~~"
    shown = "translation" if "translation" in found else tasks[0]
    console.print(f"\n[bold]Dropped words of the {shown} model[/] {marked}, and its output on the short memory:")
    for example in found[shown].sentences[:2]:
        console.print(struck(example.source, is_styled(console)))
        console.print(Text(f"  → {example.outputs['short']}"))
    console.print(next_steps(folder, shown, page), highlight=False, soft_wrap=True)


def plan(tasks: dict[str, tuple[str, float]]) -> str:
    """The tasks with the minutes they take, and the phases of each."""
    total = sum(minutes for _, minutes in tasks.values())
    lines = [f"This takes about {_clock(total)} minutes on two idle cores:"]
    lines += [f"  {name:<12} {_clock(minutes)}  {about}" for name, (about, minutes) in tasks.items()]
    lines.append("Each task trains a small model (dense, start), fine-tunes it with gates (sparse)")
    lines.append("and without (dense, continued), decodes the test set, and writes a report.")
    return "\n".join(lines)


def _clock(minutes: float) -> str:
    return f"{int(minutes)}:{round(minutes % 1 * 60):02}"


def results_table(tasks: "dict[str, DemoTask]") -> "Table":
    """The final table: for each task the quality, sparsity and decoding time of its systems."""
    from l0drop.runs.table import Table

    head = ["", "quality", "dropped", "decoding, CPU s", "speed-up"]
    rows: list[list[str]] = []
    titles = []
    for name, task in tasks.items():
        score, dropped = task.dense_score, f"{task.sparsity:.1%}"
        seconds = {memory: f"{statistics.median(rounds):.2f}" for memory, rounds in task.decoding_cpu_seconds.items()}
        quality = {system: f"{found.score.value:.2f}" for system, found in task.systems.items()}
        titles.append(len(rows))
        rows += [
            [f"{name}, {task.source_tokens:.0f} tokens ({score.name})", "", "", "", ""],
            ["dense, start", quality["baseline"], "none", "", ""],
            ["dense, continued", quality[task.continued], "none", "", ""],
            ["sparse, full gated memory", f"{score.value:.2f}", dropped, seconds["dense"], ""],
            ["sparse, short memory", quality["sparse"], dropped, seconds["short"], f"{task.dense_by_short_cpu:.2f} x"],
        ]  # fmt: skip
    return Table(head, rows, NOTE, titles=frozenset(titles))


NOTE = (
    "Quality: on the test set, beam 4. Dropped: encodings that the decoder does not read. Dense, continued: the dense "
    "model trained for the same number of further steps. Decoding: the whole test set, encoding included, one thread. "
    "Speed-up: of the short memory over the full gated memory of the same model."
)


def dropped_classes(task: str, found: "DemoTask") -> Text:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found.dropped_by_class.items())
    return Text.from_markup(f"[bold]Dropped in {task}:[/] {shares}")


def struck(sentence: "list[Word]", styled: bool) -> Text:
    """A sentence with its dropped pieces marked."""
    pieces: list[MarkedPiece] = []
    for word in sentence:
        pieces += [(" ", False)] if word.space_before and pieces else []
        pieces += word.pieces
    return mark_dropped(pieces, styled)


TRIED = {
    "documents": "A storm hit Lomfeld. The police counted 44 houses.",
    "translation": "The dog sleeps in the kitchen.",
}
"""Sentences in the vocabulary of the demo's models."""


def next_steps(folder: Path, task: str, page: Path) -> str:
    sparse = folder / task / "sparse"
    return (
        "\n[bold]Try next[/]\n"
        f"  open {page}\n"
        f'  l0drop explain {sparse} "{TRIED[task]}"\n'
        f"  l0drop translate {sparse} --input FILE"
    )
