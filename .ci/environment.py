"""Makes the virtual environments behind the doors of the Makefile.

    python3 .ci/environment.py run|dev|b|c|oldest|proto   make or update one; silent when it is current
    python3 .ci/environment.py find 3.12             print an interpreter of that version

An interpreter counts only if running it works and it can make environments: a version manager's shim exists
for versions that it then refuses to start. An environment is current while the digest of everything that
decides its content stands in its stamp. Exit 3: no fitting interpreter here (the reason is one line on stderr).
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ANY = ("3.11", "3.12", "3.13")  # in the order they are looked for: 3.11 is stack A
STACK_OF = {"3.11": "a", "3.12": "b", "3.13": "b"}
PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
NO_INTERPRETER = 3

# name: folder, interpreter versions, stack (None: by the interpreter), extras
ENVIRONMENTS = {
    "run": (".venv", ANY, None, "daemon,models"),
    "dev": (".venv", ANY, None, "daemon,redis,gcs,tpu,models,dev"),
    "b": (".venv-b", ("3.12",), "b", "daemon,redis,tpu,models,test"),
    "c": (".venv-c", ("3.12",), "c", "daemon,tpu,models,test"),
    "oldest": (".venv-oldest", ("3.11",), "oldest", "daemon,redis,models,test"),
    "proto": (".venv-proto", ("3.11", "3.12"), None, None),
}
COVERED_BY = {"run": ("run", "dev")}  # the other's stamp will do
PROTO_TOOLS = ("grpcio-tools==1.62.3", "setuptools<81")  # DECISIONS 2; it still wants pkg_resources


def say(text):
    print("environment: " + text, file=sys.stderr, flush=True)


def probe(executable):
    """(version, real executable) if running it works and it can make environments."""
    try:
        done = subprocess.run(
            [executable, "-I", "-c", PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.decode().split("\n")
    return (lines[0], lines[1]) if done.returncode == 0 else None


def candidates(version):
    """Where an interpreter of `version` may be; the likeliest first."""
    name = "python" + version
    yield os.environ.get("PYTHON", "python3")
    yield sys.executable
    for folder in os.get_exec_path():
        yield os.path.join(folder, name)
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    patterns = (
        os.path.join(pyenv, "versions", version + "*", "bin", name),
        os.path.expanduser("~/.local/share/uv/python/*" + version + "*/bin/" + name),
        os.path.expanduser("~/.asdf/installs/python/" + version + "*/bin/" + name),
        os.path.join("/usr/local/bin", name),
        os.path.join("/opt/python*/bin", name),
    )
    for pattern in patterns:
        yield from sorted(glob.glob(pattern), reverse=True)


def find(versions):
    """(version, executable) of the first that runs, or None."""
    tried = {}
    for version in versions:
        for candidate in candidates(version):
            found = shutil.which(candidate)
            if found is None:
                continue
            if found not in tried:
                tried[found] = probe(found)
            if tried[found] is not None and tried[found][0] == version:
                return tried[found]
    return None


def constraints_of(stack):
    return ".ci/oldest.txt" if stack == "oldest" else "constraints-" + stack + ".txt"


def digest_of(name, version, stack, extras):
    """Changes when anything that decides the environment's content does."""
    digest = hashlib.sha256(repr((ROOT, name, version, stack, extras, PROTO_TOOLS)).encode())
    if extras is not None:
        for file in ("pyproject.toml", constraints_of(stack)):
            with open(os.path.join(ROOT, file), "rb") as opened:
                digest.update(opened.read())
    return digest.hexdigest()


def make(name):
    folder, versions, stack, extras = ENVIRONMENTS[name]
    path = os.path.join(ROOT, folder)
    python = os.path.join(path, "bin", "python")
    current = probe(python)
    if current is None or current[0] not in versions:
        found = find(versions)
        if found is None:
            say(
                "no {} here: none of Python {} runs with the venv module "
                "(Debian has it as python3-venv)".format(folder, ", ".join(versions))
            )
            return NO_INTERPRETER
        say(f"{folder}: making it with {found[1]}")
        subprocess.run([found[1], "-m", "venv", "--clear", path], check=True)
        current = (found[0], python)
    version = current[0]
    stack = stack or STACK_OF[version]
    for other in COVERED_BY.get(name, (name,)):
        stamp = os.path.join(path, "stamp-" + other)
        try:
            with open(stamp) as opened:
                if opened.read() == digest_of(other, version, stack, ENVIRONMENTS[other][3]):
                    return 0
        except OSError:
            pass
    if extras is None:
        what, wanted = " ".join(PROTO_TOOLS), list(PROTO_TOOLS)
    else:
        what = f"coldstart[{extras}], stack {stack.upper() if len(stack) == 1 else stack}"
        constraints = os.path.join(ROOT, constraints_of(stack))
        wanted = ["-c", constraints, "-e", f"{ROOT}[{extras}]"]
    say(f"{folder}: installing {what} on Python {version}")
    started = time.monotonic()
    # -qq: errors only. The editable install is laid anew whenever pyproject.toml changes.
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq", *wanted]
    if subprocess.run(install, stdin=subprocess.DEVNULL).returncode != 0:
        say(f"{folder}: pip could not install {what}; its message is above")
        return 1
    with open(os.path.join(path, "stamp-" + name), "w") as opened:
        opened.write(digest_of(name, version, stack, extras))
    say(f"{folder}: ready after {time.monotonic() - started:.0f} s")
    return 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "find":
        found = find((arguments[1],))
        print(found[1] if found else "no Python " + arguments[1] + " runs here")
        return 0 if found else NO_INTERPRETER
    if len(arguments) == 1 and arguments[0] in ENVIRONMENTS:
        return make(arguments[0])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
