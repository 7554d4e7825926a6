"""Multi-head latent attention in the absorbed form, with a dense and a sparse branch."""

from __future__ import annotations

from coldstart_kernels.mla.cache import PagedCache
from coldstart_kernels.mla.merge import merge, merge_weights, merged_lse, weighted
from coldstart_kernels.mla.op import mla_attention
from coldstart_kernels.mla.paged_tuning import PagedKey, PagedParams
from coldstart_kernels.mla.tuning import TuningKey, TuningParams

__all__ = [
    "PagedCache",
    "PagedKey",
    "PagedParams",
    "TuningKey",
    "TuningParams",
    "merge",
    "merge_weights",
    "merged_lse",
    "mla_attention",
    "weighted",
]
