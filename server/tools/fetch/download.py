"""Download of one file over HTTP: a size limit, progress, and attempts after a lost connection. Knows no models.

Each attempt receives the whole file, so parts of two versions of it are never joined.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from server.errors import ServerError

TIMEOUT_S = 30.0  # to connect, and of each read
ATTEMPTS = 5  # connections for one file, after lost ones and answers of a busy server
LONGEST_WAIT_S = 60  # that a busy server may ask for
MAX_BYTES = 4 * 1024**3  # four times the largest archive in the list of published models
BUSY = frozenset({429, 500, 502, 503, 504})


class DownloadError(ServerError):
    """The file could not be downloaded; the message names the address."""


class Unreachable(DownloadError):
    """There is no connection to the server: no network, no such name, refused, or no answer in time."""


Report = Callable[[int, int | None], None]
"""Is called with the bytes so far and the total, which is None if the server does not state it."""


@dataclass(frozen=True, slots=True)
class Download:
    """What to download, and its limits."""

    url: str
    file: Path
    max_bytes: int = MAX_BYTES
    timeout_s: float = TIMEOUT_S
    wait: Callable[[float], None] = time.sleep

    @property
    def shown(self) -> str:
        """The address for messages."""
        return without_secrets(self.url)


class _Busy(Exception):
    """The server cannot answer now; `wait_s` is what it asks for, None if it does not say."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(f"the server is busy (HTTP {answer.status_code})")
        asked_s = answer.headers.get("Retry-After", "")
        self.wait_s = int(asked_s) if asked_s.isdecimal() else None


def without_secrets(url: str) -> str:
    """Return an address for messages: without its query and its user, which may be secret."""
    return re.sub(r"\?.*", "?…", re.sub(r"//[^/@]*@", "//…@", url))


def url_problem(url: str) -> str | None:
    """Return why this address cannot be downloaded, None if it can."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"}:
        return "must begin with https:// or http://"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or a password"
    return None if has_host else "has no host"


def download(wanted: Download, report: Report) -> str:
    """Download the file, and return its hexadecimal SHA-256. Raises: Unreachable, DownloadError."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _receive(wanted, report)
        except _Busy as busy:
            problem, wait_s = str(busy), busy.wait_s
        except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:  # also of a proxy's address
            if attempt == 1 and not (wanted.file.exists() and wanted.file.stat().st_size):
                raise Unreachable(f"{wanted.shown}: cannot be reached ({error or type(error).__name__})") from error
            problem, wait_s = f"the connection was lost ({error})", None
        except OSError as error:
            raise DownloadError(f"{wanted.file}: {error.strerror}") from error
        wait_s = 2 ** (attempt - 1) if wait_s is None else wait_s
        if attempt < ATTEMPTS and wait_s <= LONGEST_WAIT_S:
            wanted.wait(wait_s)
            continue
        break
    raise DownloadError(f"{wanted.shown}: {problem}; run the same command later")


def _receive(wanted: Download, report: Report) -> str:
    """Receive the file on one connection. Raises: _Busy, DownloadError, OSError, httpx.HTTPError."""
    digest, size = hashlib.sha256(), 0
    client = httpx.Client(
        headers={"User-Agent": "tutti", "Accept-Encoding": "identity"},
        follow_redirects=True,
        timeout=wanted.timeout_s,
        verify=ssl.create_default_context(),  # the system's certificates
        event_hooks={"response": [check_redirect]},
    )
    with client, client.stream("GET", wanted.url) as answer, wanted.file.open("wb") as file:
        if answer.status_code in BUSY:
            raise _Busy(answer)
        if not answer.is_success:
            raise DownloadError(f"{wanted.shown}: refused with HTTP {answer.status_code}")
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if total is not None and total > wanted.max_bytes:
            raise _too_large(wanted)
        for block in answer.iter_raw():
            size += len(block)
            if size > wanted.max_bytes:
                raise _too_large(wanted)
            digest.update(block)
            file.write(block)
            report(size, total)
    return digest.hexdigest()


def _too_large(wanted: Download) -> DownloadError:
    return DownloadError(f"{wanted.shown}: is too large; at most {wanted.max_bytes} bytes are downloaded")


def check_redirect(answer: httpx.Response) -> None:
    """Refuse redirects to other protocols than http and https, and from https to http. Raises: DownloadError."""
    if not answer.has_redirect_location:
        return
    target = str(answer.url.join(answer.headers["Location"]))
    if url_problem(target) is not None or (answer.url.scheme == "https" and not target.startswith("https:")):
        source, target = without_secrets(str(answer.url)), without_secrets(target)
        raise DownloadError(f"{source}: redirects to {target}, which is less safe, and was not followed")
