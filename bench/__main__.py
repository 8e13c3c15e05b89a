"""``python -m bench``."""

from __future__ import annotations

import signal
import sys

from bench.cli import main

if __name__ == "__main__":
    # Ending the benchmark also ends the systems that it runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
