"""Readers copy code and commands from the documents and follow their links: all of them must work as written."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import soundfile
import torch
import transformers
import typer.main
import yaml

from l0drop import L0DropConfig, sparsify
from l0drop.app.cli import app
from l0drop.core import gates, shorteners
from l0drop.recipe import Recipe, parse_recipe
from l0drop.recipe.checks import Section
from tests.decoding import folders
from tests.models import whispers, zoo
from tests.snippets import ROOT, blocks, documents, python_block, python_blocks, text_of

DOCUMENTS = documents()


# --- Python -------------------------------------------------------------------------------------------------------

ELSEWHERE = {
    ("docs/training.md", "model.steer("): "tests/models/test_training.py",
    ("docs/training.md", "Seq2SeqTrainer("): "tests/models/test_training.py",
    ("docs/gates.md", "TextAnnotator("): "tests/models/test_patterns.py",
}
"""Blocks that need a trained model or a special text: a string in the block, and the test that runs it."""


def is_run_elsewhere(document: str, block: str) -> bool:
    return any(document == name and text in block for name, text in ELSEWHERE)


@pytest.fixture
def demo_runs(baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny sparse model under the names that the documents use, and in place of a public checkpoint."""
    run = folders.sparse(baseline, tmp_path / "runs" / "sparse" / "model").parent
    for name in ("demo/translation/sparse", "demo/documents/sparse"):
        link = tmp_path / "runs" / name
        link.parent.mkdir(parents=True)
        link.symlink_to(run, target_is_directory=True)
    public = tmp_path / "Helsinki-NLP" / "opus-mt-en-de"
    public.parent.mkdir()
    public.symlink_to(baseline / "model", target_is_directory=True)
    whispers.save(whispers.build(), tmp_path / "whisper-tiny")
    for name in ("monday.wav", "tuesday.flac"):
        soundfile.write(tmp_path / name, whispers.tone(0.4), 16_000)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that registers a gate or a shortener runs in two tests, and a name can be registered once."""
    for registry in (gates.GATES, shorteners.SHORTENERS):
        monkeypatch.setattr(registry, "classes", dict(registry.classes))


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if python_blocks(document)])
def test_python_runs_as_written(document: str, demo_runs: None) -> None:
    """The blocks of a page run one after the other, as a reader would."""
    namespace: dict[str, object] = {"__name__": "a_reader"}
    for block in python_blocks(document):
        if not is_run_elsewhere(document, block):
            exec(block, namespace)


@pytest.mark.parametrize(("document", "text"), ELSEWHERE)
def test_blocks_that_run_elsewhere_exist_and_do(document: str, text: str) -> None:
    assert python_block(document, text)
    assert f'python_block("{document}", "{text}")' in text_of(ELSEWHERE[document, text])


def test_the_readme_shows_the_kept_words(demo_runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = python_blocks("README.md")
    assert len(block.splitlines()) <= 9
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    result, printed = namespace["result"], capsys.readouterr().out
    assert result.text in printed
    assert 0 < len(result.kept) < result.source_tokens, "something is dropped"
    assert f"{len(result.kept)} of {result.source_tokens}" in printed


def test_the_custom_shortener_begins_rows_where_encodings_turn() -> None:
    block = python_block("docs/gates.md", "@register_shortener").split("name =")[0]
    namespace: dict[str, Any] = {"__name__": "documented_shortener"}
    exec(block, namespace)
    x = torch.tensor([[[1.0, 0], [2, 0], [0, 1], [0, 3], [5, 0]]] * 2)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    memory = namespace["Turns"](0.5)(x, mask)
    assert memory.index.tolist() == [[0, 2, 4], [1, 2, -1]]
    assert memory.states[0].tolist() == [[1.5, 0], [0, 2], [5, 0]]


def test_the_custom_gate_drops_every_second_token(tmp_path: Path) -> None:
    block = python_block("docs/gates.md", "@register_gate")
    assert len(block.splitlines()) < 40
    exec(block, {"__name__": "documented_gate"})
    batch = zoo.ragged_batch()
    model = sparsify(zoo.build("bart"), L0DropConfig(gate="every", gate_args={"step": 2}))
    for explanation in model.explain(**batch):
        assert explanation.kept == list(range(0, len(explanation.gates), 2))
    memory = model.get_encoder()(**batch)
    assert memory.last_hidden_state.shape[1] == 12 + 1
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**batch, max_new_tokens=6), model.generate(**batch, max_new_tokens=6))


# --- commands -----------------------------------------------------------------------------------------------------


def fenced_commands(document: str) -> Iterator[str]:
    """Complete command lines: those in fenced blocks, continued lines joined, comments and redirections removed."""
    for block in blocks(document, "", "bash", "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:torchrun .*? -m )?(l0drop .*)", line.strip())
            if found:
                yield found[1]


def inline_commands(document: str) -> Iterator[str]:
    """Commands in running text and tables, which may lack their arguments."""
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`\n]+)`", prose):
        found = re.match(r"(?:torchrun .*? -m )?(l0drop [a-z].*)", code)
        if found and "..." not in code and "COMMAND" not in code:
            yield found[1]


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    return words[1 : next((at for at, word in enumerate(words) if word in ("<", ">", "|")), len(words))]


def command_of(words: list[str]) -> tuple[Any, str, list[str]]:
    """The command that the words name, its name, and the words after it."""
    command, names = typer.main.get_command(app), ["l0drop"]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{' '.join(names)} has no command {words[0]!r}"
        command, names, words = command.commands[words[0]], [*names, words[0]], words[1:]
    return command, " ".join(names), words


FENCED = [(document, line) for document in DOCUMENTS for line in fenced_commands(document)]
INLINE = [(document, line) for document in DOCUMENTS for line in inline_commands(document)]


@pytest.mark.parametrize(("document", "line"), FENCED)
def test_a_command_parses(document: str, line: str) -> None:
    """Arguments, options and their values, as the real command line reads them; nothing is run."""
    command, name, words = command_of(words_of(line))
    command.make_context(name, words)


@pytest.mark.parametrize(("document", "line"), INLINE)
def test_a_command_in_the_text_exists(document: str, line: str) -> None:
    command, name, words = command_of(words_of(line))
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    assert given <= known | {"--help"}, f"{name} has no {', '.join(given - known)}"


def test_all_commands_are_listed() -> None:
    def names(group: Any, prefix: str) -> Iterator[str]:
        for name, command in group.commands.items():
            yield from names(command, f"{prefix} {name}") if hasattr(command, "commands") else [f"{prefix} {name}"]

    listed = set(re.findall(r"^\| `(l0drop [^`]+)`", text_of("docs/commands.md"), re.MULTILINE))
    assert listed == set(names(typer.main.get_command(app), "l0drop"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_recipes_that_are_named_exist(document: str) -> None:
    for path in re.findall(r"\brecipes/[a-z][\w.-]*\.yaml", text_of(document)):
        assert (ROOT / path).is_file(), f"{document}: {path}"


# --- recipes ------------------------------------------------------------------------------------------------------


def fields_below(annotation: Any, key: str) -> list[Any]:
    """The annotations of the field `key` in each section that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation.model_fields[key].annotation] if key in annotation.model_fields else []
    return [found for part in get_args(annotation) for found in fields_below(part, key)]


def is_recipe_key(path: str) -> bool:
    allowed: list[Any] = [Recipe]
    for key in path.split("."):
        allowed = [found for annotation in allowed for found in fields_below(annotation, key)]
    return bool(allowed)


def keys_of(values: Any, prefix: str = "") -> Iterator[str]:
    for key, value in values.items() if isinstance(values, dict) else ():
        yield prefix + key
        yield from keys_of(value, f"{prefix}{key}.")


def recipe_keys(document: str) -> Iterator[str]:
    """Recipe keys in YAML blocks, in inline YAML such as `train: {steps: 10}`, and after --set."""
    for block in blocks(document, "yaml"):
        yield from keys_of(yaml.safe_load(block))
    sections = "|".join(Recipe.model_fields)
    for code in re.findall(rf"`((?:{sections}): \{{[^`]*\}})`", text_of(document)):
        yield from keys_of(yaml.safe_load(code.replace("...", "null")))
    yield from re.findall(r"(?:--set |--set '|`)([a-z_0-9]+(?:\.[a-z_]+)+)=", text_of(document))


RECIPE_KEYS = sorted({(document, key) for document in DOCUMENTS for key in recipe_keys(document)})


@pytest.mark.parametrize(("document", "key"), RECIPE_KEYS)
def test_a_recipe_key_exists(document: str, key: str) -> None:
    assert is_recipe_key(key) or key.startswith(("l0drop.gate_args.", "l0drop.shortener_args.")), f"{document}: {key}"


def test_recipe_keys_are_found_and_checked() -> None:
    assert {key for document, key in RECIPE_KEYS if document == "docs/data.md"} >= {
        "train.elastic",
        "data.train.source",
    }
    assert not is_recipe_key("train.stepz")
    assert not is_recipe_key("train.steps.more")


@pytest.mark.parametrize("block", [block for block in blocks("docs/data.md", "yaml") if block.startswith("name:")])
def test_a_whole_recipe_is_valid(block: str) -> None:
    parse_recipe(yaml.safe_load(block), "docs/data.md")


# --- links --------------------------------------------------------------------------------------------------------


def links(document: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose)


def anchors(document: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs both make them."""
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), f"{document}: {link}"
        if anchor:
            assert anchor in anchors(str(target.resolve().relative_to(ROOT))), f"{document}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_are_named_exist(document: str) -> None:
    for path in re.findall(r"`(tests/[\w/]+\.py)`", text_of(document)):
        assert (ROOT / path).is_file(), f"{document}: {path}"


def test_the_package_description_has_no_relative_links() -> None:
    """Package indexes show the README without the repository around it."""
    settings = tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert settings["fragments"] == [{"path": "README.md"}]
    description = text_of("README.md")
    for substitution in settings["substitutions"]:
        description = re.sub(substitution["pattern"], substitution["replacement"], description)
    targets = re.findall(r"\]\(([^)]*)\)", description)
    assert targets, "absolute links stay"
    assert all(target.startswith("https://") for target in targets)
    assert "<img" not in description
    assert "Your checkpoint (`docs/checkpoint.md`)" in description


# --- the layout ---------------------------------------------------------------------------------------------------


def tree() -> Iterator[Path]:
    """Every path in the tree of CONTRIBUTING.md: two spaces deeper is inside the folder above."""
    (block,) = [block for block in blocks("CONTRIBUTING.md", "") if block.startswith("l0drop/")]
    above: list[Path] = []
    for line in block.splitlines():
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        path = (above[depth - 1] if depth else ROOT) / name
        above[depth:] = [path]
        assert len(line.split(maxsplit=1)) == 2, f"{name} needs a comment"
        yield path


def test_the_tree_names_what_exists() -> None:
    paths = list(tree())
    assert len(paths) > 40
    for path in paths:
        assert path.exists(), path.relative_to(ROOT)


def test_the_tree_names_every_module() -> None:
    package = ROOT / "l0drop"
    modules = {path for path in package.rglob("*.py") if not path.name.startswith("__")}
    named = [path for path in tree() if package in path.parents and path.suffix == ".py"]
    assert sorted(path.relative_to(package) for path in modules.difference(named)) == [], "missing in the tree"
    assert len(named) == len(set(named)), "named twice"


def test_the_tree_names_every_subpackage() -> None:
    named = {path.name for path in tree() if path.parent == ROOT / "l0drop" and path.is_dir()}
    assert named == {path.parent.name for path in (ROOT / "l0drop").glob("*/__init__.py")}
