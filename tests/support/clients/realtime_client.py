"""Helpers that send to OpenAI's Realtime endpoint over a plain socket."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.recognizers.spelling import silence, spell

RATE = 24_000
PIECE_BYTES = 9_600


def update(socket: ClientConnection, **settings: Any) -> None:
    """Send `session.update` with these settings of the input, such as `transcription`."""
    session = {"type": "transcription", "audio": {"input": settings}}
    socket.send(json.dumps({"type": "session.update", "session": session}))


def speak(socket: ClientConnection, text: str) -> None:
    """Send the audio of a text in pieces, and commit it."""
    pcm = np.concatenate([spell(text, RATE), silence(1.0, RATE)]).tobytes()
    for start in range(0, len(pcm), PIECE_BYTES):
        audio = base64.b64encode(pcm[start : start + PIECE_BYTES]).decode()
        socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
    socket.send(json.dumps({"type": "input_audio_buffer.commit"}))


def until_transcript(socket: ClientConnection) -> list[Any]:
    """Return the events up to the first transcript."""
    events = [json.loads(socket.recv(timeout=WAIT_S))]
    while "transcript" not in events[-1]:
        events.append(json.loads(socket.recv(timeout=WAIT_S)))
    return events
