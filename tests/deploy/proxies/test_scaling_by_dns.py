"""`docker compose up --scale`: HAProxy with its shipped template finds a fourth replica by DNS, without an edit."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.served import free_port
from tests.support.deployment.edge import listen, need, wait_until
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell
from tutti_asr_lab.trials.proxies import Running

QUESTION_AT, TYPE_A, CLASS_IN, TTL_S = 12, 1, 1, 1
POINTER_TO_NAME = 0xC00C
ANSWERED, NO_NAME = 0x8580, 0x8583  # flags of an authoritative answer


class NameServer:
    """Answers queries of A records over UDP on a free loopback port; `addresses` by name may change at any time."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.queries = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, name="dns")
        self._thread.start()

    def close(self) -> None:
        """Stop it."""
        self._socket.sendto(b"", self._socket.getsockname())  # an empty query ends the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            self.queries += 1
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        """Return the answer to the first question; additional records of the query are left out."""
        labels, at = [], QUESTION_AT
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode())
            at += 1 + length
        question, (kind,) = query[QUESTION_AT : at + 5], struct.unpack_from("!H", query, at + 1)
        known = self.addresses.get(labels[0])
        records = (known or []) if kind == TYPE_A else []
        head = struct.pack("!2sHHHHH", query[:2], NO_NAME if known is None else ANSWERED, 1, len(records), 0, 0)
        answers = (
            struct.pack("!HHHIH4s", POINTER_TO_NAME, TYPE_A, CLASS_IN, TTL_S, 4, socket.inet_aton(address))
            for address in records
        )
        return head + question + b"".join(answers)


Start = Callable[..., LiveServer]
HOSTS = [f"127.0.0.{number}" for number in range(2, 6)]  # as containers: other addresses, the same port


@pytest.fixture
def names() -> Iterator[NameServer]:
    with contextlib.closing(NameServer(replica=[])) as found:
        yield found


@contextlib.contextmanager
def templated(names: NameServer, port: int, tmp_path: Path) -> Iterator[Running]:
    """Run HAProxy with its shipped template, this name server, and replicas on this port."""
    proxy = need("haproxy")
    text = proxy.config.read_text()
    for old, new in (
        ("    parse-resolv-conf\n", f"    nameserver test {names.host}\n"),
        ("replica:8080", f"replica:{port}"),
        ("check inter 1s fastinter 500ms downinter 1s", "check inter 100ms"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    config = tmp_path / "haproxy.cfg"
    config.write_text(text)
    with replace(proxy, config=config, in_front_of=lambda given, _: given).running([]) as running:
        yield running


def sessions(servers: list[LiveServer]) -> list[int]:
    return [len(server.replica.sessions) for server in servers]


def test_a_fourth_replica_gets_streams_and_a_removed_name_cuts_none(
    live_server: Start, names: NameServer, tmp_path: Path
) -> None:
    port = free_port()
    servers = [live_server(host=host, port=port) for host in HOSTS]
    names.addresses["replica"] = HOSTS[:3]
    with templated(names, port, tmp_path) as proxy, contextlib.ExitStack() as opened:
        wait_until(lambda: _reachable(proxy, servers[:3], opened))
        assert not sessions(servers)[3]
        names.addresses["replica"] = HOSTS
        wait_until(lambda: _reachable(proxy, servers, opened))
        names.addresses["replica"] = HOSTS[1:]
        client = opened.enter_context(listen(proxy))
        client.send(spell("still here"))
        assert transcript(client.finish()) == "still here"
        asked, before = names.queries, sessions(servers)[0]
        wait_until(lambda: names.queries >= asked + 3)
        assert sessions(servers)[0] == before >= 1, "its streams go on"


def _reachable(proxy: Running, servers: list[LiveServer], opened: contextlib.ExitStack) -> bool:
    """Open a stream, and return whether each of these servers has one."""
    with contextlib.suppress(Exception):  # before the first answer of DNS there is no replica
        opened.enter_context(listen(proxy))
    return min(sessions(servers)) > 0
