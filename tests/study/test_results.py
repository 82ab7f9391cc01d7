"""What the results say is what their files say."""

import importlib.util
import json
from typing import Any

import pytest

from tests.snippets import ROOT


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("multi30k", ROOT / "scripts" / "multi30k.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_multi30k_are_those_of_its_file(script):
    found = json.loads((ROOT / "docs" / "results" / "multi30k.json").read_text(encoding="utf-8"))
    document = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for table in script.tables(found).split("\n\n"):
        assert table in document
