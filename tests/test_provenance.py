"""What stands beside every number."""

from importlib.metadata import PackageNotFoundError, version

from l0drop import provenance


def test_a_source_tree_that_is_not_installed_knows_its_version(monkeypatch):
    installed = version("l0drop")

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(provenance, "version", missing)
    assert provenance.own_version() == installed
