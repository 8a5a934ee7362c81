"""Parameters of the port of Wyoming: masked numbers, key terms of a file, refusals, and no port unless it is set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.ctc.beam import BeamDecoder
from server.errors import SettingsError
from server.protocols.wyoming import endpoint
from tests.support.protocols.wyoming_client import AUDIO_STOP, WyomingClient, chunk, packed, utterance
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.mishearing import AUDIO, MishearingModel
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell

Start = Callable[..., LiveServer]


def test_numbers_are_masked_on_a_port_with_redact(live_server: Start) -> None:
    card = "four five three nine one four eight eight zero three four three six four six seven"
    server = live_server(wyoming_port="127.0.0.1:0?redact=pci")
    with WyomingClient(server.wyoming_port) as client:
        client.send(utterance(np.concatenate([spell(f"my card is {card} thanks"), silence(0.5)])))
        events = client.until("transcript-stop")
    assert events[-2]["text"] == "my card is [CREDIT_CARD_1] thanks"
    assert not any("nine" in str(event) for event in events)


@pytest.fixture(scope="module")
def beam() -> BeamDecoder:
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=4)
    decoder.warm_up()
    return decoder


def test_names_of_the_client_and_of_the_file_are_key_terms(
    live_server: Start, beam: BeamDecoder, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# entities\n\nporch fan\n")
    server = live_server(model=MishearingModel(), decoder=beam, wyoming_port=f"0?keyterms={names}")

    def said(**asked: Any) -> str:
        with WyomingClient(server.wyoming_port) as client:
            client.send(packed("transcribe", language="en", **asked) + chunk(AUDIO) + packed(AUDIO_STOP))
            return client.transcript()

    assert said() == "the qite flew"
    assert said(transcript_names=["kite"]) == "the kite flew"
    assert said(transcript_terms=["kite", "№"], transcript_names=["x" * 3_000]) == "the kite flew"
    assert server.metric('tutti_messages_skipped_total{protocol="wyoming"}') == 1
    names.write_text("porch fan\nkite\n")
    assert said() == "the kite flew"
    names.unlink()
    assert said() == "the kite flew", "the terms of the last readable file stay"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ("encoding=opus", "wyoming_port: 'encoding' is not a parameter; valid: finals, grammar, keyterms, redact"),
        ("redact=everything", "wyoming_port: redact"),
        ("finals=best", "wyoming_port: finals: 'best' is not one of fast, context, accurate"),
        ("keyterms=/no/such/file", "wyoming_port: keyterms: cannot read /no/such/file"),
        ("grammar=nope", "wyoming_port: grammar: the model 'spelling' does not have 'nope'"),
        ("finals=accurate", "wyoming_port: finals: accurate is not available for model 'spelling'"),
    ],
)
def test_a_parameter_of_the_port_that_is_not_valid_ends_the_start(parameters: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        LiveServer(wyoming_port=f"0?{parameters}")
    assert str(refused.value).startswith(why)


def test_the_port_is_not_there_unless_it_is_set(live_server: Start) -> None:
    assert "wyoming_port" not in live_server().application.ports
    assert endpoint.SETTING == "wyoming_port"
