"""A dense model's outputs as targets."""

from pathlib import Path

import pytest
import torch

from l0drop.data.text import one_line
from l0drop.recipe import parse_recipe
from l0drop.training import teacher
from l0drop.training.assemble import load_dense
from l0drop.training.corpora import build_tokenizers, split_text
from tests.training import tiny


@pytest.mark.parametrize("beams", [1, 3])
def test_targets_are_the_outputs_of_generate(
    tmp_path: Path, baseline: Path, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "WINDOW", 7)  # so that there are several windows
    distilled = {"steps": 4, "targets": "teacher", "teacher": {"weight": 0.0, "beams": beams, "max_new_tokens": 12}}
    values = tiny.sparse(tmp_path, str(baseline), train=distilled)
    source = Path(values["data"]["train"]["source"])
    lines = source.read_text(encoding="utf-8").splitlines()[:16]
    lines[3] = ""
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path(values["data"]["train"]["target"]).write_text("reference\n" * len(lines), encoding="utf-8")
    recipe = parse_recipe(values, "test")
    tokenizers = build_tokenizers(recipe, tmp_path, lambda text: None)
    pairs = list(split_text(recipe, "train", tokenizers))
    assert [pair.source for pair in pairs] == lines
    model = load_dense(str(baseline)).eval()
    for pair in pairs:
        if not pair.source:
            assert pair.target == ""
            continue
        inputs = tokenizers.source([pair.source], return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                num_beams=beams,
                max_new_tokens=12,
                do_sample=False,
            )
        (text,) = tokenizers.target.batch_decode(tokens, skip_special_tokens=True)
        assert pair.target == one_line(text)
    assert len({pair.target for pair in pairs}) > 2
