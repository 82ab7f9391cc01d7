"""The reference page of recipe keys."""

from pathlib import Path

from l0drop.recipe import Recipe, Section
from l0drop.recipe.checks import section_of
from l0drop.recipe.data import CORPORA
from l0drop.recipe.reference import recipe_reference

PAGE = Path(__file__).parents[2] / "docs" / "recipe-reference.md"


def every_section(section: type[Section]) -> list[type[Section]]:
    inner = [section_of(field.annotation) for field in section.model_fields.values()]
    return [section, *(found for one in inner if one is not None for found in every_section(one))]


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == recipe_reference(), "run python scripts/recipe_reference.py"


def test_every_key_is_described_in_sentences() -> None:
    for section in (*every_section(Recipe), *CORPORA):
        for name, field in section.model_fields.items():
            description = field.description or ""
            assert description, f"{section.__name__}.{name} has no description"
            assert description.rstrip().endswith("."), f"{section.__name__}.{name}: {description}"


def test_a_table_of_every_section_with_types_and_defaults() -> None:
    page = recipe_reference()
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        *("Top level", "data", "Corpora", "tokenizer", "model", "model.transformer"),
        *("l0drop", "l0drop.ramp", "train", "train.teacher", "evaluate"),
    ]
    lines = page.splitlines()
    assert "| `steps` | integer ≥ 1 | required | The number of optimizer steps. |" in lines
    assert any(line.startswith("| `max_source` | integer ≥ 2 | `256` | ") for line in lines)
    assert any(line.startswith("| `fast` | true or false | true on a GPU | ") for line in lines)
    assert any(line.startswith("| `valid` | [corpus](#corpora) | lines held out of `train`") for line in lines)
    assert any(
        line.startswith("| `schedule` | `inverse_sqrt`, `constant`, `linear` | `inverse_sqrt` | ") for line in lines
    )
