"""Rows in expert order times each expert's own weights."""

from __future__ import annotations

from coldstart_kernels.grouped_matmul.op import grouped_matmul
from coldstart_kernels.grouped_matmul.quantize import LARGEST, quantize_blocks
from coldstart_kernels.grouped_matmul.tuning import TuningKey, TuningParams

__all__ = ["LARGEST", "TuningKey", "TuningParams", "grouped_matmul", "quantize_blocks"]
