"""A fake server in a thread with its own event loop, for callers without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from anyio.from_thread import start_blocking_portal

T = TypeVar("T")


@contextlib.contextmanager
def in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Serve inside a `with` block."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(server) as running:
        yield running
