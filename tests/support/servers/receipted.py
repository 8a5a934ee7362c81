"""Streams with receipts of the shipped model, as a client records them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from model.recordings import read_pcm
from server.models.loading import load_served
from server.receipts.keys import ReceiptKeys
from server.receipts.recorded import Recorded
from server.settings import Settings
from tests.support.audio.speech import samples
from tests.support.servers.live_server import Frame, LiveServer

RATE, CHUNK = 16_000, 2_560


def with_keys(folder: Path) -> tuple[Path, ReceiptKeys]:
    """Write the file of a new key; return it and the key."""
    keys, path = ReceiptKeys.new(), folder / "receipt_key.json"
    path.write_text(keys.as_text(private=True))
    return path, keys


def shipped_server(key_file: Path, **settings: Any) -> LiveServer:
    """Return a server of the shipped English model, as `tutti serve` loads it."""
    models, _ = load_served(Settings(model=Path("tutti-gru"), **settings))
    return LiveServer(models, receipt_key_file=key_file, **settings)


def spoken(*names: str) -> np.ndarray:
    """Return the shipped recordings with these names, a second of silence after each; (S,) int16."""
    found = {one.audio.stem: one.audio for one in samples()}
    silence = np.zeros(RATE, np.int16)
    return np.concatenate([part for name in names for part in (read_pcm(found[name]), silence)])


def record(server: LiveServer, audio: np.ndarray, *, finalize_at: int | None = None, **query: Any) -> list[Frame]:
    """Stream (S, C) or (S,) audio with receipts; return all messages."""
    with server.listen(receipt="true", **query) as client:
        for start in range(0, len(audio), CHUNK):
            client.send(np.ascontiguousarray(audio[start : start + CHUNK]))
            if finalize_at is not None and start <= finalize_at < start + CHUNK:
                client.say("Finalize")
        return client.finish()


def recorded(frames: list[Frame]) -> Recorded:
    """Return the receipts, as read from a file of messages."""
    return Recorded.of_messages(json.loads(json.dumps(frames)))
