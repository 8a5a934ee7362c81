"""Real frames match `server/asyncapi.yaml`, which has every message type, parameter and close code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
import yaml
from starlette.routing import WebSocketRoute
from websockets.sync.client import connect

from server.errors import CLOSES, REFUSALS, TicketCode
from server.protocols.deepgram import messages
from server.protocols.deepgram.messages import Action
from server.protocols.deepgram.parameters import PARAMETERS, Schema
from server.protocols.deepgram.resumable import Resume, Resumed, ResumeRefused, TicketOut
from server.protocols.freeswitch.adapter import CallFrame
from server.protocols.openai.messages import ServerEvent
from server.protocols.twilio.adapter import CallEvent
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]
FROM_CLIENT, TO_CLIENT = "hear", "tell"
FILE = Path(__file__).parents[3] / "server" / "asyncapi.yaml"
Frame = dict[str, Any]


class AsyncApiDocument:
    """The document; `seen` collects the schemas that frames were checked against."""

    def __init__(self, text: str | None = None) -> None:
        self.content = yaml.safe_load(text or FILE.read_text())
        self.schemas = self.content["components"]["schemas"]
        self.seen: set[str] = set()

    def messages(self, operation: str) -> set[str]:
        """Names of the messages of an operation."""
        return {item["$ref"].rsplit("/", 1)[1] for item in self.content["operations"][operation]["messages"]}

    def types(self, operation: str) -> set[str]:
        """Return the valid values of `type` in the JSON frames of one direction of `/v1/listen`."""
        names = {name[0].upper() + name[1:] for name in self.messages(operation)} - {"Audio"}
        assert all(self.schemas[name]["properties"]["type"]["const"] == name for name in names)
        return names

    def check(self, operation: str, text: str | bytes | Frame) -> Frame:
        """Check a frame of `/v1/listen` and return it. Raises: jsonschema's ValidationError, AssertionError."""
        frame: Frame = text if isinstance(text, dict) else json.loads(text)
        assert frame["type"] in self.types(operation), frame
        self.validate(frame["type"], frame)
        return frame

    def validate(self, schema: str, frame: Any) -> None:
        """Check a frame against a schema. Raises: jsonschema's ValidationError."""
        self.seen.add(schema)
        whole = {"$ref": f"#/components/schemas/{schema}", "components": self.content["components"]}
        jsonschema.validate(
            frame, whole, jsonschema.Draft202012Validator, format_checker=jsonschema.FormatChecker(["uuid"])
        )


@pytest.fixture
def document() -> AsyncApiDocument:
    return AsyncApiDocument()


def converse(server: LiveServer, document: AsyncApiDocument, *said: bytes | dict[str, Any], **query: Any) -> list[dict]:
    """Run a live stream, check every frame of both sides, and return the frames of the server."""
    with server.listen(**query) as client:
        for item in said:
            if isinstance(item, dict):
                document.check(FROM_CLIENT, item)
                client.socket.send(json.dumps(item))
            else:
                client.send(item)
        frames, _, _ = client.rest()
    return [document.check(TO_CLIENT, frame) for frame in frames]


def test_real_frames_of_every_type_match(live_server: Start, document: AsyncApiDocument) -> None:
    server = live_server()
    speech = (spell("hello there"), silence(1.5), spell("again"))
    close = {"type": "CloseStream"}
    everything = {
        "interim_results": "true", "vad_events": "true", "utterance_end_ms": 1_000, "smart_format": "true",
        "step_results": "true", "stable_words": "true", "latency": "true", "keyterm": "hello",
    }  # fmt: skip
    alive, flush = {"type": "KeepAlive"}, {"type": "Finalize"}
    terms = (
        {"type": "Configure", "keyterms": ["again"]},
        {"type": "Configure", "keyterms": None, "features": {"x": True}},
        {"type": "Context", "text": "Am I speaking to Ms. Kowalczyk?"},
        {"type": "Rewind", "seconds": 5},
    )
    too_many = {"type": "Configure", "keyterms": ["word " * 30]}
    stereo = {"channels": 2, "multichannel": "true"}
    converse(server, document, *speech, close)
    frames = converse(server, document, speech[0], alive, flush, *terms, too_many, *speech[1:], close, **everything)
    assert {"Results", "Metadata", "SpeechStarted", "UtteranceEnd"} <= {frame["type"] for frame in frames}
    assert {"ContextSuccess", "ContextFailure"} & {frame["type"] for frame in frames}
    assert {"ConfigureSuccess", "ConfigureFailure"} & {frame["type"] for frame in frames}
    converse(server, document, bytes(64_000), {"type": "Finalize", "channel": 1}, close, **stereo)
    converse(live_server(idle_timeout_s=0.3), document)  # silence, up to Metadata and 1011
    with server.listen() as client:
        client.socket.send('{"type":"Pause"}')
        document.check(TO_CLIENT, client.receive())
        client.finish()
    assert document.seen >= document.types(FROM_CLIENT) - {"Resume"} | {"Results", "Metadata", "Error"}


def test_real_frames_of_a_resumed_stream_match(live_server: Start, document: AsyncApiDocument) -> None:
    server = live_server()
    with server.listen(resumable="true") as client:
        client.send(spell("hello there"))
        client.send(silence(2.0))
        *_, ticket = client.until(lambda frame: document.check(TO_CLIENT, frame)["type"] == "Ticket")
        client.vanish()
    for said, answer in (
        ({"type": "Resume", "ticket": ticket["ticket"], "finals": 0, "cursor_s": 0.0}, "Resumed"),
        ({"type": "Resume", "ticket": "bm9uc2Vuc2U", "finals": 0, "cursor_s": 0.0}, "ResumeRefused"),
        ({"type": "Resume", "from_s": 1.5, "finals": 0}, "Resumed"),
    ):
        document.check(FROM_CLIENT, said)
        with server.listen(resumable="true") as client:
            client.socket.send(json.dumps(said))
            assert document.check(TO_CLIENT, client.receive())["type"] == answer
            for frame in client.finish():
                document.check(TO_CLIENT, frame)


def test_a_frame_that_is_not_as_described_does_not_pass(document: AsyncApiDocument) -> None:
    good = {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 1.5}
    document.check(TO_CLIENT, good)
    for bad in (good | {"more": 1}, good | {"channel": [0]}, {"type": "UtteranceEnd"}, good | {"last_word_end": "1"}):
        with pytest.raises(jsonschema.ValidationError):
            document.check(TO_CLIENT, bad)
    with pytest.raises(AssertionError):
        document.check(FROM_CLIENT, good)


def test_every_type_of_frame_is_described_with_every_field(document: AsyncApiDocument) -> None:
    structs = [
        shape for shape in vars(messages).values() if isinstance(shape, type) and issubclass(shape, msgspec.Struct)
    ]
    structs = [shape for shape in structs if shape not in get_args(Action)]
    structs += [TicketOut, Resumed, ResumeRefused]
    sent = {shape.__struct_config__.tag: shape for shape in structs if shape.__struct_config__.tag}
    assert set(sent) == document.types(TO_CLIENT)
    taken = {shape.__struct_config__.tag: shape for shape in (*get_args(Action), Resume)}
    assert set(taken) == document.types(FROM_CLIENT)
    assert set(document.schemas["ResumeRefused"]["properties"]["code"]["enum"]) == set(TicketCode)
    for name, shape in {**sent, **taken}.items():
        described = set(document.schemas[name]["properties"]) - {"type"}
        assert set(shape.__struct_encode_fields__) <= described, name
        required = {field.encode_name for field in msgspec.structs.fields(shape) if field.required}
        assert required <= set(document.schemas[name]["required"]), name
    assert set(messages.StepReport.__struct_encode_fields__) == set(document.schemas["StepReport"]["properties"])
    for name, told_shape in (
        ("RealtimeServerEvent", ServerEvent),
        ("TwilioTold", CallEvent),
        ("FreeSwitchTold", CallFrame),
    ):
        assert set(document.schemas[name]["properties"]) == set(told_shape.__struct_encode_fields__)


def as_text(schema: Schema) -> Schema:
    """Return a parameter's schema as in a query: booleans and constants are strings."""
    if "anyOf" in schema:
        parts = schema["anyOf"]
        return {"anyOf": [{"enum": ["true", "false"]} if p == {"type": "boolean"} else as_text(p) for p in parts]}
    if schema == {"type": "boolean"}:
        return {"$ref": "#/components/schemas/Switch"}
    return {"const": "false"} if schema == {"const": False} else schema


def test_parameters_are_those_of_the_parsers_table(document: AsyncApiDocument) -> None:
    query = document.schemas["ListenQuery"]["properties"]
    assert set(query) == {parameter.name for parameter in PARAMETERS}
    for parameter in PARAMETERS:
        described = dict(query[parameter.name])
        assert described.pop("description", "").startswith("Ours: ") == parameter.ours, parameter.name
        if "default" in described:
            assert parameter.default in (f"{described['default']}", f"{described['default']} ms")
            del described["default"]
        assert described == as_text(parameter.schema), parameter.name


def test_every_code_is_named(document: AsyncApiDocument) -> None:
    described = document.content["info"]["description"]
    codes = {close.code for close in CLOSES.values()} - {1006}  # a lost connection, without a close frame
    handshake_refusals = {
        "BadParameter", "NotAuthorized", "NotAllowed", "TooManyStreams", "ServerFull", "ServerDraining",
    }  # fmt: skip
    statuses = {refusal.status for error, refusal in REFUSALS.items() if error.__name__ in handshake_refusals}
    assert not [code for code in codes | statuses if str(code) not in described]


def test_every_socket_is_described_and_the_file_is_served(live_server: Start, document: AsyncApiDocument) -> None:
    server = live_server()
    answer = server.http.get("/asyncapi.yaml")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/yaml")
    assert yaml.safe_load(answer.text) == document.content
    served = {route.path for route in server.app.routes if isinstance(route, WebSocketRoute)}
    assert {channel["address"] for channel in document.content["channels"].values()} == served


def test_every_reference_resolves(document: AsyncApiDocument) -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found = document.content
                for part in node["$ref"].removeprefix("#/").split("/"):
                    found = found[part]
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(document.content)


def test_frames_of_the_other_protocols_match(live_server: Start, document: AsyncApiDocument) -> None:
    server = live_server()
    where = f"ws://{server.host}"
    with connect(f"{where}/vosk?sample_rate=16000", compression=None) as vosk:
        for command in ({"config": {"sample_rate": 16_000, "words": 1}}, spell("hi").tobytes(), {"eof": 1}):
            if isinstance(command, dict):
                document.validate("VoskCommand", command)
            vosk.send(command if isinstance(command, bytes) else json.dumps(command))
            if "config" not in command if isinstance(command, dict) else True:
                document.validate("VoskAnswer", json.loads(vosk.recv()))
    with connect(f"{where}/v1/realtime?intent=transcription", compression=None) as realtime:
        document.validate("RealtimeServerEvent", json.loads(realtime.recv()))
        for event in (
            {"type": "session.update", "session": {"type": "transcription"}},
            {"type": "input_audio_buffer.commit"},
        ):
            document.validate("RealtimeClientEvent", event)
            realtime.send(json.dumps(event))
            document.validate("RealtimeServerEvent", json.loads(realtime.recv()))
