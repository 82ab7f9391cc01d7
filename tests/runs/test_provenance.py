"""What stands beside every number."""

import subprocess
import sys
from importlib.metadata import version

import l0drop
from tests.snippets import ROOT


def test_the_version_that_is_installed_is_that_of_the_source() -> None:
    assert version("l0drop") == l0drop.__version__


def test_a_source_tree_that_is_not_installed_knows_what_it_is() -> None:
    """With the site of this environment, but without what tells that l0drop is installed in it."""
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
print(provenance()["l0drop"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == l0drop.__version__
