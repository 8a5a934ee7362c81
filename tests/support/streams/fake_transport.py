"""A transport without a socket: records what is written, and can refuse more."""

from __future__ import annotations

from server.streaming.transport import MessageReceiver


class FakeTransport:
    """Implements `server.streaming.transport.Transport`."""

    def __init__(self) -> None:
        self.congested = False
        self.reading = True
        self.written: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.closes = 0
        self.written_late = 0  # frames after the close frame
        self.aborted = False
        self.receiver: MessageReceiver | None = None

    def attach(self, receiver: MessageReceiver) -> None:
        self.receiver = receiver

    def write(self, payload: bytes) -> None:
        self.written.append(payload)
        self.written_late += self.closed is not None

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        self.closes += 1
        if self.receiver is not None:
            self.receiver.on_gone()

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def read_at_least(self, count: int) -> None:
        self.least = max(count, 1)
