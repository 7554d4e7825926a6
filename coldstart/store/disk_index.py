"""DiskIndex: (key, variant) -> object file. Reading, healing, adding and removing entries.

Readers take no lock: an entry is one small file that appears and disappears whole. Writers hold the lock of the
key's shard. An object is always removed after its index entry and added before it, so that an entry without an
object is only what a crash, a stranger or bit rot left, and can be healed by whoever meets it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart.artifact import Header, decode_header, open_file, open_regular
from coldstart.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMismatch,
    ColdstartError,
    InvalidRequest,
)
from coldstart.identity.key import SCHEME, KeyRecord, is_key
from coldstart.store.disk_layout import (
    NO_VARIANT,
    Layout,
    flocked,
    sync_folder,
    unlink,
    write_file,
)
from coldstart.store.disk_tmp import TempFolder
from coldstart.store.pins import Pins

log = logging.getLogger(__name__)

HEAL_SECONDS = 1.0  # for a key's lock, by a reader

_VARIANT = re.compile(rf"{NO_VARIANT}|[0-9a-f]{{16}}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_OBJECT = re.compile(r"([0-9a-f]{64})-[0-9a-f]{16}\.csa", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """One index entry whose object was there, with the right size, a moment ago."""

    header: Header
    object: Path


class Unsound(Exception):
    """An index entry that names no sound object. Never leaves this package."""

    def __init__(self, why: str, object: Path | None = None, *, foreign: bool = False) -> None:
        super().__init__(why)
        self.object = object  # there, but not what the entry says
        self.foreign = foreign  # of another release: no damage


def is_object_name(name: str) -> bool:
    return _OBJECT.fullmatch(name) is not None


class DiskIndex:
    """The index of one store. Blocking; thread-safe."""

    def __init__(self, layout: Layout, temps: TempFolder) -> None:
        self._layout = layout
        self._temps = temps
        self._durable: set[Path] = set()  # shard folders whose names are known to be on the disk

    def entries(self, key: str) -> tuple[list[Entry], list[str]]:
        """The sound entries of `key`, and the names of unsound ones. Raises OSError where it can't know."""
        folder = self._layout.key_folder(key)
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        sound, unsound = [], []
        for name in names:
            if not _VARIANT.fullmatch(name):
                continue  # a stranger's
            try:
                sound.append(self._read(key, name))
            except FileNotFoundError:
                continue  # removed since the listing
            except Unsound:
                unsound.append(name)
        return sound, unsound

    def entry(self, key: str, variant: str) -> Entry | None:
        """The sound entry of one variant."""
        try:
            return self._read(key, variant or NO_VARIANT)
        except (FileNotFoundError, NotADirectoryError, Unsound):
            return None

    def heal(self, key: str, name: str) -> Unsound | None:
        """Take an unsound entry away; what was wrong with it. Best effort: a reader's miss doesn't depend on it."""
        try:
            with flocked(self._layout.lock(key), HEAL_SECONDS):
                return self._drop_unsound(key, name)
        except (OSError, ColdstartError) as exc:
            log.warning("disk: could not heal the index of %s: %s", key, exc)
            return None

    def add(self, header: Header, temp: Path, record: str, undo: ExitStack) -> Unsound | None:
        """Publish the written, synced `temp`; the unsound entry that was in its place. The caller holds the key's lock
        and saw no sound one.

        Each name is durable before the next one appears: object, key record, index entry. `undo` learns what to
        take back if one of the steps fails.
        """
        header_body = header.encode()
        index = self._layout.index(header.key, header.variant)
        found = self._drop_unsound(header.key, index.name)
        if index.exists() and not index.is_file():
            self._layout.displace(index)
        undo.callback(self._tidy, header.key)

        target = self._layout.object(header.digest, header_body)
        self._folder(target.parent)
        if target.is_dir():
            self._layout.displace(target)
        undo.callback(unlink, target)
        os.rename(temp, target)
        sync_folder(target.parent)

        if record:
            self.add_record(header.key, record)

        self._folder(index.parent.parent)
        self._make_folder(index.parent)
        entry = self._temps.new_path()
        undo.callback(unlink, entry)
        write_file(
            entry,
            json.dumps(
                {
                    "digest": header.digest,
                    "header": header_body.decode(),
                    "header_hash": hashlib.sha256(header_body).hexdigest(),
                    **({"signature": header.signature.decode()} if header.signature else {}),
                }
            ).encode(),
        )
        os.link(entry, index)  # fails where one is there: the first wins, whatever flock is worth
        undo.callback(unlink, index)
        sync_folder(index.parent)
        sync_folder(
            index.parent.parent
        )  # eviction removes key folders: this name may be new each time
        unlink(entry)
        return found

    def record(self, key: str) -> KeyRecord | None:
        """A key record, if one is there that can be read."""
        path = self._layout.record(key)
        try:
            with open_regular(path) as file:
                return KeyRecord.from_json(file.read().decode())
        except (FileNotFoundError, NotADirectoryError, ArtifactCorrupt):
            return None
        except (InvalidRequest, UnicodeDecodeError) as exc:
            log.warning("disk: %s is no key record: %s", path, exc)
            if key.startswith(f"{SCHEME}-"):  # else another release may well read it
                with suppress(OSError):
                    unlink(path)
            return None

    def add_record(self, key: str, text: str) -> None:
        """Store a key record unless one is there. The caller holds the key's lock."""
        path = self._layout.record(key)
        if path.is_file():
            return
        self._folder(path.parent)
        if path.is_dir():
            self._layout.displace(path)
        temp = self._temps.new_path()
        try:
            write_file(temp, text.encode())
            os.rename(temp, path)
            sync_folder(path.parent)
        finally:
            unlink(temp)

    def remove(
        self, key: str, entry: Entry, aside: Path | None = None, *, leave_object: bool = False
    ) -> bool:
        """Remove an entry and its object, or move the object `aside`. The caller holds the key's lock.

        `leave_object`: only nobody finds it any more; it is an orphan from then on.
        """
        index = self._layout.index(key, entry.header.variant)
        there = unlink(index)
        if aside is not None:
            with suppress(FileNotFoundError):
                os.rename(entry.object, aside)
        if not leave_object:
            unlink(entry.object)
        self._tidy(key)
        return there

    def remove_object(self, path: Path, pins: Pins) -> str | None:
        """Remove an object by its path alone, with the index entry that names it. Takes the key's lock.

        Returns the key that it was stored under, "" if no reader could reach it, None if it is pinned.
        """
        try:
            header = open_file(path).header
        except FileNotFoundError:
            return ""
        except (
            ArtifactError
        ):  # unreadable: no key to lock; an entry that names it is healed by its reader
            self._drop(path)
            return ""
        if not is_key(header.key):
            unlink(path)
            return ""
        with flocked(self._layout.lock(header.key)), pins.unless_held(header.digest) as free:
            if not free:
                return None
            entry = self.entry(header.key, header.variant)
            if entry is not None and entry.object == path:
                self.remove(header.key, entry)
                return header.key
            unlink(path)  # an orphan: its publisher died between object and index
            return ""

    def remove_orphan(self, path: Path) -> bool:
        """Remove an object that no entry names; True if it was one. Takes the key's lock."""
        try:
            key = open_file(path).header.key
        except (FileNotFoundError, ArtifactError):
            return False  # a torn object has an entry that is healed, or goes when room is needed
        if not is_key(key):
            return False
        with flocked(self._layout.lock(key)):
            sound, _ = self.entries(key)
            return all(entry.object != path for entry in sound) and unlink(path)

    def remove_stray_record(self, key: str) -> bool:
        """Remove a key record whose artifacts are gone. Takes the key's lock."""
        with flocked(self._layout.lock(key)):
            with suppress(OSError):
                os.rmdir(self._layout.key_folder(key))  # an entry was lost out of it
            return not self._layout.key_folder(key).exists() and unlink(self._layout.record(key))

    def _read(self, key: str, name: str) -> Entry:
        """Raises FileNotFoundError: no such entry. Unsound: one that must not be believed."""
        try:
            with open_regular(self._layout.key_folder(key) / name) as file:
                text = file.read()
        except (ArtifactCorrupt, NotADirectoryError):
            raise FileNotFoundError(name) from None  # a stranger's: a folder, a pipe
        try:
            data = json.loads(text)
            body = str(data["header"]).encode()
            if hashlib.sha256(body).hexdigest() != data["header_hash"]:
                raise Unsound("header hash")
            signature = str(data.get("signature", "")).encode()
            header = decode_header(body).signed(signature)
        except (ValueError, TypeError, KeyError, ArtifactError) as exc:
            raise Unsound(str(exc), foreign=isinstance(exc, ArtifactMismatch)) from exc
        if header.key != key or (header.variant or NO_VARIANT) != name:
            raise Unsound("entry of another key or variant")
        if not _DIGEST.fullmatch(header.digest) or data.get("digest") != header.digest:
            raise Unsound("digest")
        path = self._layout.object(header.digest, body)
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise Unsound("object missing") from None
        if not stat.S_ISREG(facts.st_mode):
            raise Unsound("object is no file", path)
        if facts.st_size != 8 + len(body) + 32 + header.payload_bytes:
            raise Unsound("object has another size", path)
        return Entry(header, path)

    def _drop_unsound(self, key: str, name: str) -> Unsound | None:
        try:
            self._read(key, name)
        except FileNotFoundError:
            return None
        except Unsound as unsound:
            log.warning("disk: healed the index of %s (%s)", key, unsound)
            unlink(self._layout.key_folder(key) / name)
            if unsound.object is not None:
                self._drop(unsound.object)
            self._tidy(key)
            return unsound
        return None  # sound again: somebody else was here first

    def _drop(self, path: Path) -> None:
        try:
            unlink(path)
        except IsADirectoryError:
            self._layout.displace(path)

    def _tidy(self, key: str) -> None:
        """Take the key's folder and record away with its last artifact."""
        try:
            os.rmdir(self._layout.key_folder(key))
        except FileNotFoundError:
            pass
        except OSError:
            return  # not empty: another variant, or a stranger's file
        self._drop(self._layout.record(key))

    def _folder(self, folder: Path) -> None:
        """A shard folder that is there and stays there. Shard folders are never removed."""
        if folder not in self._durable or not folder.is_dir():
            self._make_folder(folder)
            sync_folder(folder.parent)
            self._durable.add(folder)

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            self._layout.displace(folder)
            folder.mkdir()
