"""The order of the subpackages: each imports only from itself and from those above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.snippets import ROOT

ORDER = ("core", "models", "recipe", "data", "runs", "decoding", "training", "bench", "study", "report", "app")
PACKAGE = ROOT / "l0drop"
FILES = sorted(path for part in ORDER for path in (PACKAGE / part).rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Each module that is imported anywhere in a file, inside functions too, and the name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where a name comes from"
            yield from ((node.module or "", alias.name) for alias in node.names)


def part_of(module: str, name: str | None) -> str | None:
    """The subpackage that an import reaches: `core` for `l0drop.core.gates`; None outside subpackages."""
    path = module.split(".") + ([name] if module == "l0drop" and name else [])
    return path[1] if path[0] == "l0drop" and len(path) > 1 and path[1] in ORDER else None


def test_every_subpackage_has_its_rank() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_above(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    for module, name in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        part = part_of(module, name)
        if part is None:
            continue
        assert ORDER.index(part) <= ORDER.index(own), f"{own} imports {module}, which comes after it"
        assert part == own or not (name or "").startswith("_"), f"{own} imports {module}.{name}, which is private"
