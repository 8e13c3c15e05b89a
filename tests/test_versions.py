"""The tables of versions, the ranges in pyproject.toml, and the two files of constraints agree."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPOSITORY

# extras for work on windrow itself
DEVELOPMENT = {"all", "bench", "dev", "docs", "nightly"}
# tested with builds of another name, or in an environment of its own
PINNED_AS = {"tensorflow": "tensorflow", "xgboost": "xgboost-cpu"}
UNPINNED = {"raydp"}

_RANGE = re.compile(r"^\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", re.MULTILINE)
_SINGLE = re.compile(r"^\| `([\w-]+)` \| ([\d.]+) \| ([^|]+) \|$", re.MULTILINE)
_PIN = re.compile(r"^([\w-]+)==([\w.]+)( ; .*)?$", re.MULTILINE)
_EXTRA = re.compile(r"^(\w+) = \[(.+)\]$", re.MULTILINE)
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
    return found


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
    assert _pins("constraints-oldest.txt")[library] == oldest
    assert _pins("constraints.txt")[library] == newest


@pytest.mark.parametrize("library", SINGLES)
def test_other_libraries_are_tested_with_their_pin(library: str) -> None:
    tested, extras = SINGLES[library]
    assert REQUIRED[library][1] == set(re.findall(r"\w+", extras))
    assert _pins("constraints.txt")[PINNED_AS.get(library, library)] == tested
    assert library not in _pins("constraints-oldest.txt")
