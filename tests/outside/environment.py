"""Environments of outside programs: `.outside/NAME`, made by package names and versions, kept until these change."""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(name: str, version: str, *wanted: str) -> Path:
    """The interpreter of `.outside/name`, holding `wanted` and this checkout, within constraints-name.txt."""
    folder = ROOT / ".outside" / name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    constraints = Path(__file__).with_name(f"constraints-{name}.txt")
    inputs = (
        constraints.read_bytes(),
        (ROOT / "pyproject.toml").read_bytes(),
        repr((ROOT, wanted)).encode(),
    )
    digest = hashlib.sha256(b"\0".join(inputs)).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    found = subprocess.run(
        [sys.executable, ROOT / ".ci" / "environment.py", "find", version],
        stdout=subprocess.PIPE,
        text=True,
    )
    if found.returncode:
        raise SystemExit(f"outside: {name} needs Python {version}: {found.stdout.strip()}")
    print(f"outside: making {folder.relative_to(ROOT)}: about 3 GB, some minutes", file=sys.stderr)
    subprocess.run([found.stdout.strip(), "-m", "venv", "--clear", folder], check=True)
    install = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-qq",
        "-c",
        constraints,
    ]
    subprocess.run(
        [*install, *wanted, "-e", f"{ROOT}[daemon]"], stdin=subprocess.DEVNULL, check=True
    )
    stamp.write_text(digest)
    return python
