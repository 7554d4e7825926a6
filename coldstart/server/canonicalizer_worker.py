"""The process that canonicalizes: reads descriptors on stdin, answers on stdout, holds nothing between jobs.

    python -m coldstart.server.canonicalizer_worker MEMORY_BYTES

What comes in was written by somebody else: everything that can go wrong with it goes wrong here, in a process that
holds no secrets, may use so much memory and no more, and is killed when it takes too long.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import traceback
import zlib
from dataclasses import asdict, astuple
from typing import Any

from coldstart.errors import InvalidDescriptor
from coldstart.identity import rules
from coldstart.identity.canonical import Canonical, canonicalize
from coldstart.identity.descriptor import GraphDescriptor
from coldstart.identity.final import MAX_NOTES, Described, shown
from coldstart.server.frames import (
    MAX_DATA_BYTES,
    MAX_TEXT_BYTES,
    PEAK_BYTES,
    Job,
    read_frame,
    write_frame,
)
from coldstart.wire_descriptor import descriptor_from_bytes

MAX_REWRITES = 20_000


def canonicalize_bytes(data: bytes, job: Job = Job.REWRITES) -> tuple[dict[str, Any], bytes]:
    """A serialized descriptor → the answer and the compressed descriptor. Total: whatever `data` is.

    The answer holds `rewrites`, or `invalid` with what the sender can change, or `failed` with what went wrong here.
    For a final descriptor it also holds `final`: the fields of `Described`.
    """
    try:
        descriptor = descriptor_from_bytes(data)
        _check_kind(descriptor, job)
        off = [rule.name for rule in rules.REWRITES] if job is Job.FINAL_EXACT else []
        found = canonicalize(descriptor, off)
    except InvalidDescriptor as exc:
        return {"invalid": str(exc)[:1000]}, b""
    except RecursionError:
        return {"invalid": "the descriptor nests too deep"}, b""
    except MemoryError:
        return {"failed": "it needs more memory than a canonicalization may use"}, b""
    except Exception as exc:  # the edge: a fault of ours must not look like a dead worker
        traceback.print_exc(file=sys.stderr)
        return {"failed": f"{type(exc).__name__}: {exc}"[:1000]}, b""
    if len(found.rewrites) > MAX_REWRITES:
        return {
            "failed": f"{len(found.rewrites)} rewrites are more than the {MAX_REWRITES} that are sent"
        }, b""
    kept = zlib.compress(data, 1)
    answer: dict[str, Any] = {"rewrites": [astuple(rewrite) for rewrite in found.rewrites]}
    if descriptor.final:
        answer["final"] = asdict(_described(descriptor, found, off, data))
    return answer, kept if len(kept) < MAX_DATA_BYTES else b""


def _check_kind(descriptor: GraphDescriptor, job: Job) -> None:
    if descriptor.final and job is Job.REWRITES:
        raise InvalidDescriptor(
            "a final descriptor is asked about as final_program, with the other components of its key beside it"
        )
    if not descriptor.final and job is not Job.REWRITES:
        raise InvalidDescriptor(
            "the descriptor of a final_program says final = true: no module stands behind it"
        )


def _described(d: GraphDescriptor, found: Canonical, off: list[str], data: bytes) -> Described:
    return Described(
        digest=found.digest,
        rules=tuple(rule.id for rule in rules.REWRITES if rule.name not in off),
        raw_digest=hashlib.sha256(data).hexdigest(),
        framework=shown(d.framework),
        program_name=shown(d.program_name),
        nodes=d.nodes,
        rewritten=len(found.reasons),
        reasons=tuple(map(shown, found.reasons[:MAX_NOTES])),
    )


def main() -> None:
    """Answer until stdin ends."""
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever prints must not end up between frames
    while True:
        frame = read_frame(requests)
        if frame is None:
            return
        answer, kept = canonicalize_bytes(frame[1], Job(frame[0].decode()))
        text = json.dumps(answer).encode()
        if len(text) > MAX_TEXT_BYTES:
            text, kept = json.dumps({"failed": "its rewrites are too long to send"}).encode(), b""
        del frame, answer
        write_frame(answers, text, _peak_bytes().to_bytes(PEAK_BYTES, "big") + kept)


def _peak_bytes() -> int:
    """The most memory that this process held, since it began to run this program.

    Not getrusage's ru_maxrss: that is inherited through the exec, so a daemon inside of a large process would see
    every worker as grown.
    """
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    main()
