"""`Continuity` over cut connections gives the messages of an uncut stream, in random scripts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clients.continuity_wire import Wire, check, play
from tests.support.clients.fake_recognition import FakeRecognition, Shape
from tutti_asr_client.messages import Results

SCRIPTS = 700
REWIND_S = 4.0
MODES = {"tickets": [("k",)], "plain": [()], "any": [("k",), ("new", "k"), ("other",), (), ("k", "new")]}

speech = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 700)),
    st.tuples(st.just("finalize"), st.sampled_from([None, 0])),
    st.tuples(st.just("configure"), st.sampled_from(["a", "b"])),
)
network = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 9)),
    st.tuples(st.just("arrive"), st.integers(1, 9)),
    st.tuples(st.just("tell"), st.integers(1, 20)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("drain")),
    st.tuples(st.just("drain")),
)
moves = st.lists(st.one_of(speech, speech, network, network, network), max_size=120)
shapes = st.sampled_from([Shape(), Shape(sample_bytes=1), Shape(channels=2), Shape(channels=2, multichannel=True)])
replicas = st.lists(st.sampled_from([("k",), ("k", "old"), ("old", "k"), ("other",), ()]), min_size=1, max_size=4)


@pytest.mark.parametrize("keys", [[("k",)], [()], None], ids=["tickets", "plain", "any"])
@settings(max_examples=300)
@given(data=st.data(), shape=shapes, before=moves, after=st.lists(network, max_size=40))
def test_cuts_at_any_point_give_the_messages_of_an_uncut_stream(
    keys: Any, data: st.DataObject, shape: Shape, before: list[Any], after: list[Any]
) -> None:
    chosen = data.draw(replicas, "replicas") if keys is None else keys
    wire = Wire(shape, lambda n: FakeRecognition(shape, chosen[n % len(chosen)]))
    play(wire, before, after)
    check(wire)
    assert wire.stream.lost_s == 0


MOVES = ("say", "say", "finalize", "configure", "send", "send", "arrive", "arrive", "tell", "tell", "cut", "drain")


def some_moves(rng: random.Random, kinds: tuple[str, ...], most: int) -> list[Any]:
    """Draw a script longer than those above, with much or little audio between two cuts."""
    given_ = {
        "say": lambda: rng.choice((1, 2, 160, 161, 320, rng.randrange(1, 700))),
        "finalize": lambda: rng.choice((None, 0)),
        "configure": lambda: f"term {rng.randrange(9)}",
        "add_context": lambda: " ".join(rng.choices("abcdefg", k=rng.randrange(1, 3))),
        "rewind": lambda: REWIND_S,
        "cut": None,
        "drain": None,
    }
    moves_ = []
    for _ in range(rng.randrange(most)):
        kind = rng.choice(kinds)
        make = given_.get(kind, lambda: rng.randrange(1, 10))
        moves_.append((kind,) if make is None else (kind, make()))
    return moves_


def played(keys: list[Any], kinds: tuple[str, ...] = MOVES, most: int = 120, rewind_s: float = 0.0) -> Iterator[Wire]:
    """Play random scripts and check the messages; give each one's connections."""
    for seed in range(SCRIPTS):
        rng = random.Random(seed)
        shape = rng.choice([Shape(), Shape(), Shape(sample_bytes=1), Shape(channels=2, multichannel=True)])
        wire = Wire(shape, lambda n, shape=shape: FakeRecognition(shape, keys[n % len(keys)]), rewind_s=rewind_s)
        play(wire, some_moves(rng, kinds, most), some_moves(rng, MOVES[4:], 40))
        try:
            check(wire)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        yield wire


@pytest.mark.parametrize("mode", MODES)
def test_cuts_in_long_scripts_give_the_messages_of_an_uncut_stream(mode: str) -> None:
    for wire in played(MODES[mode]):
        assert wire.stream.lost_s == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_another_speaker_said_counts_as_on_one_connection(mode: str) -> None:
    """In scripts of less than 30 s, after which it would end: a replay without a ticket extends it."""
    for wire in played(MODES[mode], (*MOVES, "add_context", "add_context"), 60):
        assert wire.stream.lost_s == 0


def test_a_rewind_after_cuts_reaches_as_far_back_as_on_one_connection() -> None:
    for wire in played([()], (*MOVES, "rewind", "say"), rewind_s=REWIND_S):
        check_rewinds(wire)
        assert wire.stream.lost_s == 0


def check_rewinds(wire: Wire) -> None:
    """Check that each answer has the last words of the finals so far, and all those of the seconds asked for."""
    sizes = [len(said) if isinstance(said, bytes) else 0 for said in wire.script]
    asked_s = [
        wire.shape.seconds(sum(sizes[:at]))
        for at, said in enumerate(wire.script)
        if isinstance(said, str) and '"Rewind"' in said
    ]
    for channel in range(wire.stream.shape.transcripts):
        words: list[Any] = []
        due = iter(asked_s)
        for message in wire.received:
            if not isinstance(message, Results) or not message.is_final or message.channel_index[0] != channel:
                continue
            if not message.correction:
                words += message.words
                continue
            since_s = next(due) - REWIND_S
            left = words[: len(words) - len(message.words)]
            assert words[len(left) :] == list(message.words)
            assert not left or left[-1].end <= since_s + 0.001
