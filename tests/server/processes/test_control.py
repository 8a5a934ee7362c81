"""The control channel: requests, errors, descriptors, large messages and the end of the other side."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest

from model.errors import ModelError
from server.errors import EngineDead, ServerFull, TooManyOpenings, UnknownModel
from server.processes import messages
from server.processes.control import ChannelClosed, ControlChannel, DescriptorsLost, Parcel

WITHIN_S = 5.0


class Side:
    """One end of a channel with what it received."""

    def __init__(self, end: socket.socket, answer: Callable[[Parcel], Parcel]) -> None:
        self.taken: list[Parcel] = []
        self.closed = 0
        self._answer = answer
        self.channel = ControlChannel(
            end, messages.OF_PROCESSES, answer=self._respond, take=self.taken.append, on_closed=self._on_closed
        )

    async def _respond(self, parcel: Parcel) -> Parcel:
        await asyncio.sleep(0)
        return self._answer(parcel)

    def _on_closed(self) -> None:
        self.closed += 1


def refuses(parcel: Parcel) -> Parcel:
    raise AssertionError(f"not asked: {parcel}")


@asynccontextmanager
async def both(answer: Callable[[Parcel], Parcel] = refuses) -> AsyncIterator[tuple[Side, Side]]:
    """Two joined ends; `answer` is the second one's."""
    one, other = socket.socketpair()
    sides = Side(one, refuses), Side(other, answer)
    try:
        yield sides
    finally:
        for side in sides:
            side.channel.close()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not done():  # noqa: ASYNC110 - the kernel decides
            await asyncio.sleep(0.001)


async def test_messages_arrive_in_order_and_answers_belong_to_their_requests() -> None:
    def answer(parcel: Parcel) -> Parcel:
        return Parcel(parcel.message.engine)

    async with both(answer) as (one, other):
        one.channel.tell(messages.Load(1, 1))
        one.channel.tell(messages.Load(2, 2))
        answers = await asyncio.gather(*(one.channel.request(messages.Connect(f"model {i}")) for i in range(50)))
        assert answers == [f"model {i}" for i in range(50)]
        assert [parcel.message.connections for parcel in other.taken] == [1, 2]


async def test_a_message_larger_than_the_socket_buffer_arrives_whole() -> None:
    data = os.urandom(3_000_000)
    async with both(lambda _: Parcel(data)) as (one, other):
        one.channel.tell(messages.Begin(data))
        answer = await asyncio.wait_for(one.channel.request(messages.Metrics()), WITHIN_S)
        assert answer == data
        assert other.taken[0].message.settings == data


async def test_descriptors_travel_with_their_message() -> None:
    async with both() as (one, other):
        pipes = [os.pipe() for _ in range(20)]
        for number, (_, write) in enumerate(pipes):
            one.channel.tell(messages.Accepted(f"port {number}"), (write,))
            one.channel.tell(messages.Load(number, 0))
        await until(lambda: len(other.taken) == 40)
        for number, parcel in enumerate(p for p in other.taken if isinstance(p.message, messages.Accepted)):
            (write,) = parcel.descriptors
            assert not os.get_inheritable(write)
            os.write(write, b"%d" % number)
            os.close(write)
            assert os.read(pipes[number][0], 100) == b"%d" % number
            assert os.read(pipes[number][0], 100) == b"", "the sender has kept its copy"
            os.close(pipes[number][0])


class NoWeights(ModelError):
    """An error of a subclass, which arrives as its base class."""


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("error", "arrives"),
    [
        (ServerFull("all streams are taken"), ServerFull),
        (UnknownModel("no model is named 'x'"), UnknownModel),
        (TooManyOpenings("more than 5 openings per second", "198.51.100.7"), TooManyOpenings),
        (NoWeights("no weights in it"), ModelError),
        (ZeroDivisionError("division by zero"), EngineDead),
    ],
)
async def test_an_error_arrives_as_the_class_that_crosses(
    error: Exception, arrives: type[Exception], at_once: bool
) -> None:
    """A handler may raise when it is called, or later."""

    def answer(_: Parcel) -> Parcel:
        raise error

    async with both(answer) as (one, other):
        if at_once:
            other.channel._answer = answer  # type: ignore[assignment]
        with pytest.raises(arrives) as raised:
            await asyncio.wait_for(one.channel.request(messages.Metrics()), WITHIN_S)
        assert (type(raised.value), str(raised.value)) == (arrives, str(error))
        assert getattr(raised.value, "owner", "") == getattr(error, "owner", "")


async def test_waiting_requests_fail_when_the_other_side_ends() -> None:
    async with both() as (one, other):
        waiting = asyncio.ensure_future(one.channel.request(messages.Metrics()))
        await asyncio.sleep(0)
        other.channel.close()
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(waiting, WITHIN_S)
        assert one.closed == 1
        one.channel.tell(messages.StopNow())  # dropped
        read, write = os.pipe()
        with pytest.raises(ChannelClosed):
            await one.channel.exchange(messages.Metrics(), (write,))
        assert os.read(read, 1) == b"", "descriptors of a message that cannot be sent are closed"
        os.close(read)


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """No descriptor can be received in this block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_lost_descriptor_is_missing_in_its_own_message_alone() -> None:
    async with both() as (one, other):
        (lost_read, lost), (read, write) = os.pipe(), os.pipe()
        with no_free_descriptor():
            one.channel.tell(messages.Accepted("lost"), (lost,))
            one.channel.tell(messages.Load(1, 1))
            await until(lambda: len(other.taken) == 2)
        one.channel.tell(messages.Accepted("next"), (write,))
        await until(lambda: len(other.taken) == 3)
        first, load, last = other.taken
        assert (first.message.port, list(first.descriptors)) == ("lost", [])
        assert load.message == messages.Load(1, 1)
        (arrived,) = last.descriptors
        os.write(arrived, b"next")
        os.close(arrived)
        assert os.read(read, 100) == b"next"
        assert os.read(lost_read, 100) == b"", "no process keeps the connection open"
        os.close(read)
        os.close(lost_read)


async def test_a_request_or_an_answer_without_its_descriptor_fails_and_the_next_does_not() -> None:
    read, write = os.pipe()

    def answer(parcel: Parcel) -> Parcel:
        return Parcel(None, (write,) if isinstance(parcel.message, messages.Connect) else ())

    async with both(answer) as (one, _):
        given_read, given_write = os.pipe()
        with no_free_descriptor(), pytest.raises(DescriptorsLost, match="ulimit"):
            await asyncio.wait_for(one.channel.exchange(messages.Metrics(), (given_write,)), WITHIN_S)
        with no_free_descriptor(), pytest.raises(DescriptorsLost, match="ulimit"):
            await asyncio.wait_for(one.channel.request(messages.Connect("model x")), WITHIN_S)
        assert await asyncio.wait_for(one.channel.request(messages.Metrics()), WITHIN_S) is None
        for each in (read, given_read):
            assert os.read(each, 1) == b"", "both ends were closed"
            os.close(each)


class Unknown(msgspec.Struct, tag=True, frozen=True):
    """A message that no receiver knows."""


async def test_a_message_that_fails_does_not_keep_back_the_next() -> None:
    def answer(_: Parcel) -> Parcel:
        return Parcel(None)

    async with both(answer) as (one, other):
        received: list[object] = []

        def take(parcel: Parcel) -> None:
            received.append(parcel.message)
            if len(received) == 1:
                raise KeyError("a fault of the receiver")

        other.channel._take = take
        one.channel.tell(messages.Load(1, 1))
        one.channel.tell(Unknown())
        one.channel.tell(messages.Load(2, 2))
        await until(lambda: len(received) == 2)
        assert received[1] == messages.Load(2, 2)
        with pytest.raises(EngineDead):
            await asyncio.wait_for(one.channel.request(Unknown()), WITHIN_S)
        assert await asyncio.wait_for(one.channel.request(messages.Metrics()), WITHIN_S) is None
