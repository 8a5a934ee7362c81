"""Logging: structlog and library warnings in one format, a bounded queue with a writer thread, request ids."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from queue import SimpleQueue
from types import MappingProxyType, TracebackType
from typing import Any

import structlog

from server.settings import Settings

FLUSH_S = 1.0  # for writing the last lines of a process
MAX_LINES = 4_096  # about a megabyte: one second of the busiest server
RETRY_S = 1.0  # after a write error
_SECRETS = re.compile(
    r"(?i)([?&](?:token|access_token|key|api_key|ticket)=)[^&\s\"']+"
    r"|(\b(?:authorization|sec-websocket-protocol)\b[\"']?\s*[:=,]\s*b?[\"']?)[^\"'\r\n]+"
)


def configure_logs(settings: Settings) -> LogLines:
    """Render structlog, library warnings and uncaught exceptions in one format; return the file they are written to."""
    fd = sys.stderr.fileno()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        render: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        render = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    render.append(redacted)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    out = LogLines(fd, lambda count: _lost_line(count, shared, render))
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),  # type: ignore[arg-type]  # structlog only writes and flushes
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    strip: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*strip, *render]))
    # At level info uvicorn logs whole queries, which may contain tokens.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_dead_thread
    sys.excepthook = _log_dead_process
    atexit.register(out.drain, FLUSH_S)
    return out


def redacted(_: object, __: str, line: str) -> str:
    """Remove keys and tokens from a rendered line: the last defense if a library logs a client's request."""
    return _SECRETS.sub(lambda secret: (secret[1] or secret[2]) + "…", line)


def _lost_line(count: int, shared: list[Any], render: list[Any]) -> str:
    line: Any = {"event": "log lines were lost", "count": count}
    for processor in (*shared, *render):
        line = processor(None, "warning", line)
    return f"{line}\n"


def _log_dead_thread(died: threading.ExceptHookArgs) -> None:
    if died.exc_value is None or isinstance(died.exc_value, SystemExit):
        return
    name = died.thread.name if died.thread else "unknown"
    structlog.get_logger("tutti").error("a thread died", thread=name, exc_info=died.exc_value)


def _log_dead_process(
    kind: type[BaseException],  # noqa: ARG001 - Python's signature
    error: BaseException,
    _: TracebackType | None,
) -> None:
    structlog.get_logger("tutti").critical("the process died", exc_info=error)


class LogLines:
    """File object for structlog and logging: a bounded queue, and a thread that writes it to a descriptor.

    `SimpleQueue` is also safe in signal handlers and finalizers, where `queue.Queue` could deadlock.
    """

    def __init__(self, fd: int, lost_line: Callable[[int], str]) -> None:
        """`lost_line` renders the line that reports the number of lost lines."""
        self._fd = fd
        self._lost_line = lost_line
        self._queue: SimpleQueue[str | threading.Event] = SimpleQueue()  # events are set when the writer reaches them
        self._draining = threading.Event()
        self._unreported = 0
        self._lost = 0
        self._count: Callable[[float], None] | None = None
        threading.Thread(target=self._main, name="log", daemon=True).start()

    def write(self, text: str) -> int:
        """Queue a line; never blocks or raises."""
        if self._queue.qsize() >= MAX_LINES:
            self._lose(1)
        else:
            self._queue.put(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing; `drain` waits for the writer."""

    def isatty(self) -> bool:
        """Return False, so that no colors are used."""
        return False

    def drain(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until the lines so far are written; used before the process exits."""
        written = threading.Event()
        self._draining.set()
        self._queue.put(written)
        written.wait(timeout_s)

    def count_lost(self, count: Callable[[float], None]) -> None:
        """Call `count` with the number of lines lost so far, and with each later number, on any thread."""
        self._count = count
        count(self._lost)

    def _lose(self, count: int) -> None:
        self._lost += count
        self._unreported += count
        if self._count is not None:
            self._count(count)

    def _main(self) -> None:
        while True:
            batch = [self._queue.get()]
            batch += [self._queue.get() for _ in range(self._queue.qsize())]
            self._write([item for item in batch if isinstance(item, str)])
            for item in batch:
                if isinstance(item, threading.Event):
                    item.set()

    def _write(self, lines: list[str]) -> None:
        """Write the lines in one call; on an error they are lost."""
        unreported = self._unreported
        text = (self._lost_line(unreported) if unreported else "") + "".join(lines)
        try:
            _write_all(self._fd, text.encode(errors="backslashreplace"))
        except OSError:
            self._lose(len(lines))
            self._draining.wait(RETRY_S)  # a persistent error must not occupy a core
        else:
            self._unreported -= unreported


def _write_all(fd: int, data: bytes) -> None:
    while data:
        with contextlib.suppress(InterruptedError):
            data = data[os.write(fd, data) :]


_untaken: ContextVar[str | None] = ContextVar("tutti_request_id_waiting", default=None)
_current: ContextVar[str | None] = ContextVar("tutti_request_id", default=None)

_refusals: ContextVar[list[Exception] | None] = ContextVar("tutti_refusals", default=None)


def note_refusal(error: Exception) -> None:
    """Store why the request of this context is refused, for its log line."""
    noted = _refusals.get()
    if noted is not None:
        noted.append(error)


def noted_refusal() -> Exception | None:
    """Return the last refusal of this context's request."""
    noted = _refusals.get()
    return noted[-1] if noted else None


_trace: ContextVar[Mapping[str, str]] = ContextVar("tutti_caller_trace", default=MappingProxyType({}))


def name_request(trace: Mapping[str, str]) -> str:
    """Set a new request id in this context; the endpoint gets it with `take_request_id`.

    `trace`: the caller's trace context, as W3C names its headers.
    """
    request_id = str(uuid.uuid4())
    _trace.set(trace)
    _refusals.set([])
    _untaken.set(request_id)
    _current.set(request_id)
    return request_id


def take_request_id() -> str:
    """Return the context's request id, once; after that a new one, so that ids are unique."""
    request_id = _untaken.get()
    _untaken.set(None)
    return request_id or str(uuid.uuid4())


def caller_trace() -> Mapping[str, str]:
    """Return the trace context that the caller of this context's request sent, empty if it sent none."""
    return _trace.get()


def current_request_id() -> str | None:
    """Return the context's request id, None outside a request."""
    return _current.get()
