"""Nonce: a file of a store whose content only who sees the volume can tell. One for each process that opens it."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

from coldstart.store.disk_layout import translated, unlink

NONCE_BYTES = 32


class Nonce:
    """Made when it is first asked for; removed by `forget`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self.made: tuple[str, bytes] | None = None

    def tell(self) -> tuple[str, bytes]:
        """Its path relative to the root, and its content. Raises TierError where it can't be written."""
        if self.made is None:
            content = secrets.token_bytes(NONCE_BYTES)
            path = self._folder / secrets.token_hex(16)
            with translated("writing a nonce", path), ExitStack() as undo:
                undo.callback(unlink, path)  # a file without its bytes is of use to nobody
                path.write_bytes(content)
                undo.pop_all()
            self.made = (str(path.relative_to(self._root)), content)
        return self.made

    def forget(self) -> None:
        """The next one is another."""
        if self.made is not None:
            unlink(self._root / self.made[0])
            self.made = None
