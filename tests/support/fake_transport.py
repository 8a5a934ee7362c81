"""A wire on the bench: what was written to it, and whether it takes more."""

from __future__ import annotations

from server.streaming.transport import MessageReceiver


class FakeWire:
    """Satisfies `server.streaming.transport.Transport`."""

    def __init__(self) -> None:
        self.congested = False
        self.reading = True
        self.written: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.aborted = False
        self.receiver: MessageReceiver | None = None

    def attach(self, receiver: MessageReceiver) -> None:
        self.receiver = receiver

    def write(self, payload: bytes) -> None:
        self.written.append(payload)

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        if self.receiver is not None:
            self.receiver.on_gone()

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
