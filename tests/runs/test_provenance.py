"""The provenance of numbers."""

import subprocess
import sys
from importlib.metadata import version

import l0drop
from tests.snippets import ROOT


def test_the_installed_version_is_that_of_the_source() -> None:
    assert version("l0drop") == l0drop.__version__


def test_an_uninstalled_source_tree_knows_its_version() -> None:
    """Uses this environment, but hides the metadata of the installed l0drop."""
    code = """
import sys
from importlib import metadata
known = metadata.version
def version(name):
    if name == "l0drop":
        raise metadata.PackageNotFoundError(name)
    return known(name)
metadata.version = version
from l0drop.runs.provenance import provenance
print(provenance().l0drop)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == l0drop.__version__
