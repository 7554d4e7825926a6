"""Coldstart: a compilation cache and cold-start service for JAX programs."""

from __future__ import annotations

__version__ = "0.1.0"
