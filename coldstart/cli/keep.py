"""The folder of `--keep`, made before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import click


def made(folder: Path) -> Path:
    """`folder`, resolved, with its parents. Raises click.UsageError where it can't be made or written into."""
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise click.UsageError(f"--keep {folder}: can't be made: {exc.strerror}") from exc
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(f"--keep {folder}: can't be written into; name another folder")
    return folder
