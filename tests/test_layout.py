"""The tree is what coldstart/README.md says it is: who imports whom, what is where, what is in no file."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES = 450
ANYTHING = "*"


# --- the table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allowed:
    """One name in a row: what may be imported, in which files, and whether only inside functions."""

    name: str  # or ANYTHING
    files: tuple[str, ...] = ("*",)
    inside_functions: bool = False
    but: str = ""

    def permits(self, found: Import, file: str) -> bool:
        return (
            (self.name == ANYTHING or covers(self.name, found.name))
            and not (self.but and covers(self.but, found.name))
            and any(fnmatch(file, pattern) for pattern in self.files)
            and (found.inside_function or not self.inside_functions)
        )


@dataclass(frozen=True)
class Row:
    ours: list[Allowed] = field(default_factory=list)
    others: list[Allowed] = field(default_factory=list)


def covers(allowed: str, name: str) -> bool:
    return name == allowed or name.startswith(allowed + ".")


def parse_cell(cell: str) -> list[Allowed]:
    """Parts separated by `;`: names, then optionally `in` and files, or `inside functions`."""
    allowed = []
    for part in filter(None, map(str.strip, cell.split(";"))):
        inside = "inside functions" in part
        names, _, files = part.replace("inside functions", "").partition(" in ")
        patterns = tuple(re.findall(r"`([^`]+)`", files)) or ("*",)
        if names.startswith("anything"):
            but = "".join(re.findall(r"but `([^`]+)`", names))
            allowed.append(Allowed(ANYTHING, patterns, inside, but))
        else:
            found = re.findall(r"`([^`]+)`", names)
            assert found, f"can't read {part!r} in the import table"
            allowed += [Allowed(name, patterns, inside) for name in found]
    return allowed


@cache
def table() -> dict[str, Row]:
    text = (ROOT / "coldstart" / "README.md").read_text()
    lines = text.split("## Who may import whom")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    return {
        package: Row(parse_cell(ours), parse_cell(others))
        for packages, ours, others in rows
        for package in re.findall(r"`([^`]+)`", packages)
    }


# --- the imports ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    name: str
    line: int
    inside_function: bool


def imports_of(tree: ast.AST, *, inside: bool = False) -> Iterator[Import]:
    """Every import; what stands below a function or `if TYPE_CHECKING` doesn't run at import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, inside)
        else:
            lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports_of(node, inside=inside or lazy or typing)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "kernels":
        return parts[1]
    return parts[1].removesuffix(".py")


def problems_of(path: Path) -> list[str]:
    package = package_of(path)
    if package not in table():
        return [f"{path.relative_to(ROOT)}: {package} has no row in the table"]
    row = table()[package]
    relative = path.relative_to(ROOT)
    file = relative.relative_to(relative.parts[0]).as_posix()  # as "store/redis.py", or "wire.py"
    inner = file.partition("/")[2] or file
    problems = []
    for found in imports_of(ast.parse(path.read_text(), str(path))):
        top = found.name.partition(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top == "coldstart":
            name = found.name.partition(".")[2] or "__init__"
            if covers(package, name) or name in ("__version__", "__init__"):
                continue
            fine = any(
                allowed.permits(Import(name, 0, found.inside_function), inner)
                for allowed in row.ours
            )
        elif top == "coldstart_kernels":
            fine = package == top or any(allowed.permits(found, inner) for allowed in row.ours)
        else:
            fine = any(
                allowed.permits(found, inner) or allowed.permits(found, file)
                for allowed in row.others
            )
        if not fine:
            where = " inside a function" if found.inside_function else ""
            problems.append(f"{path.relative_to(ROOT)}:{found.line}: imports {found.name}{where}")
    return problems


def test_the_table_is_read() -> None:
    rows = table()
    assert {"identity", "store", "client", "server", "cli", "coldstart_kernels"} <= set(rows)
    assert [a.name for a in rows["identity"].ours] == ["errors", "outcomes"]
    assert Allowed("cryptography", ("trust/*.py",)) in rows["trust"].others
    assert Allowed("jax", inside_functions=True) in rows["demo"].others
    assert Allowed(ANYTHING, but="cli") in rows["demo"].ours
    assert rows["coldstart_kernels"].ours == []


def test_a_forbidden_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    tree = tmp_path / "coldstart"
    bad = {
        "identity/a.py": "from coldstart.store import tier",
        "store/b.py": "import redis",
        "demo/c.py": "import jax",
        "server/d.py": "def f():\n    from coldstart.cli import main",
        "newcomer/e.py": "import os",
    }
    good = {
        "redis_link.py": "import redis",
        "demo/f.py": "def f():\n    import jax",
        "store/g.py": "from coldstart.errors import TierError\nfrom coldstart.store import tier\nimport os",
    }
    for name, text in (bad | good).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "README.md").write_text(
        (Path(__file__).parent.parent / "coldstart/README.md").read_text()
    )
    found = {name for name in bad | good if problems_of(tree / name)}
    assert found == set(bad)


def test_imports_keep_to_the_table() -> None:
    paths = [p for p in sources("coldstart", "kernels") if "rpc" not in p.relative_to(ROOT).parts]
    problems = [problem for path in paths for problem in problems_of(path)]
    assert not problems, "\n".join(["against the table in coldstart/README.md:", *problems])


def test_two_files_touch_the_internals_of_jax() -> None:
    problems = []
    for path in sources("coldstart", "kernels"):
        if path.name in ("jax_internals.py", "jax_job.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute):
                text = ast.unparse(node)
                if re.search(r"\bjax\._src\b|^(import|from) jaxlib\b|from jax import _src", text):
                    problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    assert not problems, "only client/jax_internals.py and client/jax_job.py may:\n" + "\n".join(
        problems
    )


# --- the tree ------------------------------------------------------------------------------------------------


def test_kernels_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_files_stay_small() -> None:
    large = {
        str(path.relative_to(ROOT)): lines
        for path in sources("coldstart", "kernels", "tests", ".ci")
        if "rpc" not in path.relative_to(ROOT).parts
        and (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert not large, f"over {MOST_LINES} lines; which noun wants to leave? {large}"


def tracked() -> list[Path]:
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


# Spelled with a gap, so that this file doesn't find itself.
FORBIDDEN = {
    "a registry's host": r"py~pi\.org|python~hosted|npm~js\.|deb~ian\.org|registry\.np~m|proxy\.~golang",
    "a download address": r"https?:~//\S+(\.whl|\.tar\.gz|\.tgz|\.zip|\.deb)\b|/releases/~download/|/sim~ple/",
    "a machine's path": r"(?<![\w.])/~(work|root|home|Users)/(?!\$|<|\{)",
}


def test_no_file_names_a_registry_or_a_machine() -> None:
    patterns = {what: re.compile(pattern.replace("~", "")) for what, pattern in FORBIDDEN.items()}
    problems = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            problems += [
                f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:100]}"
                for what, pattern in patterns.items()
                if pattern.search(line)
            ]
    assert not problems, "\n".join(problems)


def test_constraints_are_names_and_versions() -> None:
    for stack in "abc":
        lines = (ROOT / f"constraints-{stack}.txt").read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert len(pins) > 20
        assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin)] == []


# --- installed -----------------------------------------------------------------------------------------------


@pytest.fixture
def installed() -> None:
    """The distribution, as `make` installs it. CI must have it."""
    try:
        importlib.metadata.version("coldstart")
    except importlib.metadata.PackageNotFoundError:
        if os.environ.get("CI"):
            pytest.fail("coldstart is not installed in CI's environment")
        pytest.skip("coldstart is not installed here: `make test-fast` does that")


def in_python(code: str, cwd: Path) -> str:
    """Output of `code` in a new interpreter that sees what is installed and nothing else."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("installed")
def test_installed_the_name_kernels_stays_free(tmp_path: Path) -> None:
    code = """
from importlib.util import find_spec
spec = find_spec("kernels")  # somebody else's package of that name may be there
print(spec and (spec.origin, list(spec.submodule_search_locations or ())))
"""
    assert str(ROOT) not in in_python(code, tmp_path)
    assert in_python("import coldstart, coldstart_kernels; print('both')", tmp_path) == "both"


@pytest.mark.stacks
@pytest.mark.usefixtures("installed")
def test_jax_finds_the_plugin_and_an_unset_address_imports_nothing_more(tmp_path: Path) -> None:
    if Path("/etc/coldstart/address").exists():
        pytest.skip("this machine has an address for every process")
    code = """
import sys
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="jax_plugins") if p.value.startswith("coldstart")]
point.load().initialize()
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "coldstart"))
print("jax" in sys.modules, "grpc" in sys.modules)
"""
    modules, others = in_python(code, tmp_path).splitlines()
    assert modules.split() == ["coldstart", "coldstart.client", "coldstart.client.jax_plugin"]
    assert others == "False False"


@pytest.mark.usefixtures("installed")
def test_installed_version_is_the_source_s() -> None:
    text = (ROOT / "coldstart" / "__init__.py").read_text()
    assert f'__version__ = "{importlib.metadata.version("coldstart")}"' in text
