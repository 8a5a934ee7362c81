"""Forged recordings of a call: whatever was changed, added or cut off is named, and ordinary messages are not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from server.receipts.keys import ReceiptKeys
from server.receipts.receipt import message_digest
from server.receipts.recorded import BadReceipt, Recorded, unsigned_parts
from server.receipts.verification import check_recorded
from server.tools.replay import read_stored
from tests.support.servers.live_server import Frame, LiveServer
from tests.support.servers.receipted import record, with_keys
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell

Call = tuple[list[Frame], ReceiptKeys]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """The messages of a call of three sentences, and the key that signed them."""
    path, keys = with_keys(tmp_path_factory.mktemp("keys"))
    texts = ("hello there this is one", "and here is two", "now a third sentence")
    audio = np.concatenate([part for text in texts for part in (spell(text), silence(0.9))])
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=16)
    with LiveServer(decoder=decoder, receipt_key_file=path) as server:
        options = {"interim_results": "true", "vad_events": "true", "step_results": "true", "smart_format": "true"}
        yield record(server, audio, **options), keys


def copy(frames: list[Frame]) -> list[Frame]:
    messages: list[Frame] = json.loads(json.dumps(frames))
    return messages


def signed(frames: list[Frame]) -> list[int]:
    """Return the positions of messages with receipts."""
    return [position for position, frame in enumerate(frames) if "receipt" in frame]


def differences(frames: list[Any], keys: ReceiptKeys) -> list[str]:
    return [str(difference) for difference in check_recorded(Recorded.of_messages(frames), keys)]


def test_messages_as_sent_have_no_difference_and_their_unsigned_kinds_are_counted(call: Call) -> None:
    frames, keys = call
    assert differences(frames, keys) == []
    parts = unsigned_parts(Recorded.of_messages(frames))
    interim = sum(frame["type"] == "Results" and not frame["is_final"] for frame in frames)
    assert f"{interim} interim results" in parts
    assert "tutti (times of steps)" in parts


def test_a_client_may_write_numbers_as_javascript_does(call: Call) -> None:
    """1.0 becomes 1, keys may stand in another order."""

    def rewritten(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rewritten(value[name]) for name in reversed(value)}
        if isinstance(value, list):
            return [rewritten(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    frames, keys = call
    assert differences(rewritten(frames), keys) == []


def changed_final(change: Callable[[Frame], Any]) -> Callable[[list[Frame]], None]:
    return lambda frames: change(frames[signed(frames)[1]])


def changed_end(change: Callable[[Frame], Any]) -> Callable[[list[Frame]], None]:
    return lambda frames: change(frames[-1])


def first_alternative(frame: Frame) -> dict[str, Any]:
    alternative: dict[str, Any] = frame["channel"]["alternatives"][0]
    return alternative


def claim(frame: Frame, **fields: Any) -> Frame:
    """Return a copy of a final with other words and no receipt."""
    forged = {name: value for name, value in copy([frame])[0].items() if name != "receipt"} | fields
    first_alternative(forged)["transcript"] = "i agree to pay one million"
    return forged


def with_reused_receipt(frames: list[Frame]) -> None:
    original = frames[signed(frames)[0]]
    frames.insert(signed(frames)[0] + 1, claim(original) | {"receipt": original["receipt"]})


def cut_off(frames: list[Frame]) -> None:
    del frames[signed(frames)[1] + 1 :]


def exchanged(frames: list[Frame]) -> None:
    first, second = signed(frames)[1:3]
    frames[first], frames[second] = frames[second], frames[first]


def with_a_flipped_signature(frame: Frame) -> None:
    receipt = frame["receipt"]
    frame["receipt"] = receipt[:-2] + ("A" if receipt[-2] != "A" else "B") + receipt[-1]


FORGERIES: dict[str, tuple[Callable[[list[Frame]], Any], str]] = {
    "a final without a receipt": (lambda f: f.insert(1, claim(f[signed(f)[0]])), "not signed: the final 'i agree"),
    "a receipt used twice": (with_reused_receipt, "not signed: the final 'i agree"),
    "a correction": (lambda f: f.append(claim(f[signed(f)[0]], correction=True)), "not signed: the final 'i agree"),
    "a message of an unknown type": (
        lambda f: f.append({"type": "Correction"}),
        "not signed: the message 'Correction'",
    ),
    "a message that is no object": (lambda f: f.append("i agree"), "not signed: the message 'i agree'"),
    "a receipt that is no text": (lambda f: f.append(claim(f[0], receipt=1)), "not signed: the final 'i agree"),
    "a second Metadata": (lambda f: f.append({"type": "Metadata", "duration": 9.0}), "not signed: the message 'Meta"),
    "the end cut off": (cut_off, "end of the stream: "),
    "another order": (exchanged, "order of finals: receipt 2 stands where 1 is expected"),
    "a final left out": (lambda f: f.pop(signed(f)[1]), "order of finals: "),
    "a signature": (changed_final(with_a_flipped_signature), "signature: receipt 1 is not signed by its key"),
    "is_final": (changed_final(lambda m: m.update(is_final=False)), "message: "),
    "speech_final": (changed_final(lambda m: m.update(speech_final=not m["speech_final"])), "message: "),
    "from_finalize": (changed_final(lambda m: m.update(from_finalize=True)), "message: "),
    "the model": (changed_final(lambda m: m["metadata"].update(model_uuid="another")), "message: "),
    "a confidence": (changed_final(lambda m: first_alternative(m).update(confidence=0.0123)), "message: "),
    "another alternative": (
        changed_final(lambda m: m["channel"]["alternatives"].append({"transcript": "i agree", "words": []})),
        "message: ",
    ),
    "a field of a word": (changed_final(lambda m: first_alternative(m)["words"][0].update(speaker=1)), "message: "),
    "a field": (changed_final(lambda m: m.update(sentiment="positive")), "message: "),
    "a word": (changed_final(lambda m: first_alternative(m)["words"][0].update(word="or")), "words: "),
    "the start": (changed_final(lambda m: m.update(start=m["start"] + 1)), "words: "),
    "the duration of Metadata": (changed_end(lambda m: m.update(duration=1.0)), "message: "),
    "created of Metadata": (changed_end(lambda m: m.update(created="2020-01-01T00:00:00Z")), "message: "),
    "the request id of Metadata": (changed_end(lambda m: m.update(request_id="another")), "message: "),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(call: Call, name: str) -> None:
    frames, keys = copy(call[0]), call[1]
    change, problem = FORGERIES[name]
    change(frames)
    assert any(difference.startswith(problem) for difference in differences(frames, keys))


def test_the_id_of_another_connection_is_named_as_unsigned(call: Call) -> None:
    """A resumed stream sends finals with the id of its second connection under the same receipt."""
    frames, keys = copy(call[0]), call[1]
    frames[signed(frames)[0]]["metadata"]["request_id"] = "another"
    assert differences(frames, keys) == []
    assert "metadata.request_id 'another' of 1 finals" in unsigned_parts(Recorded.of_messages(frames))


def test_a_copy_with_the_id_of_another_connection_counts_once(call: Call) -> None:
    frames, keys = copy(call[0]), call[1]
    again = copy([frames[signed(frames)[0]]])[0]
    again["metadata"]["request_id"] = "another"
    again["tutti"]["step_ms"] = 99.0
    frames.insert(signed(frames)[0] + 1, again)
    assert differences(frames, keys) == []


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = [leaf for name, item in items for leaf in leaves(item, (*path, name))]
    yield from inner or [path]


@given(data=st.data())
def test_any_changed_value_of_a_signed_message_is_a_difference_or_named(call: Call, data: st.DataObject) -> None:
    frames, keys = copy(call[0]), call[1]
    before = differences(frames, keys), unsigned_parts(Recorded.of_messages(frames))
    message = frames[data.draw(st.sampled_from(signed(frames)))]
    *parents, last = data.draw(
        st.sampled_from([path for path in leaves(message) if path[0] not in ("receipt", "tutti")])
    )
    holder: Any = message
    for name in parents:
        holder = holder[name]
    value = data.draw(st.sampled_from([None, 7, 0.125, "another", [], {}]))
    assume(holder[last] != value)
    holder[last] = value
    assert (differences(frames, keys), unsigned_parts(Recorded.of_messages(frames))) != before


def test_the_digest_of_a_message_is_that_of_the_documents(call: Call) -> None:
    """docs/receipts.md gives the definition: RFC 8785 without the receipt, the report and the connection's id."""
    message = {"type": "Results", "start": 1.0, "metadata": {"request_id": "x", "model_uuid": "m"}, "receipt": "r"}
    expected = '{"metadata":{"model_uuid":"m"},"start":1,"type":"Results"}'
    assert message_digest(message) == hashlib.sha256(expected.encode()).hexdigest()


def test_a_file_with_a_byte_order_mark_is_read_and_other_encodings_are_refused(call: Call, tmp_path: Path) -> None:
    path, text = tmp_path / "call.jsonl", "\n".join(map(json.dumps, call[0]))
    path.write_text(text, encoding="utf-8-sig")
    assert check_recorded(read_stored(path, path).recorded, call[1]) == []
    for encoding in ("utf-16", "latin-1"):
        path.write_text(text.replace("hello", "h\xe9llo"), encoding=encoding)
        with pytest.raises(BadReceipt, match="not UTF-8 text"):
            read_stored(path, path)
