"""Reading and writing recipes: YAML with overrides, and errors that name the line."""

import copy
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from l0drop.recipe.checks import EXPONENT, RecipeError, Section
from l0drop.recipe.recipe import Recipe

_Path = tuple[int | str, ...]


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file and change some keys: each override is `a.b=value`, with the value in YAML.

    The value replaces the file's value; a section is replaced as a whole: `l0drop=null` turns a recipe into a baseline.
    Raises RecipeError.
    """
    values, where = _read(str(path))
    return _overridden(values, overrides, str(path), where)


def override_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with some keys changed, as by `load_recipe`."""
    return _overridden(_plain(recipe), overrides, recipe.name, {})


def parse_recipe(mapping: Mapping[str, Any], source_name: str) -> Recipe:
    """Build a recipe from plain values; errors name `source_name` as their origin."""
    return _build(mapping, source_name, {}, [])


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML with every default written out; reading it returns an equal recipe."""
    return yaml.dump(_plain(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _overridden(values: Any, overrides: Sequence[str], source_name: str, where: dict[_Path, str]) -> Recipe:
    faults = []
    for override in overrides:
        try:
            where |= _set(values, override)
        except RecipeError as error:
            faults.append(str(error))
    return _build(values, source_name, where, faults)


def _build(values: Any, source_name: str, where: Mapping[_Path, str], faults: list[str]) -> Recipe:
    if not isinstance(values, Mapping):
        expected = ", ".join(Recipe.model_fields)
        raise RecipeError(f"{source_name}: should be a mapping with the keys {expected}, got {reprlib.repr(values)}")
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path = details["loc"]
            origins = (where[path[:end]] for end in range(len(path), 0, -1) if path[:end] in where)
            faults.append(f"{next(origins, source_name)}: {'.'.join(map(str, path))}: {details['msg']}")
    if faults:
        raise RecipeError("\n".join(faults)) from None
    return recipe


def _read(path: str) -> tuple[Any, dict[_Path, str]]:
    """The values of a YAML file, and for each path of keys its file and line."""
    try:
        loader = _Loader(Path(path).read_text(encoding="utf-8"))
        node = loader.get_single_node()
        values = loader.construct_document(node) if node is not None else None
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not valid UTF-8 at byte {error.start}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}{_yaml_problem(error)}") from error
    return values, {keys: f"{path}, line {line}" for keys, line in _lines(node, ())}


def _lines(node: yaml.Node | None, above: _Path) -> Iterator[tuple[_Path, int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield (*above, key.value), key.start_mark.line + 1
        yield from _lines(value, (*above, key.value))


def _set(values: Any, override: str) -> dict[_Path, str]:
    """Put the value of an override into `values`; return the paths of the keys that it wrote."""
    origin = f"override {override!r}"
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise RecipeError(f"{origin}: should be a.b=value, such as train.steps=100")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(f"{origin}{_yaml_problem(error)}") from error
    written: dict[_Path, str] = {}
    section = values
    for end, name in enumerate(path, 1):
        if not isinstance(section, dict):
            raise RecipeError(f"{origin}: {'.'.join(path[: end - 1]) or 'the recipe'} has no keys in it")
        inner = section.get(name)
        if end == len(path) or inner is None:
            written[path[:end]] = origin
        # A copy, as sections can be shared by an anchor.
        section[name] = value if end == len(path) else {} if inner is None else copy.copy(inner)
        section = section[name]
    return written


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return ": not a recipe: lists or sections are nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark) is not None:
        problem = ", ".join(part for part in (error.problem, error.context) if part)
        return f", line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {problem}"
    return f": not valid YAML: {error}"


def _plain(value: Any) -> Any:
    """A section as plain values, without fields that are None by default."""
    if isinstance(value, Section):
        fields = [(name, getattr(value, name), field.default) for name, field in type(value).model_fields.items()]
        return {name: _plain(inner) for name, inner, default in fields if inner is not None or default is not None}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else copy.deepcopy(value)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 3e-4 is a number and a key may occur only once in a section."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} occurs twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Safe YAML without anchors, whose strings are still strings when `_Loader` reads them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML folds keys at these three characters, and reads them back as spaces.
        node = super().represent_str(data)
        node.style = '"' if set(data) & set("\x85\u2028\u2029") else None
        return node


_Dumper.add_representer(str, _Dumper.represent_str)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
