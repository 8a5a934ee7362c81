"""Rules of every protocol: words for any split and timing, one close, whole conversations, damaged messages.

Those of Deepgram's results in detail are in `deepgram/test_deepgram_rules.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.protocols.features import control_text
from server.protocols.openai.messages import COMPLETED, DELTA
from server.streaming.adapter import Reject
from tests.support.clients.flux_wire_rules import check_flux
from tests.support.protocols.mutations import mutated
from tests.support.protocols.protocol_bench import ADAPTERS, PROTOCOLS, ProtocolBench, audio_message
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.streams.transport_bench import ConnectionBench

FRAMES_A_STREAM = 12
Frames = list[dict[str, Any]]
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


# Any audio, split and timing

CODES = {"client": 1000, "drain": 1012, "failure": 1011}
texts = st.lists(st.tuples(st.text("abcde", min_size=1, max_size=6), st.sampled_from([0.2, 0.7, 1.4])), max_size=4)


@dataclass(frozen=True)
class Case:
    """Words with pauses after them, the cuts of the audio into messages, and how the stream ends."""

    protocol: str
    said: list[tuple[str, float]]
    cuts: list[int]
    end: str

    def messages(self, *, whole: bool) -> Iterator[bytes | dict[str, Any]]:
        pcm = b"".join(spell(f"{text} ").tobytes() + silence(pause_s).tobytes() for text, pause_s in self.said)
        edges = [] if whole else sorted({2 * (cut % (len(pcm) // 2 + 1)) for cut in self.cuts} - {0, len(pcm)})
        for start, end in itertools.pairwise([0, *edges, len(pcm)]):
            if start < end:
                yield audio_message(self.protocol, pcm[start:end])


cases = st.builds(
    Case, st.sampled_from(PROTOCOLS), texts, st.lists(st.integers(0, 10**6), max_size=6), st.sampled_from(list(CODES))
)


def played(case: Case, data: st.DataObject | None = None) -> tuple[ProtocolBench, int]:
    """Run the case, each message answered at once; or split, framed and answered as drawn. Also return their number."""
    stream = ProtocolBench(case.protocol)
    bench, messages = stream.bench, list(case.messages(whole=data is None))
    bench.in_binary = data is not None and data.draw(st.booleans())

    async def script(_: ConnectionBench) -> None:
        stream.begin()
        for message in messages:
            bench.send(message)
            for _ in range(0 if data is None else data.draw(st.integers(0, 2))):
                await asyncio.sleep(0)
            bench.answer(None if data is None else data.draw(st.integers(0, 30)))
        for _ in range(10):
            await asyncio.sleep(0)
        if case.end == "client":
            stream.end()
        elif case.end == "drain":
            bench.stream.drain()
        else:
            bench.answer()
            bench.recognition.fail(ArithmeticError("secret"))

    bench.run(script)
    return stream, len(messages)


def check_whole(case: Case, frames: Frames, messages: int) -> None:
    """Check all frames of a connection by the rules of its protocol."""
    match case.protocol:
        case "flux":  # a drain in the silence before the end of a turn leaves it open
            check_flux([frame | {"request_id": "0" * 32} for frame in frames], open_turn=case.end == "drain")
        case "openai":
            texts: dict[str, str] = {}
            for frame in frames:
                if frame["type"] == DELTA:
                    texts[frame["item_id"]] = texts.get(frame["item_id"], "") + frame["delta"]
            done = [frame for frame in frames if frame["type"] == COMPLETED]
            assert [frame["transcript"] for frame in done] == [texts.get(frame["item_id"], "") for frame in done]
            committed = [frame["item_id"] for frame in frames if frame["type"].endswith(".committed")]
            assert committed == [frame["item_id"] for frame in done], "each is completed once, in their order"
            assert len({frame["event_id"] for frame in frames}) == len(frames)
        case "vosk":
            assert len(frames) in (messages, messages + 1), "an answer to each message, and the rest of the text"
            assert all(set(frame) in ({"partial"}, {"text"}, {"text", "result"}) for frame in frames)
        case "twilio":
            assert [frame["event"] for frame in (frames[0], frames[-1])] == ["start", "stop"]
            assert {frame["event"] for frame in frames[1:-1]} == {"transcript"}
        case _:
            assert [frame["type"] for frame in frames].count("Metadata") == 1


@settings(max_examples=150)
@given(cases, st.data())
def test_every_word_is_in_the_finals_once_for_any_split_and_timing(case: Case, data: st.DataObject) -> None:
    for stream, sent in (played(case), played(case, data)):
        transport = stream.bench.transport
        assert transport.closes == (stream.protocol != "openai" or case.end != "client")
        assert not transport.written_late
        if transport.closed is not None:
            assert transport.closed[0] == CODES[case.end]
        assert "secret" not in json.dumps(stream.bench.frames)
        if case.end != "failure":
            check_whole(case, stream.bench.frames, sent)
        if case.end == "client":
            found = "".join(re.findall("[a-z]", stream.texts()))
            assert found == "".join(text for text, _ in case.said)


# Damaged messages


async def converse(stream: ProtocolBench, frames: Iterator[str], damaged: list[str]) -> bool:
    """Play speech, damaged frames, and more speech if the stream is open then; return whether it was."""
    stream.begin()
    stream.say("ab", 1.2 if stream.protocol == "openai" else 0.0)  # a `clear` may follow there
    for frame in itertools.islice(frames, FRAMES_A_STREAM):
        damaged.append(frame)
        stream.send(frame)
        await asyncio.sleep(0)
        if not stream.is_open:
            return False
    if stream.protocol == "openai":
        stream.send({"type": "input_audio_buffer.clear"})
        stream.begin()
    stream.say("cd")
    stream.end()
    return True


def fuzz(protocol: str, count: int, seed: int) -> int:
    """Send this many damaged frames, over as many streams as it takes; return the number sent."""
    frames, sent = mutated(protocol, count, seed), 0
    while sent < count:
        stream, damaged, open_to_the_end = ProtocolBench(protocol), list[str](), False

        async def script(_: ConnectionBench, stream: ProtocolBench = stream, damaged: list[str] = damaged) -> None:
            nonlocal open_to_the_end
            open_to_the_end = await converse(stream, frames, damaged)

        stream.bench.run(script)
        last, closed = [frame[:300] for frame in damaged[-2:]], stream.bench.transport.closed
        assert "ab" in stream.texts(), last
        assert "cd" in stream.texts() or not open_to_the_end, last
        codes = (1000,) if protocol in ("listen", "resumable", "twilio") else (1000, 1008)
        assert closed is None or closed[0] in codes, (closed, last)
        sent += len(damaged)
    return sent


@each_protocol
def test_no_damaged_message_loses_a_word_or_raises(protocol: str) -> None:
    assert fuzz(protocol, 400, seed=1) >= 400


@pytest.mark.release
@pytest.mark.timeout(900)
@each_protocol
def test_no_damaged_message_of_many_loses_a_word_or_raises(protocol: str) -> None:
    """Over all protocols 240,000."""
    assert fuzz(protocol, 40_000, seed=2) >= 40_000


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(LEAVES, lambda tree: st.lists(tree, max_size=3) | st.dictionaries(st.text(max_size=8), tree))
FRAMES = st.text(max_size=40) | TREES.map(json.dumps) | st.binary(max_size=64)


@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
@given(frames=st.lists(FRAMES, max_size=6))
def test_no_client_frame_makes_an_adapter_raise(make: Callable[[], Any], frames: list[str | bytes]) -> None:
    adapter, _ = make()
    for frame in frames:
        actions = list(adapter.text(frame) if isinstance(frame, str) else adapter.binary(frame))
        assert all(len(action.why.encode()) <= 110 for action in actions if isinstance(action, Reject))


def test_an_object_with_fields_is_a_message_in_a_binary_frame() -> None:
    many = b'{%b"a":0}' % (b'"a":0,' * 2**17)  # which takes 100 times its size as objects
    for chunk in (b'{"type":"KeepAlive","x":"\xff"}', b'{"\xff":1}', many):
        assert control_text(chunk) == chunk.decode(errors="replace")


@given(st.binary() | st.sampled_from([b"}", b" }", b"}{}", b'"type":"\xc3', b'"a":' + b"[" * 2**20, bytes(2**20)]))
def test_other_bytes_after_a_brace_are_audio(rest: bytes) -> None:
    assert control_text(b"{" + rest) is None
