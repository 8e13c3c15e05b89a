"""The tables of versions, the ranges in pyproject.toml, and the two files of constraints agree."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPOSITORY
from tests.test_wheel import PYTHONS

# extras for work on windrow itself
DEVELOPMENT = {"all", "bench", "dev", "docs", "nightly"}
# tested with builds of another name, or in an environment of its own
PINNED_AS = {"tensorflow": "tensorflow", "xgboost": "xgboost-cpu"}
UNPINNED = {"raydp"}
# the oldest ones need an older huggingface-hub than hf:// paths do
OLDER_APART = {"tokenizers", "transformers"}
# their oldest versions were tested by hand: `make oldest` does not install what they need
OLDEST_BY_HAND = {"adlfs", "gcsfs"}
# no extra installs them
INSTALLED_BESIDE = {"accelerate", "pytorch-lightning", "torchdata"}

_RANGE = re.compile(r"^\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", re.MULTILINE)
_SINGLE = re.compile(r"^\| `([\w-]+)` \| ([\d.]+) \| ([^|]+) \|$", re.MULTILINE)
_PIN = re.compile(r"^([\w-]+)==([\w.]+)( ; .*)?$", re.MULTILINE)
_EXTRA = re.compile(r"^(\w+) = \[(.+)\]$", re.MULTILINE)
_CLASSIFIER = re.compile(r'"Programming Language :: Python :: (3\.\d+)"')
_PYTHON = re.compile(r"^\| (3\.\d+)\.\d+ \| \d{4}-\d\d-\d\d \|", re.MULTILINE)
_REQUIREMENT = re.compile(r'"([\w-]+)(?:\[[^\]]*\])?>=([\d.]+)"')


def _read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def _pins(name: str) -> dict[str, str]:
    """The pins for the Python that CI has; older ones have pins of their own in constraints.txt."""
    found = _PIN.findall(_read(name))
    return {library: version for library, version, marker in found if "<" not in marker}


def _required() -> dict[str, tuple[str, set[str]]]:
    """By library, its oldest version and the extras that install it; none for one that is always installed."""
    project = _read("pyproject.toml").partition("[project]")[2].partition("[tool.setuptools]")[0]
    always = project.partition("dependencies = [")[2].partition("]")[0]
    lists = {"none": always}
    lists |= {extra: listed for extra, listed in _EXTRA.findall(project) if extra not in DEVELOPMENT}
    found: dict[str, tuple[str, set[str]]] = {}
    for extra, listed in lists.items():
        for library, oldest in _REQUIREMENT.findall(listed):
            assert found.setdefault(library, (oldest, set()))[0] == oldest, f"{library} has two ranges"
            found[library][1].add(extra)
    for library, oldest in _development().items():
        if library in INSTALLED_BESIDE:
            found[library] = (oldest, set())
    return found


def _development() -> dict[str, str]:
    """The oldest versions that the environment for work on windrow allows."""
    return dict(_REQUIREMENT.findall(_read("pyproject.toml").partition("\ndev = [")[2].partition("\n]")[0]))


REQUIRED = _required()
PAGE = _read("docs/reference/versions.md")
RANGES = {library: rest for library, *rest in _RANGE.findall(PAGE)}
SINGLES = {library: rest for library, *rest in _SINGLE.findall(PAGE)}


def test_every_library_is_in_one_table() -> None:
    assert not RANGES.keys() & SINGLES.keys()
    assert RANGES.keys() | SINGLES.keys() == REQUIRED.keys() - UNPINNED


@pytest.mark.parametrize("library", RANGES)
def test_ranges_begin_and_end_at_tested_versions(library: str) -> None:
    oldest, newest, extras = RANGES[library]
    assert REQUIRED[library] == (oldest, set(re.findall(r"\w+", extras)))
    older = _pins("constraints-oldest-transformers.txt") if library in OLDER_APART else {}
    if library not in OLDEST_BY_HAND:
        assert (_pins("constraints-oldest.txt") | older)[PINNED_AS.get(library, library)] == oldest
    assert _pins("constraints.txt")[PINNED_AS.get(library, library)] == newest


@pytest.mark.parametrize("library", SINGLES)
def test_other_libraries_are_tested_with_their_pin(library: str) -> None:
    tested, extras = SINGLES[library]
    assert REQUIRED[library][1] == set(re.findall(r"\w+", extras))
    assert _pins("constraints.txt")[PINNED_AS.get(library, library)] == tested
    assert library not in _pins("constraints-oldest.txt")


@pytest.mark.parametrize("library", sorted(_development().keys() & REQUIRED.keys()))
def test_the_environment_for_development_allows_the_oldest(library: str) -> None:
    assert _development()[library] == REQUIRED[library][0]


def test_classifiers_and_table_name_the_pythons_that_the_wheel_is_used_with() -> None:
    project = _read("pyproject.toml")
    assert [f"python{version}" for version in _CLASSIFIER.findall(project)] == list(PYTHONS)
    assert [f"python{version}" for version in _PYTHON.findall(PAGE)] == list(PYTHONS)
