"""A DNS server for one name, whose addresses a test changes while a proxy runs."""

from __future__ import annotations

import socket
import struct
import threading

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
