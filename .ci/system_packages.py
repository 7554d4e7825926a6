"""Installs system packages that a door of the Makefile needs, where they are missing and the user is root.

    python3 .ci/system_packages.py redis-server

Silent when everything is there. Where it can't install, it says which and goes on: the tests that need one then fail
and the summary of tests/conftest.py names it; they are never skipped.
"""

import os
import shutil
import subprocess
import sys
import time

# program -> Debian's package
PACKAGES = {
    "redis-server": "redis-server",
    "strace": "strace",
    "chromium": "chromium",
    "promtool": "prometheus",
}
# Services must not start by themselves: tests start their own processes.
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def say(text):
    print("system packages: " + text, file=sys.stderr, flush=True)


def run(*command):
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **QUIET},
    )
    if done.returncode != 0:
        say(
            "{} failed:\n{}".format(" ".join(command), done.stdout.decode(errors="replace")[-2000:])
        )
    return done.returncode == 0


def main(programs):
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return 0
    packages = sorted({PACKAGES[program] for program in missing})
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say("missing: {0}; as root: apt-get install {0}".format(" ".join(packages)))
        return 0
    say("installing {}".format(" ".join(packages)))
    started = time.monotonic()
    install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    # A clean machine has no lists; one that has may have old ones.
    if run("apt-get", "update", "-qq") and run(*install):
        say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
