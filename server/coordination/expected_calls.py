"""Options that were registered for calls that have not come yet. Pure: a clock is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from server.errors import NotAllowed, ServerFull, TooManyStreams

MAX_EXPECTED, MAX_EXPECTED_OF_KEY = 4_096, 512  # calls


class ExpectedCall(msgspec.Struct, frozen=True):
    """Options of a call that is expected: its UUID, the id of the key that registered it, and pairs of a query."""

    uuid: str
    key_id: str
    query: tuple[tuple[str, str], ...]


class ExpectedCalls:
    """Calls that are expected, until they come or their time is over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is in seconds."""
        self._clock = clock
        self._calls: dict[str, tuple[ExpectedCall, float]] = {}  # by UUID, with the time until which it may come
        self._of_keys: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: ExpectedCall, ttl_s: float) -> None:
        """Expect a call for `ttl_s`, with these options only. Raises: NotAllowed, TooManyStreams, ServerFull."""
        known = self._known(call.uuid)
        if known is None:
            self._check_room(call.key_id)
        elif known.key_id != call.key_id:
            raise NotAllowed("this UUID was registered with another key")
        else:
            self._remove(known)
        self._calls[call.uuid] = call, self._clock() + ttl_s
        self._of_keys[call.key_id] += 1

    def take(self, uuid: str, key_id: str | None = None) -> ExpectedCall | None:
        """Return a call's options, and expect it no more; `key_id`: only if they are of this key."""
        call = self._known(uuid)
        if call is None or key_id not in (None, call.key_id):
            return None
        self._remove(call)
        return call

    def _check_room(self, key_id: str) -> None:
        """Raises: TooManyStreams, ServerFull."""
        if self._of_keys[key_id] >= MAX_EXPECTED_OF_KEY or len(self._calls) >= MAX_EXPECTED:
            for uuid in tuple(self._calls):
                self._known(uuid)  # without those whose time is over
        if self._of_keys[key_id] >= MAX_EXPECTED_OF_KEY:
            raise TooManyStreams(f"{MAX_EXPECTED_OF_KEY} calls of this key are expected; delete one or retry later")
        if len(self._calls) >= MAX_EXPECTED:
            raise ServerFull(f"{MAX_EXPECTED} calls are expected; retry later")

    def _known(self, uuid: str) -> ExpectedCall | None:
        call, until_s = self._calls.get(uuid, (None, 0.0))
        if call is not None and self._clock() > until_s:
            self._remove(call)
            return None
        return call

    def _remove(self, call: ExpectedCall) -> None:
        del self._calls[call.uuid]
        self._of_keys -= Counter((call.key_id,))
