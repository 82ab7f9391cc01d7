"""The order of the subpackages: each imports only from itself and from those above it, and uses no private name of
another. One name for one class."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.snippets import ROOT

ORDER = ("core", "models", "recipe", "data", "runs", "decoding", "training", "bench", "study", "report", "app")
PACKAGE = ROOT / "l0drop"
TOP = {
    "__init__": "the public names, from every subpackage",
    "__main__": "the command line",
    "extras": "the packages that only some subpackages need; every subpackage may import it, so it imports none",
}
"""The modules outside the subpackages, with the reason."""
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


def private_attributes(tree: ast.AST) -> Iterator[str]:
    """The private attributes and methods that the classes of a file define."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(owner):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield from (name,) * is_private(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    yield from (name,) * is_private(name)
        for node in owner.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            yield from (t.id for t in targets if isinstance(t, ast.Name) and is_private(t.id))


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each private attribute of something other than `self` (by a dot, `getattr` or a subscript), with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=name), *_]):
                yield from ((node.lineno, name),) * is_private(str(name))
            case ast.Subscript(slice=ast.Constant(value=str(name))) if is_private(name):
                yield node.lineno, name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def owners() -> dict[str, set[str]]:
    """For each private attribute, the subpackages that define it."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for name in private_attributes(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(path.relative_to(PACKAGE).parts[0])
    return found


OWNERS = owners()


def foreign_uses(tree: ast.AST, own: str) -> list[str]:
    """Uses of attributes that only other subpackages define.

    Privates of Hugging Face and torch are not found: a model's `config._attn_implementation` has no public name.
    """
    return [
        f"line {line}: {name} is private to {', '.join(sorted(OWNERS[name]))}"
        for line, name in private_uses(tree)
        if name in OWNERS and own not in OWNERS[name]
    ]


def test_every_subpackage_has_its_rank() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ORDER)


def test_modules_outside_the_subpackages() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(TOP)
    extras = ast.parse((PACKAGE / "extras.py").read_text(encoding="utf-8"))
    assert [module for module, _ in imported_modules(extras) if module.startswith("l0drop")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_above(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    for module, name in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        part = part_of(module, name)
        if part is None:
            inner = module == "l0drop" or module.startswith("l0drop.")
            allowed = module == "l0drop.extras" or (module, name) == ("l0drop", "__version__")
            assert allowed or not inner, f"{own} imports {name or module}, which is outside the subpackages"
            continue
        assert ORDER.index(part) <= ORDER.index(own), f"{own} imports {module}, which comes after it"
        assert part == own or not (name or "").startswith("_"), f"{own} imports {module}.{name}, which is private"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_attributes_stay_inside_their_subpackage(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    assert foreign_uses(ast.parse(path.read_text(encoding="utf-8")), own) == []


def test_no_two_classes_have_the_same_name() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FILES)
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not is_private(name)] == []


@pytest.mark.parametrize(
    "code", ["model._gate(x)", "getattr(model, '_gate', None)", "model.__dict__['_gate'] = gate", "self.model._gate"]
)
def test_a_private_attribute_of_another_subpackage_is_found(code: str) -> None:
    assert foreign_uses(ast.parse(code), "training") == ["line 1: _gate is private to models"]
    assert foreign_uses(ast.parse(code), "models") == []
