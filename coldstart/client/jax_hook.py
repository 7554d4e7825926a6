"""The hook: what happens when JAX compiles. Wraps the one function where JAX compiles or reads its own cache.

Nothing connects before the first compile. A process whose address is not set never gets here. Broad `except`
stands here on purpose: whatever breaks in us, the program compiles (I5), unless it asked for strict mode.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coldstart.client import jax_internals, target
from coldstart.client.fallback import FromCompiler
from coldstart.client.report import Report
from coldstart.client.session import Session
from coldstart.config import ClientSettings, client_settings, unknown_settings
from coldstart.errors import ColdstartError, ConfigError
from coldstart.identity import rules
from coldstart.outcomes import Reason

log = logging.getLogger("coldstart")


class Hook:
    """One process's hook. `sessions` are per process id: a fork gets a channel and threads of its own."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}
        self._inside = threading.local()
        self._unwrap: Callable[[], None] | None = None

    def install(self) -> None:
        """Wrap JAX's compile function. Idempotent."""
        if self._unwrap is None:
            target.note_flags()
            log.addFilter(_signed)
            self._unwrap = jax_internals.wrap_compile(self._wrapper)
            os.register_at_fork(after_in_child=self._after_fork)
            atexit.register(self._say_at_exit)

    def uninstall(self) -> None:
        """Take the wrapper out again; what waits to be sent is sent."""
        if self._unwrap is not None:
            self._unwrap()
            self._unwrap = None
            atexit.unregister(self._say_at_exit)
        self.flush()

    def session(self) -> Session:
        """This process's session. Connects nothing by itself."""
        with self._lock:
            session = self._sessions.get(os.getpid())
            if session is None:
                session = Session(self.settings)
                self._sessions = {os.getpid(): session}
            return session

    def _after_fork(self) -> None:
        """In the child: no thread of the parent's is left, and one of them may have held the lock."""
        self._lock = threading.Lock()
        self._sessions = {}
        self._inside = threading.local()

    def report(self) -> Report:
        return self.session().report()

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until everything compiled here is published. True when nothing is left."""
        session = self._sessions.get(os.getpid())
        return session is None or session.outbox.flush(seconds)

    def _wrapper(self, original: jax_internals.Compile) -> jax_internals.Compile:
        def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
            # A compile inside a compile (autotuning, a callback that traces) is part of the outer one.
            if getattr(self._inside, "on", False):
                return original(*args, **kwargs)
            if _no_more_threads():
                self.session().skip(Reason.DISABLED)
                return original(*args, **kwargs)
            self._inside.on = True
            try:
                return self._obtain(original, args, kwargs)
            finally:
                self._inside.on = False

        return compile_or_get_cached

    def _obtain(
        self, original: jax_internals.Compile, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # What the compiler made, and what it raised for the caller's own module: trouble of ours must never
        # compile twice.
        outcome: list[Any] = []
        refused: list[BaseException] = []

        def compile_module(module: Any) -> Any:
            try:
                outcome.append(original(**{**arguments, "computation": module}))
            except BaseException as exc:
                if module is request.computation:
                    refused.append(exc)
                raise FromCompiler(exc) from exc
            return outcome[-1]

        try:
            request = jax_internals.request_of(args, kwargs)
            arguments = jax_internals.arguments_of(request)
            return self.session().obtain(
                request,
                lambda: compile_module(request.computation),
                compile_module=compile_module,
            )
        except FromCompiler as exc:
            raise exc.error from exc.error.__cause__
        except Exception as exc:
            if self.settings.strict:
                raise
            if not isinstance(exc, ColdstartError):
                log.exception("the hook failed; compiling without the cache")
            if refused:
                raise refused[-1] from refused[-1].__cause__
            return outcome[-1] if outcome else original(*args, **kwargs)

    def _say_at_exit(self) -> None:
        session = self._sessions.get(os.getpid())
        if session is None:
            return
        session.outbox.flush()
        report = session.report()
        if report.lookups:
            print(report, file=sys.stderr)


def _signed(record: logging.LogRecord) -> bool:
    """Python shows a library's warnings without its name, and somebody else's log should say whose they are."""
    if isinstance(record.msg, str) and not record.msg.startswith("coldstart"):
        record.msg = f"coldstart: {record.msg}"
    return True


def _no_more_threads() -> bool:
    """True while the interpreter ends, on those that start no threads then. gRPC can't do without, and half of a
    channel that lost its thread waits for ever."""
    if threading.main_thread().is_alive():
        return False
    try:
        threading.Thread(target=bool, name="coldstart-probe", daemon=True).start()
    except RuntimeError:
        return True
    return False


_installed: list[Hook] = []


def install(settings: ClientSettings | None = None) -> Hook | None:
    """Install the hook in this process, once; later calls return the first one's hook.

    Args:
        settings: default: from the environment and /etc/coldstart/address.

    Returns:
        The hook, or None where it stays inactive: no address, disabled, or a JAX without the seam.

    Raises:
        ConfigError: in strict mode only: a setting that can't be used.
    """
    if _installed:
        return _installed[0]
    try:
        if settings is None:
            settings = client_settings(os.environ)
        for message in unknown_settings(os.environ):
            if settings.strict:
                raise ConfigError(message)
            warnings.warn(f"coldstart: {message}", stacklevel=2)
    except ConfigError as exc:
        if os.environ.get("COLDSTART_STRICT", "") not in ("", "0"):
            raise
        warnings.warn(f"coldstart: {exc}; the hook stays inactive", stacklevel=2)
        return None
    if settings.disable or settings.address is None:
        return None
    try:
        rules.known(settings.rules_off)
    except ConfigError as exc:
        if settings.strict:
            raise
        warnings.warn(f"coldstart: {exc}; the hook stays inactive", stacklevel=2)
        return None
    seam = jax_internals.seam()
    if not seam.found:
        warnings.warn(f"coldstart: {seam.problem}; the hook stays inactive", stacklevel=2)
        return None
    if not seam.known:
        warnings.warn(f"coldstart: {seam.problem}; it only observes", stacklevel=2)
        settings = replace(settings, mode="observe")
    hook = Hook(settings)
    hook.install()
    _installed.append(hook)
    return hook


def refuse_compiles(error: Exception) -> None:
    """From now on every compile of this process raises `error`. Strict mode's last resort: JAX loads plug-ins in the
    middle of its own start, and swallows what they raise."""

    def refusing(original: jax_internals.Compile) -> jax_internals.Compile:
        def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
            raise error.with_traceback(None)

        return compile_or_get_cached

    jax_internals.wrap_compile(refusing)


def installed() -> Hook | None:
    """This process's hook, if there is one."""
    return _installed[0] if _installed else None


def uninstall() -> None:
    """Take the hook out again. For tests and notebooks."""
    while _installed:
        _installed.pop().uninstall()
