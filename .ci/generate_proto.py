"""Generates the Python of proto/ into a folder. Runs in `.venv-proto`, which `make proto` makes.

    .venv-proto/bin/python .ci/generate_proto.py .

Only files that declare a service get a `_pb2_grpc.py`: the plugin would write an empty one for the others.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def main(out: Path) -> int:
    proto = ROOT / "proto"
    sources = sorted(proto.rglob("*.proto"))
    flags = [f"-I{proto}", f"-I{files('grpc_tools') / '_proto'}"]
    flags += [f"--python_out={out}", f"--pyi_out={out}"]
    services = [s for s in sources if re.search(r"^service ", s.read_text(), re.MULTILINE)]
    status = protoc.main(["protoc", *flags, *map(str, sources)])
    status = status or protoc.main(
        ["protoc", flags[0], f"--grpc_python_out={out}", *map(str, services)]
    )
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
