"""Typing suggestions: the shipped model's scores, one state per user, batched equals alone, what a client gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from examples.typing_suggestions import BEGIN_MARK, END, LETTERS, LanguageModel, Pieces, application
from tests.support.streams.random_joins import alone, together

MODEL = LanguageModel()


def typed(socket: WebSocketTestSession, text: str) -> dict[str, object]:
    socket.send_text(text)
    answer: dict[str, object] = socket.receive_json()
    return answer


def test_batched_equals_alone_with_random_joins() -> None:
    dice = np.random.default_rng(5)
    texts = [dice.integers(0, len(MODEL.pieces), (length, 1), np.int32) for length in dice.integers(1, 12, 40)]
    found = together(MODEL.slots(9, 7), texts, seed=6)
    for text, rows in zip(texts, found, strict=True):
        assert np.array_equal(rows, alone(MODEL.slots(1, 1), text))


def likelihood(text: str) -> float:
    """Return the log-probability of a text and its end."""
    pieces = np.array([*(piece for word in text.split() for piece in MODEL.pieces.of(word)), END], np.int32)
    rows = alone(MODEL.slots(1, 1), np.array([[END], *pieces[:-1, None]], np.int32))
    log_probs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return float(log_probs[np.arange(len(pieces)), pieces].sum())


def test_a_sentence_is_likelier_than_its_words_in_another_order() -> None:
    for text in ("good morning my friend", "the weather is very nice today", "where is my order"):
        assert likelihood(text) > likelihood(" ".join(reversed(text.split()))) + 3


def test_suggestions_continue_the_unfinished_word_after_the_finished_ones() -> None:
    with TestClient(application(MODEL)) as client, client.websocket_connect("/type?deadline_ms=10000") as socket:
        first = typed(socket, "Good mor")
        assert first == {"suggestions": first["suggestions"], "late": False}
        assert "morning" in str(first["suggestions"])
        after = typed(socket, "ning. ")["suggestions"]
        assert after == typed(socket, "")["suggestions"]
        with client.websocket_connect("/type") as fresh:
            assert typed(fresh, "")["suggestions"] == after  # a period begins a sentence


def test_two_users_do_not_change_each_others_suggestions() -> None:
    texts = {"a": "the old man and the ", "b": "turn the lights "}
    with TestClient(application(MODEL)) as client:
        single = {}
        for name, text in texts.items():
            with client.websocket_connect("/type") as socket:
                single[name] = typed(socket, text)["suggestions"]
        with client.websocket_connect("/type") as a, client.websocket_connect("/type") as b:
            for one, other in zip(texts["a"].ljust(30), texts["b"].ljust(30), strict=True):
                a.send_text(one)
                b.send_text(other)
            answers = [[socket.receive_json()["suggestions"] for _ in range(30)] for socket in (a, b)]
        for name, found in zip(texts, answers, strict=True):
            assert found[len(texts[name]) - 1] == single[name]


def test_what_cannot_be_served_is_refused() -> None:
    with TestClient(application(MODEL, users=1)) as client:
        with client.websocket_connect("/type") as socket:
            assert typed(socket, "x" * 101)["error"] == (
                "101 characters in a message, the most are 100: send it in parts"
            )
            assert "suggestions" in typed(socket, "x")
            with client.websocket_connect("/type") as second, pytest.raises(WebSocketDisconnect) as refused:
                second.receive_json()
            assert (refused.value.code, refused.value.reason) == (1013, "all 1 slots are in use")
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/type?deadline_ms=0"):
            pass


ALONE = ("", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS))
PIECES = Pieces([*ALONE, "_th", "_the", "er", "re"])


def spelled(word: str) -> list[str]:
    return [PIECES.symbols[number] for number in PIECES.of(word)]


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("the", ["_the"]),
        ("there", ["_the", "re"]),
        ("other", ["_o", "t", "h", "er"]),
        ("err", ["_e", "r", "r"]),
        ("x", ["_x"]),
        ("naïve", ["_n", "a", "v", "e"]),
        ("<unk>", ["_u", "n", "k"]),
        ("42", []),
        ("", []),
    ],
)
def test_the_longest_piece_comes_next(word: str, pieces: list[str]) -> None:
    assert spelled(word) == pieces


@given(st.text(LETTERS, min_size=1))
def test_pieces_can_be_joined_to_the_word(word: str) -> None:
    assert "".join(spelled(word)) == BEGIN_MARK + word


@pytest.mark.parametrize("symbols", [ALONE[1:], ALONE[:-1], (*ALONE, "a"), ("a", "")])
def test_pieces_that_do_not_spell_every_word_are_refused(symbols: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="lack a letter, or contain a duplicate"):
        Pieces(symbols)
