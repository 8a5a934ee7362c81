"""Process with the decoders of recordings loaded, which forks itself for each recording.

`python -m server.audio.recordings.fork_server FD` starts it.
A crash or a hang of a decoder, or its memory, thus costs one upload. The process has no threads, so it may fork.
`remote_recording` is the other end of the sockets.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress

import msgspec

from server.audio.formats import AudioForm
from server.audio.recordings.recording import Recording, processor_time_s
from server.errors import Refused

LENGTH = struct.Struct("<I")  # before each message
NICENESS = 10  # of a child: live streams go first
GRACE_S = 5  # of processor time beyond what `Recording` allows: only a hang inside a library takes it
MAX_DATA_BYTES = 2**30  # of a child; the largest body has 100 MiB by default


class Begin(msgspec.Struct, frozen=True):
    """First message to a child; the body follows without a length of its own."""

    form: AudioForm
    rate: int
    max_s: float
    body_bytes: int


class Forked(msgspec.Struct, tag=True, frozen=True):
    """First answer: the process id of the child."""

    pid: int


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The recording is open, and has this many channels."""

    channels: int


class Block(msgspec.Struct, tag=True, frozen=True):
    """The next samples, (S, C) int16."""

    samples: bytes


class Ended(msgspec.Struct, tag=True, frozen=True):
    """There are no more samples."""

    warnings: list[str]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The recording is refused by an error of `server.errors`, or an unexpected one ended the child: its traceback."""

    error: str
    text: str


Answer = Forked | Opened | Block | Ended | Failed


def packed(message: msgspec.Struct) -> bytes:
    """Return a message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def main() -> None:
    """Fork for each descriptor that arrives, until the server has ended."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(sig, signal.SIG_IGN)  # a server that drains still needs it; ended children are not waited for
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        for descriptor in descriptors:
            with suppress(OSError), socket.socket(fileno=descriptor) as connection:  # closed: the server sees no answer
                if not os.fork():
                    try:
                        control.close()
                        _serve(connection)
                    finally:
                        os._exit(0)  # whatever happened: only the parent forks


def _serve(connection: socket.socket) -> None:
    """Decode the recording of one connection."""
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):  # the server wants no more
        try:
            _decode(connection)
        except Refused as error:
            connection.sendall(packed(Failed(type(error).__name__, str(error))))
        except MemoryError:
            connection.sendall(packed(Failed("TooLarge", "decoding takes too much memory; send shorter recordings")))
        except (BrokenPipeError, ConnectionResetError, EOFError):
            raise
        except Exception:  # noqa: BLE001 - a defect: the server logs it
            connection.sendall(packed(Failed("", traceback.format_exc())))


def _decode(connection: socket.socket) -> None:
    connection.sendall(packed(Forked(os.getpid())))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libraries write notes about damage to it
    os.nice(NICENESS)
    (size,) = LENGTH.unpack(_received(connection, LENGTH.size))
    begin = msgspec.msgpack.decode(_received(connection, size), type=Begin)
    body = _received(connection, begin.body_bytes)
    end_s = int(processor_time_s(len(body))) + GRACE_S
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, end_s),
        (resource.RLIMIT_DATA, MAX_DATA_BYTES),
    ):
        hard = resource.getrlimit(kind)[1]  # which only root may raise
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, lower))
    recording = Recording(body, begin.form, rate=begin.rate, max_s=begin.max_s)
    del body
    connection.sendall(packed(Opened(recording.channels)))
    while connection.recv(1):  # a byte for each block
        block = recording.next_block()
        answer = Ended(recording.warnings) if block is None else Block(block.tobytes())
        connection.sendall(packed(answer))


def _received(connection: socket.socket, size: int) -> bytes:
    """Receive this many bytes. Raises: EOFError."""
    parts = list[bytes]()
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
