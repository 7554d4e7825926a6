"""`coldstart`: the group of all commands, and what they share.

A command's module is imported when the command is asked for, so `coldstart --help` is quick and needs no optional
package. Errors are one line and the fix: exit 2 where the command was misused or misconfigured, 1 where it failed, 130
after Ctrl-C (a daemon that was told to stop and did so exits 0).
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from coldstart import __version__
from coldstart.config import refuse_unknown
from coldstart.errors import ColdstartError, ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, and what the group's help says of it."""

    where: str  # module:attribute
    help: str


COMMANDS: dict[str, Entry] = {
    "bench": Entry("coldstart.cli.bench:bench", "Measure the cache beside JAX's own."),
    "daemon": Entry(
        "coldstart.cli.daemon:daemon", "Serve the cache to the processes of this host."
    ),
    "demo": Entry("coldstart.cli.demo:demo", "Cold-start participants with and without Coldstart."),
    "doctor": Entry("coldstart.cli.doctor:doctor", "Check settings, daemon and the seam in JAX."),
    "explain": Entry(
        "coldstart.cli.explain:command", "Say what a key was made of, or why two keys differ."
    ),
    "gc": Entry(
        "coldstart.cli.gc:gc", "Give room back: what is unused, over a limit, or left by crashes."
    ),
    "keygen": Entry("coldstart.cli.keygen:keygen", "Make a pair of keys for signatures."),
    "lookup": Entry(
        "coldstart.cli.lookup:lookup", "Show whether a key has an artifact, and its record."
    ),
    "purge": Entry("coldstart.cli.purge:purge", "Take artifacts away, by what they are."),
    "stats": Entry("coldstart.cli.stats:stats", "Show what a daemon has counted."),
    "top": Entry("coldstart.cli.top:top", "Watch a daemon: who compiles, what misses, and why."),
    "verify": Entry("coldstart.cli.verify:verify", "Read a whole store and check it."),
    "warm": Entry("coldstart.cli.warm:warm", "Compile a plan's programs ahead and publish them."),
}

# Import name of an optional package -> the extra that brings it.
EXTRAS = {
    "grpc_health": "daemon",
    "grpc_reflection": "daemon",
    "prometheus_client": "daemon",
    "starlette": "daemon",
    "uvicorn": "daemon",
    "redis": "redis",
    "google": "gcs",
    "jax": "jax",
    "jaxlib": "jax",
    "libtpu": "tpu",
}


INTERRUPTED = 128 + signal.SIGINT
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LazyGroup(click.Group):
    """Finds commands in COMMANDS and imports them when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        module, _, attribute = entry.where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(
                f"no such command {args[0]!r}; there are {', '.join(sorted(COMMANDS))}"
            )
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in sorted(COMMANDS)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: coldstart daemon --store disk:///var/cache/coldstart",
)
@click.version_option(__version__, prog_name="coldstart", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Share compiled JAX programs: whoever comes first compiles, everyone else gets the bytes."""
    if context.invoked_subcommand != "doctor":  # it reports them, beside what else is wrong
        refuse_unknown(os.environ)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The console script."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        code = cli.main(
            list(args) if args is not None else None, prog_name="coldstart", standalone_mode=False
        )
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where it can still be told
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.ctx.get_help() if exc.ctx else str(exc), err=True)
        return 2
    except click.ClickException as exc:
        return _say(exc.format_message(), exc.exit_code, exc)
    except click.exceptions.Abort:
        return _say("interrupted", INTERRUPTED)
    except ConfigError as exc:
        return _say(str(exc), 2)
    except ColdstartError as exc:
        return _say(str(exc), 1)
    except ModuleNotFoundError as exc:
        return _missing(exc)
    except BrokenPipeError:
        _drop_output()  # the reader had enough
        return 0
    except OSError as exc:
        if exc.errno not in CANNOT_WRITE or exc.filename is not None:
            raise
        _drop_output()
        return _say(f"can't write the output: {exc.strerror}", 1)
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """What is still in stdout's buffer goes nowhere, or Python would fail over it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _missing(exc: ModuleNotFoundError) -> int:
    name = (exc.name or "").partition(".")[0]
    if name in EXTRAS:
        return _say(f"{name} is not installed; pip install 'coldstart[{EXTRAS[name]}]'", 1)
    if (exc.name or "").startswith("coldstart."):
        return _say(f"this installation has no {exc.name}; install a release that does", 1)
    raise exc


def _say(message: str, code: int, error: click.ClickException | None = None) -> int:
    command = "coldstart"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        command = error.ctx.command_path
    line = " ".join(message.split())
    click.echo(f"{command}: {line}", err=True)
    return code


if __name__ == "__main__":
    main()
