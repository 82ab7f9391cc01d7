"""What the results say is what their files say."""

import importlib.util
import json
from typing import Any

import pytest

from tests.snippets import ROOT


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["multi30k", "europarl"])
def test_the_tables_are_those_of_the_file(name):
    found = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    document = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for table in script(name).tables(found).split("\n\n"):
        assert table in document
