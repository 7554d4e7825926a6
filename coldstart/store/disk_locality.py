"""Whether a folder's file system answers at once: one of this kernel's own, and not one that asks another machine.

A stat of what was looked at a moment ago costs microseconds there, and a turn of a thread fifty times that. A file
system that asks a server (NFS, Ceph, Lustre, anything by FUSE) may not answer at all, and whoever waits for it must be
a thread that can be left behind (disk_threads.py). A type that nobody knows counts as such.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

OWN_TYPES = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs")
) | {"xfs", "zfs"}
SEVERAL_DEVICES = frozenset(("btrfs",))  # files there are on other devices than the mount says
MOUNTS = Path("/proc/self/mountinfo")


def answers_at_once(folder: Path) -> bool:
    """False where that can't be found out."""
    try:
        device = os.stat(folder).st_dev
        place = f"{os.major(device)}:{os.minor(device)}"
        return file_system(MOUNTS.read_text(), place, os.path.realpath(folder)) in OWN_TYPES
    except OSError:
        return False


def file_system(mounts: str, device: str, path: str) -> str:
    """The type of the file system of `path`, which is on `device` (major:minor); "" where no mount is its.

    Args:
        mounts: as /proc/self/mountinfo, see proc(5): number, parent, device, root, point, options..., "-", type, ...
    """
    longest, found = -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest:
            continue
        _, _, of_mount, _, point, *_ = fields.split(" ")
        kind = rest.split(" ")[0]
        point = _unescaped(point)
        above = path == point or path.startswith(point.rstrip("/") + "/")
        fits = of_mount == device or kind in SEVERAL_DEVICES
        if (
            above and fits and len(point) >= longest
        ):  # of two at one point the later one hides the other
            longest, found = len(point), kind
    return found


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), point)
