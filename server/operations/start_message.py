"""Message printed by `tutti serve` once it listens: address, number of streams, access, how to stop.

Built from settings and numbers only.
"""

from __future__ import annotations

from collections.abc import Callable

from server.configuration.addresses import host_port, interfaces
from server.settings import Settings

KEYLESS = {"wyoming_port": "wyoming", "audiosocket_port": "audiosocket"}
"""Names of protocols without keys, by the settings of their ports."""


def announcement(settings: Settings, url: str, streams: int, say: Callable[[str], object]) -> dict[str, object]:
    """Return the fields of the log line of a server that listens; unless they are JSON, `say` the start message."""
    if settings.log_format == "json":
        said = {"docs": f"{url}/docs", "streams": streams, "streams_fixed": settings.max_streams != "auto"}
        return said | {"keys": said_of_keys(settings), "admin": said_of_admin(settings)}
    if settings.log_level in ("debug", "info"):
        say(f"{start_message(settings, url, streams)}\n")
    return dict(interfaces(settings.host))


def start_message(settings: Settings, url: str, streams: int) -> str:
    """Return the message for a server at `url` that currently accepts this number of `streams`."""
    rows = {
        "open": f"{url} in a browser; the API is described at {url}/docs",
        "streams": f"about {streams} at a time, estimated for this machine at run time; set --max-streams N to fix it"
        if settings.max_streams == "auto"
        else f"{streams} at a time, fixed by --max-streams or TUTTI_MAX_STREAMS",
        "keys": said_of_keys(settings),
        "/admin": said_of_admin(settings),
        "stop": f"Ctrl-C drains: no new streams, and {settings.drain_timeout_s:g} s for open ones to end; "
        "a second Ctrl-C exits immediately",
    }
    if settings.vosk_port is not None:
        rows["vosk"] = "clients of the vosk port send no key: anyone who can reach it can use it"
    for setting, address in settings.addresses.items():
        if setting in KEYLESS and not address.is_local:
            rows[KEYLESS[setting]] = (
                f"its clients send no key: anyone who can reach {host_port(address.host, address.port)} can use it"
            )
    where = "all interfaces" if interfaces(settings.host) else settings.host
    return "\n".join([f"tutti listens on {where}", *(f"  {name:<8} {said}" for name, said in rows.items())])


def said_of_keys(settings: Settings) -> str:
    """Describe who may open streams."""
    if settings.api_keys or settings.api_keys_file is not None:
        return "every client needs a key"
    return "none are set: anyone who can reach this address can use it; set TUTTI_API_KEYS or --api-keys-file"


def said_of_admin(settings: Settings) -> str:
    """Describe who may use /admin, see `server/http/admin.py`."""
    if settings.admin_keys or settings.admin_keys_file is not None:
        return "open with an admin key"
    if settings.admin_local:
        return (
            "open to this machine without a key; a proxy on this machine would open it to everyone: "
            "in that case set TUTTI_ADMIN_KEYS instead of --admin-local or TUTTI_ADMIN_LOCAL"
        )
    return "closed: no admin key is set; set TUTTI_ADMIN_KEYS, or --admin-local for access from this machine"
