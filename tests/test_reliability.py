"""The published results of the mutation tests: the page shows the file, and every survivor has a reason."""

import json

import mutants


def test_the_page_shows_the_file() -> None:
    page = mutants.PAGE.read_text(encoding="utf-8")
    counts = json.loads(mutants.FILE.read_text(encoding="utf-8"))["files"]
    assert mutants.table(counts) in page
    assert mutants.filled(page, counts) == page


def test_most_mutants_are_killed_and_survivors_explained() -> None:
    found = json.loads(mutants.FILE.read_text(encoding="utf-8"))
    assert {"l0drop/decoding/search.py", "l0drop/decoding/settings.py", "l0drop/core/dial.py"} <= set(found["files"])
    killed, mutants_ = (sum(one[name] for one in found["files"].values()) for name in ("killed", "mutants"))
    assert killed >= 0.85 * mutants_
    for file, one in found["files"].items():
        survivors = [survivor for survivor in found["survivors"] if survivor["file"] == file]
        assert len(survivors) == one["mutants"] - one["killed"], file
        assert all(survivor["reason"] for survivor in survivors), file
