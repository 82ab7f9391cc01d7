"""The report as Markdown: well-formed tables, and text from data without markup."""

import re
from pathlib import Path

import pytest

from l0drop.report.findings import gather
from l0drop.report.markdown import markdown
from l0drop.report.page import page
from l0drop.runs.escape import code
from l0drop.runs.escape import markdown as plain
from l0drop.runs.json_file import FileError
from tests.report import folders
from tests.report.folders import HOSTILE
from tests.study.test_significance import BAD, GOOD


def test_rows_of_a_table_have_equally_many_cells(tmp_path: Path) -> None:
    text = markdown(gather(folders.sweep(tmp_path, rules=True)))
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        rows = table.splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert "| **target-0.5** |" in text
    assert "**target-0.3**" not in text


def test_seeds_and_unused_evaluations_are_mentioned(tmp_path: Path) -> None:
    folders.finished(tmp_path / "run", 0.4)
    folders.evaluated(tmp_path / "run", BAD, GOOD, 0.4, seeds=[(GOOD, GOOD)])
    text = markdown(gather(tmp_path / "run"))
    assert "Scores and differences are means over 2 pairs of models." in text
    found = gather(tmp_path / "run")
    assert found.examples
    after = text.partition("## Examples")[2].splitlines()[2]
    assert after.endswith("⟦brackets⟧. First of 2 seeds.")
    assert text.count("First of 2 seeds.") == 2, "for the tail risk too"
    assert page(found, []).count("First of 2 seeds.") == 2
    folders.sweep(tmp_path / "sweep")
    folders.evaluated(tmp_path / "sweep" / "target-0.3", GOOD, GOOD, 0.31, metric="chrf", margin=10.0)
    left_out = markdown(gather(tmp_path / "sweep")).partition("## Not in this report")[2]
    assert "target-0.5/evaluation differs from target-0.3/evaluation: metric BLEU, not chrF2." in left_out


def test_an_analysis_becomes_tables(tmp_path: Path) -> None:
    folders.finished(tmp_path, 0.4)
    before = markdown(gather(tmp_path))
    rows = [{"closed": HOSTILE, "share": 0.5, "sparsity": 0.25, "cross_entropy": 1.5}]
    interventions = {"interventions": {"systems": {"sparse": rows}}}
    folders.analysed(tmp_path, {"sparsity": 0.4, **interventions})
    text = markdown(gather(tmp_path))
    assert "## Gates closed manually" not in before
    assert "## Gates closed manually\n\n| model | closed gates | share | sparsity | cross-entropy |\n" in text
    assert f"| sparse | {plain(HOSTILE)} | 50% | 25.0% | 1.500 |" in text


def test_notes_explain_only_their_table_and_have_no_code_marks(tmp_path: Path) -> None:
    folders.finished(tmp_path, 0.4)
    entropy = {"what": "entropy (nats); `uniform` is the entropy of equal weights", "sparse": {"kept": 1.0}}
    rows = [{"closed": "none", "share": 0.5, "sparsity": 0.25, "cross_entropy": 1.5}]
    interventions = {"what": "words, `share` of the count", "systems": {"sparse": rows}}
    folders.analysed(tmp_path, {"sparsity": 0.4, "entropy": entropy, "interventions": interventions})
    text = markdown(gather(tmp_path))
    assert "## Entropy of the encoder's attention" in text
    assert "uniform" not in text, "the table has no such row"
    assert "Words, share of the count." in text
    assert "\\`" not in text.partition("## Entropy")[2]


def test_an_analysis_in_another_format_is_an_error(tmp_path: Path) -> None:
    folders.finished(tmp_path, 0.4)
    folders.put(tmp_path / "analysis.json", {"sparsity": 0.4, "interventions": {}})
    with pytest.raises(FileError, match=r"analysis\.json: models: missing"):
        gather(tmp_path)


def test_hostile_text_stays_in_its_block(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folders.finished(run, 0.4)
    outputs = ["```` ``` @all </code>\u2028x\x1b"] * 40
    folders.evaluated(run, outputs, outputs, 0.4)
    text = markdown(gather(run))
    blocks = re.findall(r"^(`{3,})text\n(.*?)\n\1$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for fence, block in blocks:
        assert len(fence) == 5
        assert [line.split()[0] for line in block.splitlines()] == ["source", "human", "dense", "gated"]
        assert "⟦source⟧" in block
        assert "\x1b" not in block
    outside = re.sub(r"^(`{3,})text\n(.*?)\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    assert "@all" not in outside


def test_markdown_is_escaped() -> None:
    assert plain(HOSTILE) == (
        '&lt;script&gt;alert("x")&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; \\]\\]&gt; &amp; "q" \'s\' $title '
        "@\u200ball \\`a\\` \\*\\*b\\*\\* \\| \\[l\\](http:\u200b//x)"
    )
    assert plain("a\n# b_c ~~d~~") == r"a \# b\_c \~\~d\~\~"


def test_code_cannot_leave_its_span() -> None:
    assert code("nrefs:1|<i>") == "`nrefs:1|<i>`"
    assert code("a`b``c\nd\x1b") == "```a`b``c d\ufffd```"
    assert code("`a`") == "`` `a` ``"
