"""``python -m bench``."""

from __future__ import annotations

import signal
import sys

from bench.cli import main

if __name__ == "__main__":
    # terminate like Ctrl-C, so that the child processes are terminated too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
