"""Tickets: sealed ones can be read; forged, truncated, foreign, expired or used ones are refused."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.access.keys import read_secrets
from server.coordination.limits import AHEAD_S, TICKET_TTL_S
from server.coordination.local import LocalCoordinator
from server.errors import SettingsError, TicketCode, TicketRefused
from server.recognition.saved_state import SavedStream
from server.resume import tickets
from server.resume.tickets import (
    KEY_BYTES,
    OVERHEAD_BYTES,
    Seal,
    Ticket,
    TicketService,
    Unsealed,
    new_key,
    read_keys,
    read_ticket,
    tenant_digest,
    write_ticket,
)
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.servers.fakes import FakeClock

ONE, TWO, THREE = (bytes([n]) * KEY_BYTES for n in (1, 2, 3))
TENANT = tenant_digest("somebody", [("encoding", "linear16")])

NUMBERS = {int: st.integers(0, 2**40), float: st.floats(0, 1e6)}


def saved(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type of a saved state."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return st.builds(kind, *(saved(hints[name]) for name in kind.__struct_fields__))
    parts = get_args(kind)
    if get_origin(kind) is tuple and parts[-1] is ...:
        return st.lists(saved(parts[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(saved, parts))
    return st.one_of(*map(saved, parts)) if parts else NUMBERS.get(kind, st.from_type(kind))


def blank(kind: Any) -> Any:
    """Return the least value of a type of a saved state."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(*map(blank, get_type_hints(kind).values()))
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return () if parts[-1] is ... else tuple(map(blank, parts))
    return None if parts else kind()


streams, SOME_STREAM = saved(SavedStream), blank(SavedStream)


def service(*keys: bytes, setup: tuple[str, ...] = ("model", "bf16"), clock: FakeClock | None = None) -> TicketService:
    clock = clock or FakeClock()
    use = LocalCoordinator(Settings(), clock, wall_clock=clock)
    return TicketService(list(keys), ttl_s=TICKET_TTL_S, setup=lambda: setup, clock=clock, use=use)


def read(where: TicketService, text: str, tenant: bytes = TENANT) -> Ticket:
    """Read a ticket and check that it was not used."""
    ticket = where.take(text, tenant)
    asyncio.run(where.refuse_if_used(ticket))
    return ticket


def issue(where: TicketService, stream: SavedStream | None = None, tenant: bytes = TENANT) -> Ticket:
    return where.issue(stream or SOME_STREAM, stream_id="first", tenant=tenant, openings=((),))


def code(where: TicketService, text: str, tenant: bytes = TENANT) -> TicketCode:
    with pytest.raises(TicketRefused) as refused:
        read(where, text, tenant)
    assert str(refused.value)
    return refused.value.code


@given(stream=streams)
def test_another_replica_reads_the_same_ticket(stream: SavedStream) -> None:
    here, there = service(ONE), service(TWO, ONE)
    ticket = issue(here, stream)
    assert there.take(here.write(ticket), TENANT) == ticket


@settings(max_examples=300)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_flipped_bit_is_refused(place: float, bit: int) -> None:
    here = service(ONE)
    sealed = bytearray(decoded(here.write(issue(here))))
    where = int(place * len(sealed))
    sealed[where] ^= 1 << bit
    assert code(here, encoded(bytes(sealed))) is (TicketCode.FORGED if where else TicketCode.VERSION)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_ticket_is_refused(share: float) -> None:
    here = service(ONE)
    text = here.write(issue(here))
    assert code(here, text[: int(share * len(text))]) in (TicketCode.FORGED, TicketCode.MALFORMED)


@given(text=st.text() | st.binary().map(lambda data: encoded(bytes([tickets.VERSION]) + data)))
def test_unsealed_text_is_refused(text: str) -> None:
    assert code(service(ONE), text) in (TicketCode.FORGED, TicketCode.MALFORMED, TicketCode.VERSION)


@given(plain=st.binary(max_size=200))
def test_sealed_bytes_that_are_not_a_ticket_are_refused(plain: bytes) -> None:
    header = bytes([tickets.VERSION])
    text = encoded(header + Seal([ONE]).close(plain, header))
    with pytest.raises(TicketRefused) as refused:
        read_ticket(text, Seal([ONE]))
    assert refused.value.code is TicketCode.MALFORMED


def test_a_ticket_of_an_unknown_key_is_refused_and_one_of_an_older_key_is_accepted() -> None:
    old, both, new = service(ONE), service(TWO, ONE), service(TWO)
    assert code(new, old.write(issue(old))) is TicketCode.FORGED
    assert both.take(old.write(issue(old)), TENANT).stream_id == "first"
    assert new.take(both.write(issue(both)), TENANT).stream_id == "first", "the first key seals"
    alone = service()
    assert alone.take(alone.write(issue(alone)), TENANT)
    assert code(service(), alone.write(issue(alone))) is TicketCode.FORGED


def test_a_ticket_belongs_to_its_caller_and_its_query() -> None:
    here = service(ONE)
    text = here.write(issue(here))
    for other in (
        tenant_digest("somebody else", [("encoding", "linear16")]),
        tenant_digest("somebody", [("encoding", "mulaw")]),
        tenant_digest("somebody", [("encoding", "linear16"), ("keyterm", "x")]),
        tenant_digest("", []),
    ):
        assert code(here, text, other) is TicketCode.TENANT


def test_order_of_a_query_counts_only_among_values_of_one_parameter() -> None:
    query = [("keyterm", "a"), ("keyterm", "b"), ("model", "m")]
    assert tenant_digest("x", query) == tenant_digest("x", [query[2], *query[:2]])
    assert tenant_digest("x", query) != tenant_digest("x", [query[1], query[0], query[2]])
    assert tenant_digest("x", [("a", "bc")]) != tenant_digest("x", [("ab", "c")])


def test_a_tenant_with_a_lone_surrogate_has_its_own_digest() -> None:
    assert tenant_digest("\ud800", []) not in (tenant_digest("\ud801", []), tenant_digest(r"\ud800", []))


def test_another_model_is_refused() -> None:
    here, there = service(ONE), service(ONE, setup=("model", "fp32"))
    assert code(there, here.write(issue(here))) is TicketCode.MODEL


def test_an_expired_ticket_is_refused_and_one_from_slightly_ahead_is_accepted() -> None:
    clock = FakeClock()
    here = service(ONE, clock=clock)
    ahead = service(ONE, clock=FakeClock(clock() + AHEAD_S - 1))
    far = service(ONE, clock=FakeClock(clock() + AHEAD_S + 1))
    assert here.take(ahead.write(issue(ahead)), TENANT)
    assert code(here, far.write(issue(far))) is TicketCode.EXPIRED
    text = here.write(issue(here))
    clock.advance(TICKET_TTL_S)
    assert here.take(text, TENANT)
    clock.advance(1)
    assert code(here, text) is TicketCode.EXPIRED


def test_a_used_ticket_is_refused_and_its_renewal_is_accepted() -> None:
    here, there = service(ONE), service(ONE)
    ticket = issue(here)
    text = here.write(ticket)
    assert read(here, text), "reading is not using: the connection may be lost before any audio"
    here.used(read(here, text))
    assert code(here, text) is TicketCode.REPLAYED
    assert read(there, text), "best effort: replicas do not share used tickets"
    again = here.renewed(ticket)
    assert read(here, here.write(again)).stream == ticket.stream


def test_version_is_readable_without_a_key_and_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = service(ONE)
    ticket = issue(here)
    with monkeypatch.context() as later:
        later.setattr(tickets, "VERSION", tickets.VERSION + 1)
        other = write_ticket(ticket, Seal([ONE]))
    assert code(here, other) is TicketCode.VERSION
    assert code(here, encoded(bytes([tickets.VERSION]) + decoded(other)[1:])) is TicketCode.FORGED


def test_sealed_texts_differ_and_processes_do_not_share_a_key() -> None:
    here, there = Seal([ONE]), Seal([ONE])
    sealed = [seal.close(b"plain" * 10, b"h") for seal in (here, here, there)]
    assert len({text[16:] for text in sealed}) == 3
    assert len({text[:16] for text in sealed}) == 2, "one salt per process"
    assert all(Seal([ONE]).open(text, b"h") == b"plain" * 10 for text in sealed)
    assert len(sealed[0]) == 50 + OVERHEAD_BYTES
    with pytest.raises(Unsealed):
        here.open(sealed[0], b"other header")


def test_keys_are_read_from_settings_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    one, two = new_key(), new_key()
    file.write_text(f"# newest first\n{two}  # since May\n\n")
    assert read_keys(read_secrets("key", [one], file)) == [base64.urlsafe_b64decode(key) for key in (one, two)]
    assert read_keys(read_secrets("key", [one.rstrip("=")], None)) == [base64.urlsafe_b64decode(one)]
    assert read_keys(read_secrets("key", [], None)) == []


@pytest.mark.parametrize("text", ["", "c2hvcnQ=", "not base64 at all, but long enough to be", "é" * 43])
def test_invalid_key_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        read_keys(read_secrets("key", [text], None))
    assert not text or text not in str(refused.value)
    file = tmp_path / "keys"
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(SettingsError):
        read_keys(read_secrets("key", [], file))


def test_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_secrets("key", [], tmp_path / "none")


def test_decompression_bomb_in_a_sealed_ticket_is_refused() -> None:
    import zlib

    header = bytes([tickets.VERSION])
    bomb = zlib.compress(bytes(64 * 2**20), 9)
    with pytest.raises(TicketRefused):
        read_ticket(encoded(header + Seal([ONE]).close(bomb, header)), Seal([ONE]))


def test_the_changelog_states_the_version_of_tickets() -> None:
    assert f"Tickets of resumed streams have version {tickets.VERSION}." in (ROOT / "CHANGELOG.md").read_text()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
