"""The wheel: its files and metadata, and what it can do where no optional package is installed."""

import email.message
import email.policy
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import l0drop
from l0drop.extras import EXTRAS, MissingPackageError, needed_for
from tests.snippets import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = {"numpy", "rich", "safetensors", "sentencepiece", "tokenizers", "torch", "transformers", "typer"}
TAGGER = ROOT / "packages" / "l0drop-tagger"


def build(source: Path, folder: Path) -> Path:
    """The wheel of a source tree, built offline with the installed build backend."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def metadata_of(wheel: Path) -> email.message.EmailMessage:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        message = email.message_from_bytes(files.read(name), policy=email.policy.default)
        assert isinstance(message, email.message.EmailMessage)
        return message


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def distributions_of(requirements: list[str]) -> set[str]:
    return {str(canonicalize_name(Requirement(line).name)) for line in requirements}


def required_by(names: set[str]) -> set[str]:
    """Distributions, and all that they require without extras, as installed here."""
    found, queue = set(names), list(names)
    while queue:
        for line in requires(queue.pop()) or []:
            requirement = Requirement(line)
            name = str(canonicalize_name(requirement.name))
            if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                found.add(name)
                queue.append(name)
    return found


def optional_modules() -> set[str]:
    """Modules of optional packages that no required package brings along."""
    required = required_by(BASE)
    distributions = {name: {str(canonicalize_name(d)) for d in ds} for name, ds in packages_distributions().items()}
    return {module for module in [*EXTRAS, "l0drop_tagger"] if not distributions.get(module, set()) & required}


# --- files and metadata ----------------------------------------------------------------------------------------------


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "l0drop"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert names == {name for name in tracked if (ROOT / name).is_file()}
    assert {"l0drop/__init__.py", "l0drop/py.typed", "l0drop/report/page.html"} <= names
    assert not [name for name in names if name.endswith((".gz", ".pyc"))]


def test_the_metadata_of_the_wheel(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Name"] == "l0drop"
    assert metadata["Version"] == l0drop.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert distributions_of(base) == BASE
    for python in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {python}" in metadata.get_all("Classifier", [])
    for field in ("Author", "Author-email", "Maintainer", "Home-page", "Project-URL", "Download-URL"):
        assert metadata[field] is None, f"{field} would be invented"


def test_the_tagger_is_a_wheel_with_another_licence(tmp_path: Path) -> None:
    wheel = build(TAGGER, tmp_path)
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
        weights = files.read("l0drop_tagger/ewt.json.gz")
    assert names == {"l0drop_tagger/__init__.py", "l0drop_tagger/ewt.json.gz"}
    assert weights == (TAGGER / "l0drop_tagger" / "ewt.json.gz").read_bytes()
    assert metadata_of(wheel)["License-Expression"] == "CC-BY-SA-4.0"
    assert metadata_of(wheel)["Name"] == Requirement(*PROJECT["optional-dependencies"]["tagger"]).name


def test_every_optional_package_names_its_extra() -> None:
    declared = {
        distribution: extra
        for extra in ("audio", "serve", "train", "study", "bench", "entmax", "hub", "logging")
        for distribution in distributions_of(PROJECT["optional-dependencies"][extra]) - {"l0drop"}
    }
    modules = {
        "prometheus-client": "prometheus_client",
        "python-multipart": "python_multipart",
        "pyyaml": "yaml",
        "rouge-score": "rouge_score",
    }
    assert {modules.get(name, name): extra for name, extra in declared.items()} == EXTRAS


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = distributions_of([line for line in lines if "==" in line])
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    assert distributions_of([*PROJECT["dependencies"], *extras]) - {"l0drop", "l0drop-tagger"} <= pinned


def test_the_workflow_runs_the_checks_and_the_ends_of_our_ranges() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert {"run": ".ci/run"} in workflow["jobs"]["checks"]["steps"]
    matrix = workflow["jobs"]["versions"]["strategy"]["matrix"]
    classifiers = " ".join(PROJECT["classifiers"])
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", classifiers)
    oldest = {line for line in PROJECT["dependencies"] if line.startswith(("torch", "transformers"))}
    for job in matrix["include"]:
        assert {line.replace("==", ">=").removesuffix(".*") for line in job["packages"].split()} == oldest


# --- installed without extras ----------------------------------------------------------------------------------------

WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""

PROGRAM = """
import sys
import torch
from transformers import MarianConfig, MarianMTModel

import l0drop
from l0drop.data.tokenizer import train_tokenizer

text = ["the dog sees a cat .", "a river knows the stone ."]
tokenizer = train_tokenizer(text * 20, None, vocab_size=60).source
torch.manual_seed(0)
size = len(tokenizer)
model = MarianMTModel(MarianConfig(
    vocab_size=size, decoder_vocab_size=size, d_model=16, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=0,
    forced_eos_token_id=None, max_position_embeddings=64,
))
sparse = l0drop.sparsify(model, l0drop.L0DropConfig(lambda_=0.1)).eval()
batch = tokenizer(text, return_tensors="pt", padding=True)
settings = {"num_beams": 1, "max_new_tokens": 5, "do_sample": False}
ours = l0drop.Engine(sparse).generate(batch["input_ids"], batch["attention_mask"], **settings).sequences
theirs = sparse.generate(**batch, **settings)
assert ours.tolist() == theirs[:, : ours.shape[1]].tolist(), (ours, theirs)
sparse.save_pretrained("model")
tokenizer.save_pretrained("model")
assert [result.text for result in l0drop.load("model").generate(text, **settings)]
print(l0drop.__file__)
"""


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's package in `site`, and a `sitecustomize` that hides optional packages from Python."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(folder / "site"), str(wheel)], check=True)
    (folder / "sitecustomize.py").write_text(WITHOUT.format(blocked=optional_modules()))
    return folder


def python(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where only the wheel and the required packages can be imported."""
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(installed / "site")]), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "COLUMNS": "200",
    }  # fmt: skip
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)


def test_gating_and_decoding_need_no_extra(installed: Path) -> None:
    (installed / "program.py").write_text(PROGRAM)
    done = python(installed, "program.py")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed / "site")
    (installed / "in.txt").write_text("the dog sees a cat .\n\na river knows the stone .\n")
    done = python(installed, "-m", "l0drop", "translate", "model", "-i", "in.txt", "-o", "out.txt", "--beams", "1")
    assert done.returncode == 0, done.stderr
    assert (installed / "out.txt").read_text().count("\n") == 3
    done = python(installed, "-m", "l0drop", "explain", "model", "the dog sees a cat .")
    assert done.returncode == 0, done.stderr
    assert "dog" in done.stdout


def test_version_and_help_need_no_extra(installed: Path) -> None:
    assert python(installed, "-m", "l0drop", "--version").stdout == f"l0drop {l0drop.__version__}\n"
    for command in ([], ["translate"], ["explain"], ["train"]):
        done = python(installed, "-m", "l0drop", *command, "--help")
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout


def test_commands_say_which_extra_they_lack(installed: Path) -> None:
    recipe = str(ROOT / "recipes" / "toy-translation-base.yaml")
    for arguments, extra in ((["train", recipe], "train"), (["report", "."], "study")):
        done = python(installed, "-m", "l0drop", *arguments)
        assert done.returncode == 2
        assert re.fullmatch(
            rf"error: l0drop {arguments[0]} needs packages that are not installed "
            rf"\(\w+\): pip install 'l0drop\[{extra}\]'\n",
            done.stderr,
        )


@pytest.mark.parametrize(
    ("module", "study", "extra"),
    [("accelerate.utils", False, "train"), ("yaml", True, "study"), ("entmax", True, "entmax")],
)
def test_a_failed_import_of_an_optional_package_names_its_extra(module: str, study: bool, extra: str) -> None:
    package = module.partition(".")[0]
    expected = f"x needs packages that are not installed ({package}): pip install 'l0drop[{extra}]'"
    with pytest.raises(MissingPackageError, match=re.escape(expected)), needed_for("x", study=study):
        raise ModuleNotFoundError(name=module)


def test_other_failed_imports_stay_as_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="ours"), needed_for("x"):
        raise ModuleNotFoundError("ours", name="l0drop.nothing")
