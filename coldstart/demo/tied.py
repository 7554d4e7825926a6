"""A process that ends with the one that started it, however that one ends.

    python -m coldstart.demo.tied MODULE ARGUMENTS...

runs the module as `python -m MODULE ARGUMENTS...` would. Its stdin is the end of a pipe to which nobody writes; the
kernel closes it with the starter, SIGKILL included, and then this process is told to end, and made to a little later.
What the module sees as stdin is empty. Processes that it starts in turn are its own to end.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

END_SECONDS = 10.0  # to end by itself in, as a daemon does that drains


def tie(fd: int) -> None:
    """End this process when the other end of `fd` is closed. Takes `fd` away."""
    kept = os.dup(fd)  # nobody inherits this one
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, fd)
    os.close(empty)
    threading.Thread(target=_watch, args=(kept,), name="coldstart-tied", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    module = sys.argv[1]
    tie(0)
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
