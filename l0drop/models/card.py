"""The model card that `save_pretrained` writes into a model's folder."""

import os
import re
from pathlib import Path
from typing import Any

from l0drop.core.penalty import SteeredLambda
from l0drop.models.config import L0DropConfig

_BUILT_IN = ("l0drop.core.", "l0drop.models.")

_CARD = """\
---
library_name: l0drop
tags:
- l0drop
- {model_type}
---

# {title}

This is a `{base}`{origin} {what}

| | |
|---|---|
{rows}

## Use

It needs the Python package `l0drop`; `import l0drop` makes the model class known to transformers.{imports}

```python
import l0drop
from transformers import {auto}

folder = "path/to/this/folder"
model = {auto}.from_pretrained(folder)
```

{use}
"""
_GATE = """\
with a gate between encoder and decoder. The gate drops encoder outputs that the decoder does
not need, so the decoder attends to a shorter memory. The method is L0Drop, from
[On Sparsifying Encoder Outputs in Sequence-to-Sequence Models](https://arxiv.org/abs/2004.11854) (Zhang, Titov and
Sennrich)."""
_SHORTENER = """\
with a shortener between encoder and decoder. It joins or drops encoder outputs, so the
decoder attends to a shorter memory."""
_TEXT = """\
If the tokenizer is saved in the same folder, this goes from text to text:

```python
import l0drop

folder = "path/to/this/folder"
result = l0drop.load(folder).generate(["A sentence."])[0]
print(result.text, [token.text for token in result.kept])
```"""
_SPEECH = """\
If tokenizer and feature extractor are saved in the same folder, this goes from audio to text:

```python
import l0drop

folder = "path/to/this/folder"
result = l0drop.load(folder).transcribe(["speech.wav"])[0]
print(result.text, len(result.kept))
```"""


def write_card(model: Any, folder: str | os.PathLike[str]) -> None:
    """Write README.md into a model's folder, unless it has one."""
    file = Path(folder, "README.md")
    if file.parent.is_dir() and not file.exists():
        file.write_text(model_card(model), encoding="utf-8")


def model_card(model: Any) -> str:
    """A description of the model, how to load it, and the paper: Markdown with a header for the Hugging Face hub."""
    rows = {**_gate_rows(model), **_sparsity_rows(model)}
    part, kind = (model.gate, "gate") if model.shortener is None else (model.shortener, "shortener")
    module = type(part).__module__
    return _CARD.format(
        model_type=model.config.model_type,
        title=type(model).__name__,
        base=model.base_class.__name__,
        auto=model.family.auto.__name__,
        use=_SPEECH if model.family.reads_audio else _TEXT,
        origin=_origin(model),
        what=_GATE if model.shortener is None else _SHORTENER,
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
        imports=""
        if module.startswith(_BUILT_IN)
        else f" Before loading,\nimport the module that registers its {kind} `{getattr(model.config.l0drop, kind)}`.",
    )


def _gate_rows(model: Any) -> dict[str, str]:
    l0drop: L0DropConfig = model.config.l0drop
    if l0drop.shortener is not None:
        arguments = ", ".join(f"{name} {value}" for name, value in l0drop.shortener_args.items())
        return {"shortener": f"`{l0drop.shortener}` ({arguments})" if arguments else f"`{l0drop.shortener}`"}
    rows = {"gating": f"`{l0drop.gating}`", "gate": f"`{l0drop.gate}`"}
    if l0drop.layerwise:
        rows["gates inside the encoder, behind layers"] = ", ".join(map(str, model.inner_layers))
    if l0drop.target_sparsity is None:
        rows["weight of the penalty, λ"] = f"{model.lambda_:g}"
    else:
        rows["target sparsity"] = f"{l0drop.target_sparsity:.1%}"
    return rows


def _sparsity_rows(model: Any) -> dict[str, str]:
    """The sparsity, if it was measured since the model was loaded."""
    if model.calibration is not None:
        return {"sparsity (share of source tokens dropped) on held-out text": f"{model.calibration.after:.1%}"}
    measured = model.schedule.measured if isinstance(model.schedule, SteeredLambda) else None
    return {} if measured is None else {"sparsity at the end of training, estimated": f"{measured:.1%}"}


def _origin(model: Any) -> str:
    """The hub's name of the base model; nothing for a local folder, which means nothing to others."""
    name = str(model.config._name_or_path or "")
    is_hub_name = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()
    return f" ([{name}](https://huggingface.co/{name}))" if is_hub_name else ""
