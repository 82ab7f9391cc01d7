"""The order of the subpackages: each imports only from itself and from those above it, and uses no private name of
another. One name for one class or type alias."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
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
BY_NAME = re.compile(
    r"importlib(?!\.(metadata|resources)(?!\.entry_points)|\.util\.find_spec$)|(runpy|pkgutil|imp|zipimport|builtins)(\.|$)"
    r"|sys\.(modules|meta_path|path_hooks)|(__import__|__loader__|__spec__|__builtins__|exec|eval|compile)$"
)
"""What can import or run a module whose name is computed."""
USER_MODULES = {
    "app/cli.py": "--import: modules of the user that register gates",
    "app/serve/command.py": "--detector: the user's function that finds the language of a text",
}
"""The files that import modules by a computed name, with the reason. No file below `app` may."""
AFFIXES = ("startswith", "endswith", "removeprefix", "removesuffix")
"""Methods whose arguments are parts of names."""
NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
"""Public names of the standard library that begin with an underscore."""
INNER = re.compile(rf"l0drop[./]({'|'.join(ORDER)})\b[\w./:]*")
"""The name or path of something inside a subpackage, as a whole text."""
STARTERS = ("run", "Popen", "call", "check_call", "check_output", "system", "popen", "create_subprocess_shell")
COMMANDS = ("subprocess", "pty")
"""Modules that start commands."""
OS_COMMAND = re.compile(r"os\.(system|popen|exec\w+|(posix_)?spawn\w*|startfile)|asyncio\.(create_)?subprocess\w*")
ALIAS = re.compile(r"[A-Z]\w*[a-z]\w*")
"""A public class or type alias, by the way it is written."""
COMMAND_STARTS = {
    "study/parallel.py": "`train`: each run of a study in a process of its own, which may fail or be stopped alone",
    "study/distillation.py": "`translate`: a teacher's outputs by several processes, which torchrun starts",
}
"""The files below `app` that start the command line, with the command and the reason.

They use what users use, the documented options and the folders of runs, so that every run can be repeated by hand.
"""
OTHER_COMMANDS = {"runs/provenance.py": "`git`: the commit of the code"}
"""The files below `app` that start other commands."""
FILES = sorted(path for part in ORDER for path in (PACKAGE / part).rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Each module that is imported anywhere in a file, inside functions too, and the name taken from it.

    A text that names a module or file of the package counts as an import: something could load it.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, None) for alias in names)
            case ast.ImportFrom():
                assert not node.level, "relative imports hide where a name comes from"
                yield from ((node.module or "", alias.name) for alias in node.names)
            case ast.Constant(value=str(text)) if INNER.fullmatch(text):
                yield text.replace("/", "."), None


def imports_by_name(tree: ast.AST) -> Iterator[str]:
    """What a file uses that can import a module whose name is computed."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                uses = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names):
                uses = [f"{module}.{alias.name}" for alias in names]
            case ast.Name(id=name, ctx=ast.Load()):
                uses = [name]
            case ast.Attribute(value=ast.Name(id="sys"), attr=name):
                uses = [f"sys.{name}"]
            case _:
                continue
        yield from (use for use in uses if BY_NAME.match(use))


def started_modules(tree: ast.AST) -> Iterator[str]:
    """What a file starts as a command: `python -m l0drop ...` or `l0drop ...`, as a list or as one string."""
    for node in ast.walk(tree):
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                words = [text_of(element) for element in elements]
                yield from (word for before, word in pairwise(words) if before == "-m" and is_inner(word))
            case ast.Call(args=[command, *_]) if called(node) in STARTERS:
                first = command.elts[:1] if isinstance(command, ast.List | ast.Tuple) else []
                words = [text_of(word) for word in first] or ["-m", *text_of(command).split()]
                yield from (word for before, word in pairwise(["-m", *words]) if before == "-m" and is_inner(word))


def commands(tree: ast.AST) -> Iterator[str]:
    """What a file uses that can start any command."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in COMMANDS)
            case ast.ImportFrom(module=str(module), names=names):
                uses = (f"{module}.{alias.name}" for alias in names)
                yield from (use for use in uses if module.split(".")[0] in COMMANDS or OS_COMMAND.fullmatch(use))
            case ast.Attribute(value=ast.Name(id=module), attr=name) if OS_COMMAND.fullmatch(f"{module}.{name}"):
                yield f"{module}.{name}"


def called(node: ast.AST) -> str:
    """The last part of a called function's name; empty for anything but a call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def text_of(node: ast.AST) -> str:
    """A literal text, with `{}` for what is computed; empty for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) or "{}" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if text_of(left):
            return text_of(left) + (text_of(right) or "{}")
    return ""


def is_inner(module: str) -> bool:
    return module == "l0drop" or module.startswith("l0drop.")


def part_of(module: str, name: str | None) -> str | None:
    """The subpackage that an import reaches: `core` for `l0drop.core.gates`; None outside subpackages."""
    path = module.split(".") + ([name] if module == "l0drop" and name else [])
    return path[1] if path[0] == "l0drop" and len(path) > 1 and path[1] in ORDER else None


def wrong_imports(tree: ast.Module, own: str) -> list[str]:
    """Imports of a later subpackage, of another's private name, and of modules outside the subpackages."""
    found = []
    for module, name in imported_modules(tree):
        part = part_of(module, name)
        if part is None:
            allowed = module == "l0drop.extras" or (module, name) == ("l0drop", "__version__")
            if is_inner(module) and not allowed:
                found.append(f"{own} imports {name or module}, which is outside the subpackages")
        elif ORDER.index(part) > ORDER.index(own):
            found.append(f"{own} imports {module}, which comes after it")
        elif part != own and (is_private(name or "") or any(map(is_private, module.split(".")))):
            found.append(f"{own} imports {name or module}, which is private")
    return found


def private_names(tree: ast.Module) -> Iterator[str]:
    """The private functions, classes and constants of a file, and the private attributes and methods of its classes."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield from (name,) * is_private(name)
            case ast.Assign() | ast.AnnAssign():
                yield from (name for name in assigned(node) if is_private(name))
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(owner):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield from (name,) * is_private(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    yield from (name,) * is_private(name)
        for node in owner.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                yield from (name for name in assigned(node) if is_private(name))


def assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that an assignment sets."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each private name of something other than `self` that a file uses, with its line.

    By a dot, as the name of an argument, or written as a text, in which `{}` stands for what is computed.
    """
    whole = (ast.JoinedStr, ast.BinOp)
    parted = (node for node in ast.walk(tree) if isinstance(node, whole) or called(node) in AFFIXES)
    inside = {part for node in parted for part in [*ast.walk(node)][1:]}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno, name
            case ast.keyword(arg=str(name)) if is_private(name):
                yield node.lineno, name
            case ast.MatchClass(kwd_attrs=names):
                yield from ((node.lineno, name) for name in names if is_private(name))
            case ast.Constant() | ast.BinOp() | ast.JoinedStr() if node not in inside:
                yield from ((node.lineno, part) for part in text_of(node).split(".") if is_private(part))


def own_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each private name of `self` or `cls` that a file uses, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if is_private(name):
                yield node.lineno, name


def is_private(name: str) -> bool:
    return re.match(r"_[^_]", name) is not None and name not in NAMED_TUPLE


def owners() -> dict[str, set[str]]:
    """For each private name, the subpackages that define it."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for name in private_names(parsed(path)):
            found.setdefault(name, set()).add(path.relative_to(PACKAGE).parts[0])
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


OWNERS = owners()


def foreign_uses(tree: ast.Module, own: str, owned: Mapping[str, set[str]] = OWNERS) -> list[str]:
    """Uses of private names that other subpackages define; of a name that several define, uses outside its own file.

    Those of `self` may be a base class's of another subpackage. Privates of Hugging Face and torch are not found: a
    model's `config._attn_implementation` has no public name.
    """
    here = set(private_names(tree))
    found = []
    for line, name in private_uses(tree):
        if name in owned and name not in here and owned[name] != {own}:
            found.append(f"line {line}: {name} is private to {', '.join(sorted(owned[name] - {own}))}")
        elif "{}" in name and any(re.fullmatch(name.replace("{}", r"\w*"), other) for other in owned):
            found.append(f"line {line}: {name} may be private to another subpackage")
    for line, name in own_uses(tree):  # of a base class
        if name in owned and own not in owned[name]:
            found.append(f"line {line}: {name} is private to {', '.join(sorted(owned[name]))}")
    return found


def public_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The public classes and type aliases of a file, each with what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, f"class, line {node.lineno}"),) * (not is_private(node.name))
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not (
            isinstance(node.value, ast.Call) and called(node.value) == "TypeVar"
        ):
            meaning = ast.unparse(node.value) if node.value else ""
            yield from ((name, meaning) for name in assigned(node) if ALIAS.fullmatch(name))


def two_meanings(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """The public names that mean different things in different files, by name with the files.

    The same alias may be written twice, such as `Say = Callable[[str], None]`.
    """
    found: dict[str, dict[str, str]] = {}
    for file, tree in trees.items():
        for name, meaning in public_names(tree):
            is_class = meaning.startswith("class, ")
            key = f"{file}, {meaning}" if is_class else meaning
            found.setdefault(name, {})[key] = file
    return {name: set(files.values()) for name, files in found.items() if len(files) > 1}


def test_every_subpackage_has_its_rank() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ORDER)


def test_modules_outside_the_subpackages() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(TOP)
    extras = ast.parse((PACKAGE / "extras.py").read_text(encoding="utf-8"))
    assert [module for module, _ in imported_modules(extras) if module.startswith("l0drop")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_above(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    assert wrong_imports(parsed(path), own) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_modules_of_the_user_are_imported_by_a_computed_name(path: Path) -> None:
    uses_it = path.relative_to(PACKAGE).as_posix() in USER_MODULES
    assert bool([*imports_by_name(parsed(path))]) == uses_it


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_few_files_below_app_start_commands(path: Path) -> None:
    part, *_ = path.relative_to(PACKAGE).parts
    starts = path.relative_to(PACKAGE).as_posix() in {*COMMAND_STARTS, *OTHER_COMMANDS}
    assert part == "app" or bool([*commands(parsed(path))]) == starts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_below_app_starts_the_command_line(path: Path) -> None:
    part, *_ = path.relative_to(PACKAGE).parts
    if part != "app" and path.relative_to(PACKAGE).as_posix() not in COMMAND_STARTS:
        assert [*started_modules(parsed(path))] == []


@pytest.mark.parametrize("name", COMMAND_STARTS)
def test_the_files_that_may_start_the_command_line_do(name: str) -> None:
    assert [*started_modules(parsed(PACKAGE / name))] == ["l0drop"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_attributes_stay_inside_their_subpackage(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    assert foreign_uses(parsed(path), own) == []


def test_one_name_for_one_thing() -> None:
    found = two_meanings({path.relative_to(PACKAGE).as_posix(): parsed(path) for path in FILES})
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import l0drop.app.cli",
        "from l0drop.app import cli",
        "def later():\n    from l0drop.app.cli import main",
        "if TYPE_CHECKING:\n    from l0drop.app.cli import main",
        "import_module('l0drop.app.cli')",
        "__import__(name='l0drop.app.cli')",
        "LATER = {'main': 'l0drop.app.cli:main'}",
        "run_path('l0drop/app/cli.py')",
        "def run(command: 'l0drop.app.cli.Command'): ...",
    ],
)
def test_an_import_from_below_is_found(code: str) -> None:
    assert len(wrong_imports(ast.parse(code), "study")) == 1
    assert wrong_imports(ast.parse(code), "app") == []


@pytest.mark.parametrize(
    "code",
    [
        "import l0drop",
        "from l0drop import load",
        "from l0drop.__main__ import main",
        "from l0drop.core.gates import _path",
        "import l0drop.core._hidden",
    ],
)
def test_an_import_from_outside_the_subpackages_or_of_a_private_name_is_found(code: str) -> None:
    assert len(wrong_imports(ast.parse(code), "study")) == 1


@pytest.mark.parametrize(
    "code",
    [
        "import importlib",
        "from importlib import import_module as load",
        "import importlib.util as util",
        "from importlib.metadata import entry_points",
        "from runpy import run_path",
        "import pkgutil",
        "load = __import__",
        "exec('import l0drop')",
        "sys.modules[name]",
        "from sys import modules",
        "from builtins import __import__ as load",
    ],
)
def test_an_import_by_a_computed_name_is_found(code: str) -> None:
    assert len([*imports_by_name(ast.parse(code))]) == 1


@pytest.mark.parametrize(
    "code",
    ["from importlib.metadata import version", "from importlib import resources", "re.compile(x)", "model.eval()"],
)
def test_other_parts_of_importlib_import_nothing(code: str) -> None:
    assert [*imports_by_name(ast.parse(code))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "from subprocess import run as start",
        "os.system(command)",
        "os.execvp(program, arguments)",
        "from os import popen",
        "asyncio.create_subprocess_exec(program)",
    ],
)
def test_the_start_of_a_command_is_found(code: str) -> None:
    assert len([*commands(ast.parse(code))]) == 1
    assert [*commands(ast.parse("import os, asyncio\nos.environ, os.path, asyncio.run(main())"))] == []


@pytest.mark.parametrize(
    "code",
    [
        "[sys.executable, '-m', 'l0drop', 'train', recipe]",
        "[*launch, '-m', 'l0drop.app.cli']",
        "Popen(('l0drop', 'train', recipe))",
        "subprocess.run('python -m l0drop train', shell=True)",
        "os.system(f'l0drop translate {model}')",
    ],
)
def test_a_start_of_the_command_line_is_found(code: str) -> None:
    assert len([*started_modules(ast.parse(code))]) == 1
    assert [*started_modules(ast.parse(code.replace("l0drop", "nvidia-smi")))] == []


@pytest.mark.parametrize(
    "code",
    [
        "model._gate(x)",
        "getattr(model, '_gate', None)",
        "model.__dict__['_gate'] = gate",
        "self.model._gate",
        "attrgetter('_gate')(model)",
        "operator.attrgetter('encoder._gate')",
        "methodcaller('_gate', x)",
        "NAME = '_gate'; getattr(model, NAME)",
        "def f(name='_gate'): return vars(model)[name]",
        "[getattr(model, name) for name in ('_gate',)]",
        "getattr(model, '_' + 'gate')",
        "vars(model).pop('_gate')",
        "model.__dict__.update(_gate=gate)",
        "object.__setattr__(model, '_gate', gate)",
        "super()._gate(x)",
        "class Own(Model): f = lambda self: self._gate",
    ],
)
def test_a_private_name_of_another_subpackage_is_found(code: str) -> None:
    assert foreign_uses(ast.parse(code), "training") == ["line 1: _gate is private to models"]
    assert foreign_uses(ast.parse(code), "models") == []


def test_a_private_name_in_a_pattern_is_found() -> None:
    code = ast.parse("match model:\n    case Model(_gate=gate): ...")
    assert foreign_uses(code, "training") == ["line 2: _gate is private to models"]


def test_a_computed_private_name_is_found() -> None:
    code = ast.parse("getattr(model, f'_{part}te')")
    assert foreign_uses(code, "training") == ["line 1: _{}te may be private to another subpackage"]
    assert foreign_uses(ast.parse("f'_{part} is free'; name.endswith('_gate')"), "training") == []


def test_a_private_function_of_another_subpackage_is_found() -> None:
    assert "core" in OWNERS["_path"]
    code = ast.parse("from l0drop.core import gates\ngates._path(kind)")
    assert foreign_uses(code, "models") == ["line 2: _path is private to core"]


def test_a_private_name_of_several_subpackages_may_be_used_in_the_file_that_defines_it() -> None:
    owned = {"_gate": {"models", "training"}}
    assert foreign_uses(ast.parse("model._gate"), "training", owned) == ["line 1: _gate is private to models"]
    assert foreign_uses(ast.parse("def _gate(): ...\nother._gate"), "training", owned) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("class Row: ...", "class Row: ..."),
        ("class Row: ...", "Row = tuple[int, str]"),
        ("Row = tuple[int, str]", "Row = tuple[int, int]"),
    ],
)
def test_a_name_of_two_things_is_found(one: str, other: str) -> None:
    found = two_meanings({"a.py": ast.parse(one), "b.py": ast.parse(other)})
    assert found == {"Row": {"a.py", "b.py"}}


def test_an_alias_may_be_repeated() -> None:
    code = "Say = Callable[[str], None]\nT = TypeVar('T', bound={})\nLIMIT = {}"
    assert two_meanings({"a.py": ast.parse(code.format(1, 1)), "b.py": ast.parse(code.format(2, 2))}) == {}
