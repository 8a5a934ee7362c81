"""What names a request from end to end: in the answer's headers, in frames, in log lines, in traces."""

from __future__ import annotations

import uuid
from contextvars import ContextVar

_waiting: ContextVar[str | None] = ContextVar("tutti_request_id_waiting", default=None)
_current: ContextVar[str | None] = ContextVar("tutti_request_id", default=None)


def name_request() -> str:
    """Name the request that this context serves; whoever answers it takes the name with `take_request_id`."""
    request_id = str(uuid.uuid4())
    _waiting.set(request_id)
    _current.set(request_id)
    return request_id


def take_request_id() -> str:
    """Return the name of the context's request, once; a fresh one otherwise: no two things bear one name."""
    request_id = _waiting.get()
    _waiting.set(None)
    return request_id or str(uuid.uuid4())


def current_request_id() -> str | None:
    """Return the name of the context's request, None outside any."""
    return _current.get()
