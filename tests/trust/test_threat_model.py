"""deploy/threat-model.md: each path names the test that closes it, and that test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "threat-model.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    return [line for line in lines if not line.startswith(("|---", "| who |"))]


def test_every_path_names_its_test() -> None:
    assert len(rows()) > 25
    assert [row for row in rows() if len(NAMED.findall(row)) != 1] == []


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for file, name in sorted(set(NAMED.findall(TEXT))):
        functions = ast.walk(ast.parse((ROOT / file).read_text()))
        if name not in {getattr(node, "name", "") for node in functions}:
            missing.append(f"{file}::{name}")
    assert missing == []
