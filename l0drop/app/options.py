"""Options that several commands share. Short metavars leave room for the help texts at 80 columns."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Dtype(StrEnum):
    """The number format that a model decodes in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"
    int8 = "int8"


# --- recipes and runs --------------------------------------------------------------------------------------------

RecipeFile = Annotated[Path, typer.Argument(help="A recipe: a YAML file that describes one experiment.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of the recipe: --set train.steps=100", metavar="A.B=VALUE"),
]
Runs = Annotated[Path, typer.Option(help="The folder that holds run folders.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads. Default: torch's choice.", min=1, max=1024)
]
ClipList = Annotated[
    Path | None,
    typer.Option(
        help="For audio: a list of clips, TSV (file, speaker, text) or JSON lines. Default: the test clips of the "
        "run's recipe.",
        metavar="FILE",
    ),
]

# --- decoding ----------------------------------------------------------------------------------------------------

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a model folder, or a name on the Hugging Face hub.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Maximum output length. Default: the run's or the model's, else 256.", min=1),
]
Keep = Annotated[float | None, typer.Option(metavar="SHARE", help="Dial: the share of source tokens to keep.")]
MaxMemory = Annotated[int | None, typer.Option(metavar="N", help="Dial: the maximum number of memory rows.")]
Shift = Annotated[
    float | None, typer.Option(metavar="X", help="Dial: a number added to log α; above 0 keeps more tokens.")
]
Dense = Annotated[bool, typer.Option("--dense", help="Decode on the full gated memory.")]
SourceLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Source language of a multilingual model, as its tokenizer names it."),
]
TargetLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Target language of a multilingual model, as its tokenizer names it."),
]
Prefix = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Text put before every source, for models such as T5. Default: the run's."),
]
GenerationSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other generation setting: no_repeat_ngram_size=3", metavar="NAME=VALUE"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted --output.")]
Restart = Annotated[bool, typer.Option("--restart", help="Discard an interrupted --output.")]
SummaryFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write totals, settings and machine as JSON. Default: OUTPUT.summary.json if OUTPUT is JSON lines.",
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="Such as cpu or cuda. Default: a GPU if there is one.")
]
DtypeOption = Annotated[
    Dtype | None,
    typer.Option(
        metavar="TYPE",
        help="float32, bfloat16, float16, float64, or on a CPU int8. Default: the type of the stored weights.",
    ),
]


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def named_settings(pairs: list[str]) -> dict[str, Any]:
    """Generation settings from NAME=VALUE pairs; a value that is not JSON is a string."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set: expected NAME=VALUE, got {pair!r}")
        try:
            settings[name] = json.loads(value)
        except (ValueError, RecursionError):
            settings[name] = {"True": True, "False": False}.get(value, value)
    return settings


def use_threads(count: int | None) -> None:
    """Compute with this many CPU threads; None keeps torch's number."""
    if count is not None:
        import torch

        torch.set_num_threads(count)
