"""Work of finalizers: it runs in another thread, and a program does not end in the middle of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LEAVES = """
import os, threading, time, weakref
from windrow.core.finalizers import in_background

class Loop:
    pass

def close(parent):
    time.sleep(0.5)
    print("closed", threading.current_thread() is not threading.main_thread(), flush=True)

loop = Loop()
weakref.finalize(loop, in_background, lambda: close(os.getpid()))
"""


def run(program: str) -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_a_program_ends_after_what_it_has_left_is_closed() -> None:
    assert run(LEAVES + "del loop") == (0, "closed True\n", "")


def test_what_is_left_at_the_end_is_closed_too() -> None:
    code, out, errors = run(LEAVES)
    assert (code, out.split()[0], errors) == (0, "closed", "")


def test_an_error_in_a_finalizer_does_not_hold_up_the_end() -> None:
    program = "import time\nfrom windrow.core.finalizers import in_background\nin_background(lambda: 1 // 0)"
    code, _, errors = run(program)
    assert code == 0
    assert "ZeroDivisionError" in errors


def test_a_program_ends_after_what_the_call_alone_holds_is_freed() -> None:
    program = """
    import time
    from windrow.core.finalizers import in_background

    class Batches:
        def close(self):
            pass

        def __del__(self):
            time.sleep(0.5)
            print("freed", flush=True)

    in_background(Batches().close)
    """
    assert run(program) == (0, "freed\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_process_does_not_wait_for_the_threads_of_its_parent() -> None:
    program = LEAVES + textwrap.dedent("""
        del loop
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            raise SystemExit
        _, status = os.waitpid(child, 0)
        # the child neither closes nor waits for 20 seconds
        print(status, time.monotonic() - began < 10)
    """)
    code, out, _ = run(program)
    assert (code, sorted(out.splitlines())) == (0, ["0 True", "closed True"])
