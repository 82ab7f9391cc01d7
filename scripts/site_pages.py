"""MkDocs hooks: the pages of the site that are not files in docs/.

- `contributing.md` is CONTRIBUTING.md.
- Pages link to files of the repository, such as ../recipes/starter.yaml. The site has no repository next to it, so each
  of these files becomes a page that shows it. A linked folder becomes a page that lists its files.
- `commands.md` gets the options of every command, from the command line itself.
"""

import posixpath
import re
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".cff": "yaml", "": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    contributing = File.generated(config, "contributing.md", content=(ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    files.append(contributing)
    documents = [file for file in files if file.is_documentation_page()]
    for path in sorted({path for file in documents for path in _outside_links(file)}):
        page = File.generated(config, f"repository/{path}.md", content=_shown(path))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri == "commands.md":
        markdown += "\n" + "\n".join(command_sections())
    return LINK.sub(lambda link: _on_site(link[1], page.file), markdown)


def _outside_links(file: File) -> Iterator[str]:
    for link in LINK.findall(file.content_string):
        path = _in_repository(link, file)
        if _is_outside(path):
            yield path


def _is_outside(path: str) -> bool:
    """Whether a page has to be made for this path: MkDocs takes the files in docs/, and no folder."""
    file = ROOT / path
    return file.is_dir() or (file.is_file() and not path.startswith("docs/") and path != "CONTRIBUTING.md")


def _shown(path: str) -> str:
    """A page for a file or a folder of the repository."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(member.name for member in file.iterdir() if member.is_file() and member.suffix != ".md")
        up = "../" * (path.count("/") + 1)
        listed = [f"- [{name}]({up}{path.removeprefix('docs/')}/{name})" for name in names]
        return f"# {path}\n\n" + "\n".join(listed) + "\n"
    return f"# {path}\n\n````{LANGUAGES[file.suffix]}\n{file.read_text('utf-8').rstrip()}\n````\n"


def _in_repository(link: str, file: File) -> str:
    """The path that a link leads to, from the root of the repository."""
    folder = "" if file.src_uri == "contributing.md" else posixpath.dirname(f"docs/{file.src_uri}")
    return posixpath.normpath(posixpath.join(folder, link))


def _on_site(link: str, file: File) -> str:
    """The link with which this page reaches the same file on the site; unknown ones stay, for MkDocs to report."""
    if file.src_uri.startswith("repository/"):
        return link
    path = _in_repository(link, file)
    if _is_outside(path):
        target = f"repository/{path}.md"
    elif path == "CONTRIBUTING.md":
        target = "contributing.md"
    elif path.startswith("docs/"):
        target = path.removeprefix("docs/")
    else:
        return link
    return posixpath.relpath(target, posixpath.dirname(file.src_uri) or ".")


# --- the command line ---------------------------------------------------------------------------------------------


def commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, such as `l0drop bench decode`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def command_sections() -> Iterator[str]:
    from l0drop.app.cli import app

    for name, command in commands(typer.main.get_command(app), "l0drop"):
        yield f"## {name}\n"
        yield re.sub(r"\s*\n\s*", " ", (command.help or "").strip()) + "\n"
        yield from _table(command)


def _table(command: Any) -> Iterator[str]:
    hints = get_type_hints(command.callback)
    shown = [parameter for parameter in command.params if parameter.name != "help" and not parameter.hidden]
    if not shown:
        return
    yield "| option | meaning |\n|---|---|"
    for parameter in shown:
        is_argument = parameter.param_type_name == "argument"
        names = [(parameter.metavar or parameter.name).upper()] if is_argument else parameter.opts
        spelled = ", ".join(f"`{name}`" for name in [*names, *parameter.secondary_opts])
        yield f"| {spelled} | {_cell(parameter, hints.get(parameter.name))} |"
    yield ""


def _cell(parameter: Any, hint: Any) -> str:
    text = (parameter.help or "").replace("|", "\\|").replace("\n", " ")
    choices = [choice.value for kind in (hint, *get_args(hint)) if isinstance(kind, EnumType) for choice in kind]
    if choices:
        text += " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
    default = getattr(parameter.default, "value", parameter.default)
    if not isinstance(default, bool) and isinstance(default, (int, float, str, Path)):
        text += f" Default: `{default}`."
    return text
