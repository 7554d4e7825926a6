"""Facts about this host and process: its CPU's instruction sets, and who it is for people.

CPU features are not part of a key. They stand in an artifact's header, and a reader must have all of them: code
compiled on a host may use any of that host's instruction sets. Only names that a compiler acts on count; tuning
hints (prefer-*) and facts about the virtual machine never do.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import socket
import sys
from pathlib import Path

# Flags of /proc/cpuinfo (x86) that name instructions a compiler may emit.
_X86_ISA = re.compile(
    r"(mmx|mmxext|sse\w*|ssse3|pni|avx\w*|fma|fma4|f16c|bmi1|bmi2|abm|lzcnt|popcnt|movbe|aes|vaes|pclmulqdq|"
    r"vpclmulqdq|sha_ni|sha512|sm3|sm4|gfni|adx|rdrand|rdseed|rdpid|clwb|clflushopt|clzero|cldemote|movdiri|"
    r"movdir64b|serialize|waitpkg|enqcmd|ptwrite|tbm|xop|lwp|prfchw|3dnowprefetch|rtm|cx16|lahf_lm|fsgsbase|"
    r"xsave\w*|amx_\w+|invpcid|uintr|avx10\w*|apx\w*|kl|widekl|hreset|cmpccxadd|raoint|prefetchi|user_msr)$"
)


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """Sorted names of this host's instruction sets, the architecture's own name first among them.

    Where the operating system doesn't list them, the machine's name has to do: artifacts then only
    travel between hosts that call themselves alike.
    """
    machine = platform.machine() or "unknown"
    return tuple(sorted({f"arch:{machine}", *_listed(Path("/proc/cpuinfo"))}))


def _listed(cpuinfo: Path) -> set[str]:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return {f"os:{platform.system()}", f"processor:{platform.processor()}"}
    found: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            found |= {flag for flag in value.split() if _X86_ISA.match(flag)}
        elif name.strip() == "Features":  # Arm: all of them are instructions
            found |= set(value.split())
    return found


def holder() -> str:
    """Who asks, for people who read leases and logs: host/pid/program."""
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return f"{socket.gethostname()}/{os.getpid()}/{program}"
