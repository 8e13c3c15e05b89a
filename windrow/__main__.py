"""``python -m windrow``: the command ``windrow``."""

from __future__ import annotations

import sys

from windrow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
