"""Processes of different users on one daemon: the main container of a pod, beside the sidecar's.

Needs root, to become other users. A child imports all that it needs, then becomes somebody else, then connects.
"""

from __future__ import annotations

import grp
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_artifacts import make_artifact, make_record
from trust_keys import Keys
from trust_world import World, daemon, key

from coldstart import wire
from coldstart.trust.statement import decode_signature

USER = 61_234  # nobody's here
OTHERS_GROUP = 61_235

CHILD = """
import json, os, sys
from pathlib import Path
from small_artifacts import make_artifact, make_record
from trust_world import Client
from coldstart import artifact
from coldstart.client import volume
from coldstart.client.client import CacheClient
from coldstart.errors import ColdstartError
uid, gid, address, word = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
said = {"uid": os.getuid()}
calls = CacheClient(address, holder="child")
try:
    calls.connect(10.0)
    hello = calls.hello(10.0)
    root = Path(hello.volume.root)
    proof = volume.proof(root, hello.volume.nonce_path)
    lookup, reply = Client(calls).lookup(make_record("there"), proof=proof)
    said |= {"answer": reply.WhichOneof("answer"), "path": reply.hit.path}
    if reply.hit.path:
        found = artifact.open_file(volume.inside(root, reply.hit.path))
        said["bytes"] = artifact.decode(found).decode()
    said["digest"] = Client(calls).publish(make_artifact(word), make_record(word)).digest
except ColdstartError as exc:
    said |= {"error": type(exc).__name__, "words": str(exc)}
print(json.dumps(said))
"""


def as_user(address: str, *, group: int, word: str = "new") -> dict[str, Any]:
    """What a process of USER in that group could do."""
    command = [sys.executable, "-c", CHILD, str(USER), str(group), address, word]
    paths = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, as a volume of a pod is."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory(prefix="cs-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def group() -> grp.struct_group:
    """One that is not root's own."""
    return next(one for one in grp.getgrall() if one.gr_gid != 0)


def fill(world: World) -> None:
    with world.client() as client:
        client.publish(make_artifact("there", b"the code"), make_record("there"))


def test_another_user_connects_and_reads_by_path_with_group_mode(
    place: Path, group: grp.struct_group
) -> None:
    how = {"socket_mode": 0o660, "socket_group": group.gr_name}
    with daemon(place / "d", f"disk://{place}/s", **how) as world:
        fill(world)
        said = as_user(world.address, group=group.gr_gid)
        assert (said["uid"], said["answer"], said["bytes"]) == (USER, "hit", "the code")
        assert said["path"] and "error" not in said
        stranger = as_user(world.address, group=OTHERS_GROUP)
        assert stranger["error"] == "DaemonAbsent" and "Permission denied" in stranger["words"]


def test_another_user_is_refused_without(place: Path, group: grp.struct_group) -> None:
    with daemon(place / "d", f"disk://{place}/s") as world:
        said = as_user(world.address, group=group.gr_gid)
        assert said["error"] == "DaemonAbsent" and "Permission denied" in said["words"]
        assert "answer" not in said


def test_the_kernel_says_which_user_may_publish(
    place: Path, group: grp.struct_group, keys: Keys
) -> None:
    """Everybody may open the socket; who may publish is a list of users, and the signature names the user."""
    signing = {"signing_key": keys.folder / "one.key", "trusted_keys": keys.trusted}
    store = f"disk://{place}/s"
    everybody = {"socket_mode": 0o666, **signing}
    with daemon(place / "d", store, writers=(f"uid:{os.getuid()}",), **everybody) as world:
        fill(world)
        said = as_user(world.address, group=OTHERS_GROUP)
        assert said["bytes"] == "the code"  # it reads
        assert said["error"] == "NotAllowed" and f"uid:{USER}" in said["words"]
        (denied,) = world.audit("denied")
        assert denied["who"] == f"uid:{USER}"
    with daemon(place / "d", store, writers=(f"uid:{USER}",), **everybody) as world:
        said = as_user(world.address, group=OTHERS_GROUP, word="by the user")
        assert "error" not in said
        with world.client() as client:
            _, reply = client.lookup(make_record("by the user"))
            assert decode_signature(reply.hit.signature).producer.startswith(f"uid:{USER}@")
            _, reply = client.lookup(make_record("of root"))
            assert wire.reason_from_pb(reply.refused.reason) == "role"  # root is on no list
        assert [line["key"] for line in world.audit("published")][-1] == key("by the user")
