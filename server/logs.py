"""Where log lines go: standard error, one line each, for people or as JSON. Set up once, at the entry point."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from server.settings import Settings


def configure_logs(settings: Settings) -> None:
    """Route structlog, and the warnings of libraries, to one renderer."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "json":
        render: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    lines = logging.StreamHandler(sys.stderr)
    strip: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    lines.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*strip, *render]))
    # uvicorn names whole queries at level info, and a query may hold a token.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[lines], force=True)
