"""What doctests need: a directory of their own, so that examples can write small files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# of extras that not everybody who runs the tests has installed
_OPTIONAL = re.compile(r"\b(?:import|from) (deltalake|fastavro|h5py|lance|pyiceberg|zarr)\b")


@pytest.fixture(autouse=True)
def _doctest_directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)
        for example in request.node.dtest.examples:
            for module in _OPTIONAL.findall(example.source):
                pytest.importorskip(module)
