"""Listening sockets, and the choice of a front end."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import ExitStack

import pytest

from server.configuration.addresses import bound
from server.processes.front_ends import Share, least_loaded
from server.processes.listeners import Listener


def test_the_front_end_with_the_fewest_connections_is_chosen() -> None:
    shares = {1: Share(reported=5), 2: Share(reported=3, received=7, handed=9), 3: Share(reported=6)}
    assert least_loaded(shares.items()) == 1
    assert least_loaded([]) is None


def test_connections_that_a_report_does_not_have_yet_count() -> None:
    """200 connections over four front ends, whose reports come late and in between: no two differ by more than 2."""
    rng = random.Random(1)
    shares = {number: Share() for number in range(4)}
    received = dict.fromkeys(shares, 0)
    for _ in range(200):
        number = least_loaded(shares.items())
        assert number is not None
        shares[number].handed += 1
        if rng.random() < 0.3:  # a front end reports what it has received so far
            reporter = rng.choice(list(shares))
            received[reporter] = rng.randint(received[reporter], shares[reporter].handed)
            shares[reporter].reported = shares[reporter].received = received[reporter]
    handed = [share.handed for share in shares.values()]
    assert max(handed) - min(handed) <= 2
    assert sum(handed) == 200


async def test_each_accepted_connection_is_handed_on() -> None:
    descriptors: list[int] = []
    listener = Listener(bound("127.0.0.1", 0), descriptors.append)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port))
    listener.start()
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", listener.port))) for _ in range(70)]
        async with asyncio.timeout(20):
            while len(descriptors) < len(clients):  # noqa: ASYNC110 - the kernel decides
                await asyncio.sleep(0.001)
        served = [stack.enter_context(socket.socket(fileno=descriptor)) for descriptor in descriptors]
        assert {end.getpeername() for end in served} == {client.getsockname() for client in clients}
        listener.close()
