"""Write docs/recipe-reference.md from the schema of recipes."""

from pathlib import Path

from l0drop.recipe.reference import recipe_reference

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipe-reference.md"

if __name__ == "__main__":
    PAGE.write_text(recipe_reference(), encoding="utf-8")
