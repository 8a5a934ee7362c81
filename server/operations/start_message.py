"""The text that `tutti serve` prints when it listens: where to open it, how many streams, who may use it, how to stop.

Made of settings and numbers alone: an app, a socket and a log are the caller's.
"""

from __future__ import annotations

from server.configuration.addresses import interfaces
from server.settings import Settings


def start_message(settings: Settings, url: str, streams: int) -> str:
    """Return the message of a server that can be opened at `url` and now takes this number of `streams`."""
    rows = {
        "open": f"{url} in a browser; the API is described at {url}/docs",
        "streams": said_of_streams(settings, streams),
        "keys": said_of_keys(settings),
        "/admin": said_of_admin(settings),
        "stop": f"Ctrl-C drains: no new streams, and {settings.drain_timeout_s:g} s for open ones to end; "
        "a second Ctrl-C ends at once",
    }
    if settings.vosk_port is not None:
        rows["vosk"] = "clients of vosk's own port send no key: anyone who reaches it can use it"
    where = "all interfaces" if interfaces(settings.host) else settings.host
    return "\n".join([f"tutti listens on {where}", *(f"  {name:<8} {said}" for name, said in rows.items())])


def said_of_streams(settings: Settings, streams: int) -> str:
    """How many streams are taken, and whether that is fixed."""
    if settings.max_streams == "auto":
        return f"about {streams} at a time, estimated for this machine while it runs; --max-streams N fixes it"
    return f"{streams} at a time, fixed by --max-streams or TUTTI_MAX_STREAMS"


def said_of_keys(settings: Settings) -> str:
    """Who may open streams."""
    if settings.api_keys or settings.api_keys_file is not None:
        return "a key is required of every client"
    return "none are set: anyone who reaches this address can use it; TUTTI_API_KEYS or --api-keys-file sets them"


def said_of_admin(settings: Settings) -> str:
    """Who may use /admin: `server/http/admin.py`."""
    if settings.admin_keys or settings.admin_keys_file is not None:
        return "open to holders of an admin key"
    if settings.admin_local:
        return (
            "open to this machine without a key; a proxy on it would open it to everybody: "
            "then set TUTTI_ADMIN_KEYS, and not --admin-local or TUTTI_ADMIN_LOCAL"
        )
    return "closed: no admin key is set; TUTTI_ADMIN_KEYS opens it to its holders, --admin-local to this machine"
