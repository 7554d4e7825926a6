"""What the kernels need to know of a device, asked in one place.

Figures are per JAX device (on TPU7x one TensorCore, half a chip). A kind that is not listed gets the
smallest VMEM of the list, so that a guess can cost speed and never an overflow.
"""

from __future__ import annotations

import jax

LANES = 128
"""Width of a vector register: the last dimension of a block is a multiple of it, or whole."""

SUBLANES = 8
"""Height of a vector register of 32-bit values; narrower types pack two or four rows into each."""

_MIB = 1 << 20
_VMEM_BYTES = {
    "TPU v5 lite": 128 * _MIB,
    "TPU v5": 64 * _MIB,
    "TPU v6 lite": 128 * _MIB,
    "TPU7x": 64 * _MIB,
}


_KERNEL_VMEM_BYTES = {"TPU7x": 32 * _MIB}


def kernel_vmem_bytes(device_kind: str) -> int:
    """What the compiler lets one kernel have of it, where the kernel asks for nothing else.

    32 MiB is what libtpu prints for TPU7x (`scoped_memory_configs` in the compiled text); other kinds weren't asked and
    get the 16 MiB of older ones.
    """
    return _KERNEL_VMEM_BYTES.get(device_kind, 16 * _MIB)


def vmem_bytes(device_kind: str) -> int:
    """Vector memory of one device of this kind."""
    return _VMEM_BYTES.get(device_kind, min(_VMEM_BYTES.values()))


def sublane_multiple(itemsize: int) -> int:
    """Rows that one tile of values of this size holds: 8 for fp32, 16 for bf16, 32 for fp8."""
    return SUBLANES * max(1, 4 // itemsize)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return -(-value // multiple) * multiple


def padded_bytes(rows: int, columns: int, itemsize: int) -> int:
    """Bytes of a 2-D block in VMEM, where it is laid out in whole tiles."""
    return round_up(rows, sublane_multiple(itemsize)) * round_up(columns, LANES) * itemsize


def default_implementation() -> str:
    """The implementation that an op picks when none is named."""
    return "pallas" if jax.default_backend() == "tpu" else "reference"
