"""The documentation site builds without a warning, and loads nothing from other servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
import docstring_lists
import method_figures


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?(https?:[^\s\">]+)", text)
        assert not loaded, f"{page.name}: {loaded}"


def test_the_reference_has_every_public_name(site: Path) -> None:
    import l0drop

    text = (site / "api.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="l0drop\.[\w.]*?(\w+)"', text))
    assert set(l0drop.__all__) <= anchors


def test_commands_have_their_options(site: Path) -> None:
    text = (site / "commands.html").read_text(encoding="utf-8")
    assert "<code>--no-jsonl</code>" in text
    assert "<code>float16</code>" in text


def test_contributing_and_linked_files_are_pages(site: Path) -> None:
    text = (site / "contributing.html").read_text(encoding="utf-8")
    assert 'href="gates.html"' in text
    (example,) = site.glob("repository/examples/custom_gate.py.html")
    assert "register_gate" in example.read_text(encoding="utf-8")


def test_fields_become_a_list() -> None:
    text = "A thing.\n\nwide, high: its size,\n    in metres. deep: the same. Note: nothing.\n\nOther: prose."
    assert docstring_lists.as_list(text, {"wide", "high", "deep"}) == (
        "A thing.\n\n- `wide`, `high`: its size, in metres.\n- `deep`: the same. Note: nothing.\n\nOther: prose."
    )


def test_the_drawing_of_the_method_is_up_to_date() -> None:
    file = method_figures.FOLDER / "flow.svg"
    assert file.read_text(encoding="utf-8") == method_figures.flow(), "run python scripts/method_figures.py"
