"""The indexer of sparse latent attention: which positions each token attends to."""

from __future__ import annotations

from coldstart_kernels.mla_indexer.cache import IndexCache, quantize_queries
from coldstart_kernels.mla_indexer.op import index_candidates
from coldstart_kernels.mla_indexer.tuning import TuningKey, TuningParams
from coldstart_kernels.mla_indexer.winners import keep_winners

__all__ = [
    "IndexCache",
    "TuningKey",
    "TuningParams",
    "index_candidates",
    "keep_winners",
    "quantize_queries",
]
