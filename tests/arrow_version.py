"""The version of pyarrow, for tests of what its older versions cannot do."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["ARROW"]

ARROW = int(pa.__version__.partition(".")[0])
