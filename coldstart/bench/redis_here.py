"""A Redis of a bench's own: the redis-server of this machine on a free port, for as long as this process lives.

    python -m coldstart.bench.redis_here --folder DIR

Nothing of it is kept on disk. DIR/port holds its port, once it answers.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PROGRAM = "redis-server"
START_SECONDS = 20.0
TRIES = 3  # somebody else may take the port first


def missing() -> str:
    """Why there can't be one here; "": there can."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed; for instance: apt-get install {PROGRAM}"
    if importlib.util.find_spec("redis") is None:
        return "the Python package redis is missing; pip install 'coldstart[redis]'"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="coldstart.bench.redis_here")
    parser.add_argument("--folder", type=Path, required=True)
    folder: Path = parser.parse_args().folder
    for _ in range(TRIES):
        port = _free_port()
        server = _start(folder, port)
        if _answers(server, port):
            break
    else:
        sys.exit(f"{PROGRAM} does not start: {_last_line(folder)}")

    def end(number: int, frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    part = folder / "port.part"
    part.write_text(str(port))
    part.rename(folder / "port")
    server.wait()


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    settings = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    with (folder / "redis.log").open("ab") as log:
        return subprocess.Popen([PROGRAM, *options], stdin=subprocess.DEVNULL, stdout=log)


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as one:
                one.sendall(b"PING\r\n")
                if one.recv(1) == b"+" and server.poll() is None:
                    return True
        except OSError:
            time.sleep(0.02)  # it tells nobody when it is ready
    server.kill()
    server.wait()
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_line(folder: Path) -> str:
    lines = (folder / "redis.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    main()
