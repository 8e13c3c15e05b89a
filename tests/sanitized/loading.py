"""Makes windrow load the sanitized libraries. Import it before windrow, or use it as a pytest plugin."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from tests.sanitized.building import FOLDER_VARIABLE, SOURCES

__all__: list[str] = []

_find = importlib.util.find_spec
_folder = Path(os.environ[FOLDER_VARIABLE])


def _find_sanitized(name: str, package: str | None = None) -> ModuleSpec | None:
    path = _folder / f"{name}.so"
    if name in SOURCES and path.exists():
        return ModuleSpec(name, None, origin=str(path))
    return _find(name, package)


assert "windrow" not in sys.modules, "windrow has loaded its libraries already"
importlib.util.find_spec = _find_sanitized

from windrow.io.parquet import decoder_library  # noqa: E402 - after the patch, on purpose
from windrow.shuffle.kernels import native  # noqa: E402

for _library in (decoder_library.LIBRARY, native.LIBRARY):
    assert _library is not None, "a sanitized library cannot be loaded"
assert str(_folder) in decoder_library.LIBRARY._name + native.LIBRARY._name
