"""The tiny model on meshes of CPU devices; what two tests share is compiled once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import pytest

from coldstart.models.buckets import ServerSettings
from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.generate import Generator
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.model import GlmModel
from coldstart.models.glm.server import Server

SETTINGS = ServerSettings(budget=32, max_seqs=8)
PAGES = 20


@pytest.fixture(scope="session")
def generator() -> Callable[..., Generator]:
    """Makes what generates: (config, layout, seed, scan=False)."""

    @cache
    def server_of(config: GlmConfig, layout: Layout, scan: bool) -> Server:
        devices = jax.devices()[: layout.tp]
        return Server(GlmModel(config, layout, devices, pages=PAGES, requests=8, scan=scan))

    def make(config: GlmConfig, layout: Layout, seed: int = 0, *, scan: bool = False) -> Generator:
        server = server_of(config, layout, scan)
        return Generator(server, SETTINGS, server.model.params(seed), server.model.head(seed))

    return make
