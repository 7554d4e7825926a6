"""Multi-head latent attention in the absorbed form, with a dense and a sparse branch."""

from __future__ import annotations

from coldstart_kernels.mla.op import mla_attention
from coldstart_kernels.mla.tuning import TuningKey, TuningParams

__all__ = ["TuningKey", "TuningParams", "mla_attention"]
