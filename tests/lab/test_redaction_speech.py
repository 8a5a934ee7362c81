"""Synthetic speech of a card number in groups, with the shipped model: no digit reaches a client of a key's policy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.models.loading import load_served
from server.settings import Settings
from tests.support.audio.english_numbers import digit_words
from tests.support.needs import need_programs
from tests.support.servers.live_server import LiveServer
from tutti_asr_lab.training.synthesis.voices import SAMPLE_RATE_HZ, Voice, speak

GROUPS = ("four one one one", "two three four five", "six seven eight nine", "one two three four")
AFTER = ("got it", "sir", "thank you", "perfect")
PAUSE = np.zeros(round(1.2 * SAMPLE_RATE_HZ), np.int16)
PIECE = 3_200


def speech(after: str) -> np.ndarray:
    """Return the groups, each with these words and a pause after it, (S,) int16."""
    voice = Voice("espeak-ng", "en-us", 50, 140)
    spoken = [speak(voice, f"{group}, {after}.") for group in GROUPS]
    return np.concatenate([part for one in spoken for part in (np.rint(one * 16_000).astype(np.int16), PAUSE)])


def said(messages: list[dict[str, Any]], *, final: bool) -> list[list[str]]:
    """Return the words of each result, in the transcript and in the list of words."""
    results = [message for message in messages if message["type"] == "Results" and message["is_final"] is final]
    alternatives = [result["channel"]["alternatives"][0] for result in results]
    return [[*one["transcript"].split(), *(word["word"] for word in one["words"])] for one in alternatives]


@pytest.mark.parametrize("after", AFTER)
def test_no_digit_of_a_number_in_groups_is_in_any_message(tmp_path: Path, after: str) -> None:
    need_programs("espeak-ng")
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(b'calls').hexdigest()} calls redact=pci,ssn\n")
    models, _ = load_served(Settings(model=Path("tutti-gru")))
    audio = speech(after)
    found: dict[str, list[dict[str, Any]]] = {}
    with LiveServer(models, api_keys=["open"], api_keys_file=path) as server:
        for key in ("open", "calls"):
            with server.listen({"Authorization": f"Token {key}"}, interim_results="true", endpointing=300) as client:
                for at in range(0, len(audio), PIECE):
                    client.send(audio[at : at + PIECE])
                found[key] = client.finish()
    plain, masked = (sum(map(digit_words, said(found[key], final=True))) for key in ("open", "calls"))
    assert plain >= 24, "the model recognizes most of the 16 digits, in both forms"
    assert masked == 0, said(found["calls"], final=True)
    assert not any(map(digit_words, said(found["calls"], final=False)))
    assert "[NUMBER_1]" in json.dumps(found["calls"])
