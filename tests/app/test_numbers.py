"""Lists of numbers on the command line."""

import pytest

from l0drop.app.numbers import listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1:1.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]),
        ("0.1:0.35:0.1", [0.1, 0.2, 0.3]),
        ("0.2, 0.4,0.6", [0.2, 0.4, 0.6]),
        ("0.5,0.1:0.3:0.1,0.2", [0.5, 0.1, 0.2, 0.3]),
        ("2", [2.0]),
    ],
)
def test_numbers_and_ranges(text: str, expected: list[float]) -> None:
    assert listed(text, "--lambda") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "0.1:0.2",
        "0.1:0.2:0",
        "0.3:0.1:0.1",
        "0.1:0.3:-0.1",
        "0.1,,0.2",
        "nan",
        "1:inf:1",
        "0:1:1e-9",
        "0:1e999999:1e-999999",
    ],
)
def test_malformed_lists_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="--lambda: "):
        listed(text, "--lambda")
