"""Options of AudioSocket's calls: those of the port, and those that a key registers for one call by its UUID."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from fastapi import Request
from starlette.responses import Response

from server.access.keys import Caller, Credentials
from server.configuration.addresses import ListenAddress
from server.coordination.expected_calls import ExpectedCall
from server.errors import BadParameter, ClientGone, Refused, SettingsError, UnknownPath, of_setting
from server.operations.logs import take_request_id
from server.protocols.deepgram.endpoints import QueryReader
from server.protocols.deepgram.parameters import TABLE
from server.protocols.features import boolean, own_parameters, printable, whole_number
from server.protocols.handshake import json_response, render_refusal
from server.protocols.uploads import read_body
from server.replica import Replica

SETTING = "audiosocket_port"
FORWARD_URL, REGISTERED = "forward_url", "only_registered"
REDACT = "redact"  # what the operator masks stays masked
OF_AUDIO = frozenset({"encoding", "sample_rate", "channels", "multichannel"})
"""Parameters of `/v1/listen` that frames decide."""
OF_MESSAGES = frozenset({"resumable", "rewind", "receipt"})
"""Those that need messages which Asterisk does not send."""
TTL, DEFAULT_TTL_S, MAX_TTL_S = "ttl_seconds", 60, 3_600
MAX_CHARACTERS = 4_096  # of a call's options
MAX_BODY_BYTES, BODY_TIMEOUT_S = 1_024, 10.0
FORM = (("encoding", "linear16"), ("sample_rate", "8000"))


@dataclass(frozen=True, slots=True)
class AudioSocketOptions:
    """Parameters of the port: where the text of calls goes, which calls it takes, options of those without own ones."""

    forward_url: str
    only_registered: bool
    defaults: list[tuple[str, str]]

    @classmethod
    def read(cls, address: ListenAddress) -> AudioSocketOptions:
        """Read the setting. Raises: SettingsError."""
        urls = [value for name, value in address.parameters if name == FORWARD_URL]
        defaults = [pair for pair in address.parameters if pair[0] not in (FORWARD_URL, REGISTERED)]
        with of_setting(SETTING):
            if len(urls) != 1 or urlsplit(urls[0]).scheme not in ("ws", "wss"):
                raise SettingsError(f"{FORWARD_URL}: give one, ws:// or wss://, which gets the text of calls")
            for name in other_names(defaults):
                raise SettingsError(f"{name[:32]!r} is not {FORWARD_URL} nor a parameter of /v1/listen for calls")
            flags = [boolean(name, value) for name, value in address.parameters if name == REGISTERED]
        return cls(urls[0], any(flags), defaults)


def call_query(defaults: Sequence[tuple[str, str]], options: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the query of a call: an option replaces the port's, but `redact`, of which both count."""
    chosen = {name for name, _ in options} - {REDACT}
    return [*FORM, *(pair for pair in defaults if pair[0] not in chosen and pair not in options), *options]


def other_names(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names that are no parameters of calls."""
    return [name for name, _ in pairs if name in OF_AUDIO | OF_MESSAGES or name not in TABLE]


class RegisteredCall(msgspec.Struct):
    """The UUID as the call has it, and the seconds within which the call may come."""

    uuid: str
    expires_in: int


class CallRegistration:
    """The endpoints of one replica whose `audiosocket_port` is set."""

    def __init__(self, queries: QueryReader) -> None:
        self._queries = queries
        self._replica: Replica = queries.replica
        self._defaults = AudioSocketOptions.read(queries.replica.settings.addresses[SETTING]).defaults

    async def register(self, request: Request) -> Response:
        """Expect a call with the options of the query, instead of those of its UUID before."""
        request_id = take_request_id()
        try:
            caller, called = self._identify(request)
            self._replica.sessions.refuse_if_draining()
            own, others = own_parameters(request.query_params.multi_items(), {TTL}, TABLE)
            ttl_s = whole_number(TTL, own.get(TTL, str(DEFAULT_TTL_S)), range(1, MAX_TTL_S + 1))
            options = tuple(others)
            _check_options(options)
            if (await read_body(request, MAX_BODY_BYTES, BODY_TIMEOUT_S)).strip():
                raise BadParameter("body: leave it empty; the options of a call are in the query")
            await self._queries.read(request, call_query(self._defaults, options), live=True)
            await self._replica.guard.coordinator.expect_call(ExpectedCall(called, caller.key.id, options), ttl_s)
        except Refused as error:
            return render_refusal(self._replica.guard.refuse(error), request_id)
        except ClientGone:
            return Response(status_code=499)  # nginx's status for a client that disconnected
        return json_response(RegisteredCall(called, ttl_s), headers={"dg-request-id": request_id})

    async def delete(self, request: Request) -> Response:
        """Expect a call no more: if it comes, it has the options of the port."""
        request_id = take_request_id()
        try:
            caller, called = self._identify(request)
            if await self._replica.guard.coordinator.take_call(called, caller.key.id) is None:
                raise UnknownPath("no call with this UUID is expected for this key")
        except Refused as error:
            return render_refusal(self._replica.guard.refuse(error), request_id)
        return Response(status_code=204, headers={"dg-request-id": request_id})

    def _identify(self, request: Request) -> tuple[Caller, str]:
        """Return who asks, and the UUID. Raises: NotAuthorized, NotAllowed, BadParameter."""
        credentials = Credentials.read(request.headers.get("authorization"), ())
        caller, text = self._replica.guard.identify(request, credentials), request.path_params["uuid"]
        try:
            return caller, str(uuid.UUID(text))
        except ValueError:
            example = "40325ec2-5efd-4bd3-805f-53576e581d13"
            raise BadParameter(f"uuid: {printable(text)!r} is not valid; must be one such as {example}") from None


def _check_options(pairs: Sequence[tuple[str, str]]) -> None:
    """Raises: BadParameter."""
    for name in other_names(pairs):
        raise BadParameter(f"{printable(name)}: not a parameter of /v1/listen for calls; leave it out")
    if (length := sum(len(name) + len(value) for name, value in pairs)) > MAX_CHARACTERS:
        raise BadParameter(f"query: has {length} characters; the options of a call have at most {MAX_CHARACTERS}")
