"""`l0drop evaluate` as users call it: models and files, seeds and sweeps, wrong input."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import NllbTokenizer

from l0drop.app import cli
from l0drop.data import metrics
from l0drop.decoding.linear import int8_engines
from l0drop.recipe import parse_recipe
from l0drop.runs.evaluation import Evaluation
from l0drop.runs.json_file import as_json
from l0drop.runs.sweep import Sweep
from l0drop.study.evaluate import Evaluated
from l0drop.study.evaluation_job import output_folder
from l0drop.study.sentence_statistics import SentenceStatistics
from l0drop.study.systems import System
from l0drop.training.run import train as trained_run
from tests.decoding import folders
from tests.runs.partial import completed, filled
from tests.training import tiny


def train(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The content of metrics.json."""
    return as_json(trained_run(*arguments, **options))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory, baseline: Path) -> Path:
    folder = tmp_path_factory.mktemp("sparse")
    values = tiny.sparse(folder, str(baseline), train={"steps": 30, "save_every": 30, "eval_every": 30})
    train(parse_recipe(values, "test"), folder / "runs", Console(quiet=True))
    return folder / "runs" / "sparse"


@pytest.fixture
def text(tmp_path: Path) -> dict[str, Path]:
    """Six documents of four lines, and outputs without every third word."""
    files = tiny.write_text(tmp_path, "held-out", 24, 9)
    found = {}
    for side in ("source", "target"):
        lines = Path(files[side]).read_text(encoding="utf-8").splitlines()
        spaced = [part for n, line in enumerate(lines) for part in ([line, ""] if n % 4 == 3 else [line])]
        found[side] = tmp_path / f"documents.{side}"
        found[side].write_text("\n".join(spaced) + "\n", encoding="utf-8")
    found["outputs"] = tmp_path / "outputs.txt"
    damaged = [[word for n, word in enumerate(line.split()) if n % 3] for line in lines_of(found["target"])]
    found["outputs"].write_text("".join(" ".join(words) + "\n" for words in damaged), encoding="utf-8")
    return found


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture
def l0drop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command in this process; gives its exit code and its output with line breaks as spaces."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["l0drop", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((captured.out + captured.err).split())

    return run


Command = Callable[..., tuple[int, str]]


def test_a_model_against_its_baseline(
    sparse: Path, baseline: Path, text: dict[str, Path], tmp_path: Path, l0drop: Command
) -> None:
    out = tmp_path / "out"
    code, said = l0drop(
        "evaluate", sparse, "--source", text["source"], "--reference", text["target"], "--baseline", baseline,
        "--documents", "--controls", "--languages", "en-de", "--margin", 40, "--output", out,
    )  # fmt: skip
    assert code == 0, said
    assert "at 40 BLEU, for this pair of models only" in said
    found = json.loads((out / "metrics.json").read_text())
    run = found["runs"][0]
    hyps, refs = lines_of(out / "hypotheses.txt"), lines_of(text["target"])
    assert len(hyps) == len(refs)
    assert [not hyp for hyp in hyps] == [not ref for ref in refs]
    assert run["system"]["scores"]["bleu"] == as_json(metrics.bleu(hyps, refs)), "sacreBLEU on the file"
    assert run["differences"]["bleu"]["baseline"] == metrics.bleu(lines_of(out / "baseline.txt"), refs).value
    assert (run["differences"]["bleu"]["units"], run["differences"]["bleu"]["unit"]) == (6, "document")
    assert 0.1 < run["system"]["sparsity"] < 0.9
    assert "sparsity" not in run["baseline"]
    assert set(run["system"]["controls"]) == {"shuffled_source", "no_source"}
    assert run["system"]["decoding"]["num_beams"] == 2, "as the recipe says"
    examples = json.loads((out / "examples.json").read_text())
    states = {state for example in examples for _, state in example["source"]}
    assert {"kept", "dropped"} <= states
    dropped = sum(len(t) for e in examples for t, state in e["source"] if state == "dropped")
    assert dropped > 0
    sources = lines_of(text["source"])
    for example in examples:
        shown = "".join(segment for segment, _ in example["source"])
        assert shown.removesuffix(" </s>") == sources[example["line"] - 1]


def test_the_recipes_test_text_gives_the_score_of_training(sparse: Path, l0drop: Command) -> None:
    code, said = l0drop("evaluate", sparse, "--beams", 2)
    assert code == 0, said
    trained = json.loads((sparse / "metrics.json").read_text())["test"]
    found = json.loads((sparse / "evaluation" / "metrics.json").read_text())["runs"][0]["system"]
    assert found["scores"]["bleu"] == trained["score"]
    assert found["sparsity"] == pytest.approx(trained["sparsity"])


@pytest.mark.skipif(not int8_engines(), reason="this torch has no int8")
def test_int8_against_the_same_model(sparse: Path, text: dict[str, Path], tmp_path: Path, l0drop: Command) -> None:
    out = tmp_path / "out"
    both = ["--source", text["source"], "--reference", text["target"], "--output", out]
    code, said = l0drop("evaluate", sparse, "--dtype", "int8", "--baseline", sparse, *both)
    assert code == 0, said
    run = json.loads((out / "metrics.json").read_text())["runs"][0]
    assert (run["system"]["decoding"]["dtype"], run["baseline"]["decoding"]["dtype"]) == ("int8", "float32")
    pairs = zip(lines_of(out / "hypotheses.txt"), lines_of(out / "baseline.txt"), strict=True)
    same = sum(ours == theirs for ours, theirs in pairs if ours or theirs)
    assert run["same_outputs"] == same
    assert f"{same} of 24 outputs are identical to the baseline model's" in said


def test_documents_are_resampled_if_the_text_has_them(text: dict[str, Path], tmp_path: Path, l0drop: Command) -> None:
    for name in ("source", "target", "outputs"):
        text[name].write_text(text[name].read_text() * 2)  # twelve documents
    common = ["--source", text["source"], "--reference", text["target"], "--baseline", text["target"]]
    for option, unit in (([], "document"), (["--sentences"], "sentence")):
        code, said = l0drop("evaluate", text["outputs"], *common, "--output", tmp_path / "out", *option)
        assert code == 0, said
        found = json.loads((tmp_path / "out" / "metrics.json").read_text())["runs"][0]["differences"]["bleu"]
        assert (found["unit"], found["units"]) == (unit, 12 if unit == "document" else 48)
        assert f"bounds over {found['units']} {unit}s, for this pair of models only" in said


def test_files_of_several_runs(text: dict[str, Path], tmp_path: Path, l0drop: Command) -> None:
    arguments = ["--source", text["source"], "--reference", text["target"], "--output", tmp_path / "out"]
    baselines = ["--baseline", text["target"], "--baseline", text["outputs"]]
    code, said = l0drop("evaluate", text["outputs"], text["outputs"], *arguments, *baselines)
    assert code == 0, said
    assert "no verdict: 2 independent baselines; three are needed" in said
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    score = metrics.bleu(lines_of(text["outputs"]), lines_of(text["target"])).value
    assert found["over_seeds"]["bleu"]["differences"] == pytest.approx([score - 100, 0])
    assert (tmp_path / "out" / "hypotheses-2.txt").exists()


def test_every_point_of_a_sweep_is_compared_with_its_continued_baseline(
    sparse: Path, baseline: Path, tmp_path: Path, l0drop: Command
) -> None:
    for name, run in {"continued": baseline, "target-0.4": sparse, "target-0.5": sparse}.items():
        shutil.copytree(run, tmp_path / name)
    points = [{"run": f"target-{value}", "kind": "target", "value": value} for value in (0.4, 0.5)]
    (tmp_path / "sweep.json").write_text(json.dumps(completed(Sweep, {"points": points})))
    code, said = l0drop("evaluate", tmp_path, "--resamples", 200)
    assert code == 0, said
    for point in points:
        found = json.loads((tmp_path / point["run"] / "evaluation" / "metrics.json").read_text())
        assert found["runs"][0]["baseline"]["name"] == str(tmp_path / "continued")
        assert found["runs"][0]["system"]["name"] == str(tmp_path / point["run"])
        assert found["runs"][0]["tail"]["chrf"].keys() >= {"losing", "gaining"}
        assert f"│ {point['run']} │" in said
    assert "│ dense, continued │" in said
    assert "speak for these models only" in said
    assert "Non-inferior: the lower bound is above -0.5 (--margin)." in said
    code, said = l0drop("evaluate", tmp_path, "--baseline", baseline)
    assert code == 2
    assert "is a sweep" in said


def test_wrong_input_is_named_with_exit_code_2(
    baseline: Path, text: dict[str, Path], tmp_path: Path, l0drop: Command
) -> None:
    empty, short, broken = tmp_path / "empty.txt", tmp_path / "short.txt", tmp_path / "broken.txt"
    empty.write_text("")
    short.write_text("der Hund .\n" * 7)
    broken.write_bytes(b"der Hund .\n\xff\n" + b"x\n" * 28)
    source, target, outputs = text["source"], text["target"], text["outputs"]
    out = ["--output", tmp_path / "out"]
    both = ["--source", source, "--reference", target]
    cases: dict[str, tuple[list[object], list[str]]] = {
        "short outputs": ([short, *both, *out], ["short.txt has 7 lines", "the source has 30"]),
        "short reference": ([outputs, "--source", source, "--reference", short, *out], ["has 30 lines", "has 7"]),
        "short baseline": ([outputs, *both, "--baseline", short, *out], ["short.txt has 7 lines"]),
        "empty outputs": ([empty, *both, *out], ["empty.txt", "empty"]),
        "empty source": ([outputs, "--source", empty, "--reference", target, *out], ["empty.txt", "empty"]),
        "bad UTF-8": ([broken, *both, *out], ["broken.txt, line 2", "UTF-8"]),
        "bad reference": ([outputs, "--source", source, "--reference", broken, *out], ["broken.txt, line 2"]),
        "no model": ([tmp_path / "absent", *both, *out], ["absent", "no model folder"]),
        "no model in a folder": ([tmp_path, *both, *out], ["no model here"]),
        "absent source": ([outputs, "--source", tmp_path / "no", "--reference", target, *out], ["no", "No such file"]),
        "no reference": ([outputs, "--source", source, *out], ["--reference is missing", "or --dense to compare"]),
        "no source": ([outputs, "--reference", target, *out], ["--reference: needs --source"]),
        "no text": ([outputs, *out], ["--source is needed"]),
        "dense and references": ([outputs, *both, "--dense", outputs, *out], ["--dense: is for text without"]),
        "dense alone": ([outputs, "--source", source, "--dense", outputs, *out], ["is the dense model itself"]),
        "starts": ([outputs, *both, "--start", "a", "--start", "b", *out], ["1 systems but 2 starts"]),
        "nowhere to write": ([outputs, *both], ["--output is needed"]),
        "into a run": ([baseline, *both, "--output", baseline], ["is a run"]),
        "no margin": ([outputs, *both, "--baseline", outputs, "--margin", 0, *out], ["margin=0"]),
        "dtype of a file": ([outputs, *both, "--dtype", "int8", *out], ["dtype", "outputs.txt is a file of outputs"]),
        "bad languages": ([outputs, *both, "--languages", "de", *out], ["--languages de", "en-de"]),
        "baselines": ([outputs, outputs, *both, "--baseline", outputs, *out], ["2 systems but 1 baselines"]),
    }  # fmt: skip
    for name, (arguments, expected) in cases.items():
        code, said = l0drop("evaluate", *arguments)
        assert code == 2, f"{name}: {said}"
        for part in expected:
            assert part in said, f"{name}: {said}"
        assert not (tmp_path / "out" / "metrics.json").exists(), name


def test_other_content_is_not_overwritten(
    text: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="there is no such folder; for a model on the hub, `output` is needed"):
        output_folder(System(Path("acme/tiny")), None)
    assert not (tmp_path / "acme").exists(), "a folder of that name would hide the model on the hub"
    outputs = System(text["outputs"])
    with pytest.raises(ValueError, match="is a file; name a folder"):
        output_folder(outputs, text["source"])
    for content in ('{"what": "demo"}', "[]", "no JSON"):
        (tmp_path / "metrics.json").write_text(content)
        with pytest.raises(ValueError, match=r"its metrics\.json is not from an evaluation"):
            output_folder(outputs, tmp_path)
        assert (tmp_path / "metrics.json").read_text() == content


def test_an_evaluation_replaces_an_earlier_one(tmp_path: Path) -> None:
    def write(folder: Path, **texts: list[str]) -> None:
        named = {f"{name.replace('_', '-')}.txt": lines for name, lines in texts.items()}
        Evaluated(filled(Evaluation, {}), named, [], SentenceStatistics({}, {}, [], [])).write(folder)

    write(tmp_path, hypotheses_1=["a"], hypotheses_2=["b"], baseline_1=["c"], baseline_2=["d"])
    write(tmp_path, hypotheses=["e"])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "examples.json", "hypotheses.txt", "metrics.json", "statistics.json.gz",
    ]  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "baseline.txt").write_text("of mine\n")
    write(tmp_path / "mine", hypotheses=["e"])
    assert (tmp_path / "mine" / "baseline.txt").read_text() == "of mine\n"


def test_a_damaged_sweep_is_named(tmp_path: Path, l0drop: Command) -> None:
    for content, message in (
        ("{", "not JSON"),
        ("{}", "name: missing"),
        (json.dumps(completed(Sweep, {})), "no point of this sweep"),
    ):
        (tmp_path / "sweep.json").write_text(content)
        code, said = l0drop("evaluate", tmp_path)
        assert code == 2
        assert message in said
        assert "sweep.json" in said.replace("\n", "")


def test_joined_lines_with_a_prefix_are_the_examples_of_training(tmp_path: Path, l0drop: Command) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 10, "save_every": 10, "eval_every": 10})
    values["data"] |= {"documents": True, "source_prefix": "the : "}
    trained = train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    run = tmp_path / "runs" / "tiny"
    assert trained["test"]["sentences"] < 24
    code, said = l0drop("evaluate", run)
    assert code == 0, said
    assert f"{trained['test']['sentences']} of {trained['test']['sentences']} lines scored" in said
    judged = json.loads((run / "evaluation" / "metrics.json").read_text(encoding="utf-8"))["runs"][0]["system"]
    assert judged["sources_cut"] == trained["corpora"]["test"]["truncated_source"]
    outputs = (run / "outputs" / "test.txt").read_text(encoding="utf-8")
    assert lines_of(run / "evaluation" / "hypotheses.txt") == [" ".join(o.split()) for o in outputs.splitlines()]
    code, said = l0drop("evaluate", run, "--documents")
    assert code != 0
    assert "--documents: the examples of this run are joined lines" in said


def test_multilingual_models_need_their_languages(text: dict[str, Path], tmp_path: Path, l0drop: Command) -> None:
    letters = {c: i for i, c in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"▁abcdefghijklmnopqrstuvwxyz."])}
    tokenizer = NllbTokenizer(vocab=letters, merges=[])
    nllb = folders.saved(folders.resized("m2m100", tokenizer), tokenizer, tmp_path / "nllb")
    command = ("evaluate", nllb, "--source", text["source"], "--reference", text["target"], "--max-new-tokens", 4)
    code, said = l0drop(*command)
    assert code != 0
    assert "--target-lang" in said
    code, said = l0drop(*command, "--source-lang", "deu_Latn", "--target-lang", "fra_Latn")
    assert code == 0, said
    decoding = json.loads((nllb / "evaluation" / "metrics.json").read_text())["runs"][0]["system"]["decoding"]
    assert decoding["forced_bos_token_id"] == tokenizer.convert_tokens_to_ids("fra_Latn")
    assert (decoding["source_lang"], decoding["target_lang"]) == ("deu_Latn", "fra_Latn")


def test_a_run_of_source_text_alone_is_compared_with_its_dense_model(
    baseline: Path, tmp_path: Path, l0drop: Command
) -> None:
    train_section = {"steps": 20, "save_every": 20, "eval_every": 20, "targets": "teacher", "teacher": {"weight": 0.0}}
    values = tiny.sparse(tmp_path, str(baseline), train=train_section)
    for split in ("train", "valid", "test"):
        del values["data"][split]["target"]
    trained = train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    run = tmp_path / "runs" / "sparse"
    code, said = l0drop("evaluate", run, "--baseline", baseline, "--beams", 2)
    assert code == 0, said
    agreement = "this measures agreement with that model, not quality"
    assert f"scored against outputs of {baseline} (beams: 2): {agreement}" in said
    assert "replaces" not in said
    code, said = l0drop("evaluate", run, "--baseline", baseline, "--beams", 1)
    assert code == 0, said
    assert f"scored against outputs of {baseline} (beams: 1): {agreement}" in said
    assert f"replaces the evaluation in {run / 'evaluation'}" in said
    assert "no verdict: agreement with the dense model is not quality" in said
    assert "Lost: in the dense output, but not in the system output. Names:" in " ".join(said.split())
    assert "100.00" not in said, "the dense model agrees with itself, which says nothing"
    found = json.loads((run / "evaluation" / "metrics.json").read_text())
    assert found["references"] == trained["test"]["references"] == f"outputs of {baseline}"
    assert "baseline" not in found["runs"][0]
    hypotheses, dense = (lines_of(run / "evaluation" / name) for name in ("hypotheses.txt", "dense.txt"))
    assert found["runs"][0]["system"]["scores"]["bleu"] == as_json(metrics.bleu(hypotheses, dense))
    same = sum(ours == theirs for ours, theirs in zip(hypotheses, dense, strict=True))
    assert found["runs"][0]["agreement"]["same_outputs"] == same
    code, said = l0drop("evaluate", baseline, "--source", values["data"]["test"]["source"], "--output", tmp_path / "x")
    assert code == 2
    assert "--reference is missing" in said


@pytest.mark.parametrize("command", ["evaluate", "analyze"])
def test_ctrl_c_is_one_line(
    command: str, sparse: Path, tmp_path: Path, l0drop: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("l0drop.study.evaluate.outputs_of", interrupted)
    monkeypatch.setattr("l0drop.study.analysis.parts.one_pass", interrupted)
    code, said = l0drop(command, sparse, "--output", tmp_path / "out")
    assert code == 130
    assert said.endswith("have been written")
    assert "stopped; " in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
