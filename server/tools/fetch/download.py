"""Download of one file over HTTP: a size limit, progress, and continuation by a range request. Knows no models.

The file is written under the given name, which is a temporary one. After a lost connection the bytes stay there, and
the next download to the same name asks for the rest, if it is still the same version of the file (RFC 9110, sections 13
and 14): its ETag or date is kept in a second file.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from server.errors import ServerError

BLOCK_BYTES = 256 * 1024
TIMEOUT_S = 30.0  # to connect, and of each read
ATTEMPTS = 5  # connections for one file, each of which must have brought something, or a busy server's answer
LONGEST_WAIT_S = 60  # that a busy server may ask for
MAX_BYTES = 4 * 1024**3  # four times the largest archive in the list of published models
PARTIAL, BAD_REQUEST, RANGE_NOT_SATISFIABLE = 206, 400, 416
BUSY = frozenset({429, 500, 502, 503, 504})
DONE_OF = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


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

    @property
    def version_file(self) -> Path:
        """The ETag or date of the version that `file` is a part of."""
        return self.file.with_name(f"{self.file.name}.version")

    def remove(self) -> None:
        """Remove what was downloaded."""
        self.file.unlink(missing_ok=True)
        self.version_file.unlink(missing_ok=True)


class _Lost(Exception):
    """The connection ended early."""


class _Busy(Exception):
    """The server cannot answer now; `wait_s` is what it asks for, None if it does not say."""

    def __init__(self, status: int, wait_s: int | None) -> None:
        super().__init__(f"busy (HTTP {status})")
        self.wait_s = wait_s


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


@contextmanager
def downloaded(asked: Download, report: Report) -> Iterator[str]:
    """Download the file, or the rest of it, and yield the hexadecimal SHA-256 of the whole. It is removed at the end.

    The file is locked meanwhile. Raises: Unreachable, DownloadError. After a lost connection the bytes received so far
    stay in the file; after Ctrl-C it is removed.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(asked.file.open("ab"))
            _lock(file, asked.file)
            digest = _filled(asked, file, report)
        except OSError as error:  # those of the network are converted where they are raised
            raise DownloadError(f"{asked.file}: {error.strerror}") from error
        try:
            yield digest
        finally:
            asked.remove()


def _filled(asked: Download, file: IO[bytes], report: Report) -> str:
    try:
        _fill(asked, file, report)
        file.flush()
        with asked.file.open("rb") as written:
            return hashlib.file_digest(written, "sha256").hexdigest()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or not file.tell():
            asked.remove()
        raise


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock the file: two processes that append to it would damage it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DownloadError(f"{path}: another process is downloading to this file; wait for it") from error
    except OSError:  # some network file systems have no locks
        return


def _fill(asked: Download, file: IO[bytes], report: Report) -> None:
    """Receive the file on as many connections as it takes, while each brings something or the server is busy."""
    for attempt in range(1, ATTEMPTS + 1):
        before = file.tell()
        try:
            _receive(asked, file, report)
        except _Busy as busy:
            wait_s = 2 ** (attempt - 1) if busy.wait_s is None else busy.wait_s
            if attempt == ATTEMPTS or wait_s > LONGEST_WAIT_S:
                raise DownloadError(f"{asked.shown}: the server is {busy}; run the same command later") from busy
            asked.wait(wait_s)
            continue
        except (_Lost, Unreachable) as error:
            if isinstance(error, Unreachable) and attempt == 1:
                raise
            if file.tell() > before and attempt < ATTEMPTS:
                continue
            raise DownloadError(
                f"{asked.shown}: the connection was lost after {file.tell()} bytes; run the same command again to "
                f"continue, or delete {asked.file}"
            ) from error
        return


def _receive(asked: Download, file: IO[bytes], report: Report) -> None:
    """Receive what is missing, on one connection. Raises: _Busy, _Lost, Unreachable, DownloadError."""
    with _answer(asked, file) as answer:
        start, version = _start(answer), _version(answer)
        if start != file.tell() or (start and version not in ("", _known_version(asked))):
            _empty(file)  # the server sends the whole file, an unexpected range, or the rest of another version
            if start:
                raise _Lost
        asked.version_file.write_text(version, encoding="utf-8")
        length = answer.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        if total is not None and total > asked.max_bytes:
            raise _too_large(asked, total)
        report(file.tell(), total)
        for block in iter(lambda: _read(answer), b""):
            if file.tell() + len(block) > asked.max_bytes:
                raise _too_large(asked, file.tell() + len(block))
            file.write(block)
            report(file.tell(), total)
    if total is not None and file.tell() != total:
        raise _Lost


def _empty(file: IO[bytes]) -> None:
    file.truncate(0)
    file.seek(0)


def _answer(asked: Download, file: IO[bytes]) -> Any:
    """Open the connection; bytes that the file has of the same version are not asked for again.

    Raises: _Busy, Unreachable, DownloadError.
    """
    headers = {"User-Agent": "tutti", "Accept-Encoding": "identity"}
    if version := _known_version(asked):
        headers |= {"Range": f"bytes={file.tell()}-", "If-Range": version} if file.tell() else {}
    else:
        _empty(file)
    have = file.tell()
    try:
        return _opener().open(Request(asked.url, headers=headers), timeout=asked.timeout_s)  # noqa: S310 # http(s) alone
    except HTTPError as error:
        error.close()
        if error.code == RANGE_NOT_SATISFIABLE and have:  # it is complete, or of another file
            _empty(file)
            return _answer(asked, file)
        if error.code in BUSY:
            asked_s = error.headers.get("Retry-After", "")
            raise _Busy(error.code, int(asked_s) if asked_s.isdecimal() else None) from error
        advice = "; it redirects to another protocol or in a circle" if error.code < BAD_REQUEST else ""
        raise DownloadError(f"{asked.shown}: refused with HTTP {error.code}{advice}") from error
    except URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise Unreachable(f"{asked.shown}: cannot be reached ({reason})") from error
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise Unreachable(f"{asked.shown}: cannot be reached ({error or type(error).__name__})") from error


def _start(answer: Any) -> int:
    """Return the position of the answer's first byte in the file."""
    if answer.status != PARTIAL:
        return 0
    found = DONE_OF.match(answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


def _version(answer: Any) -> str:
    """Return what identifies this version of the file: its strong ETag, or else its date; empty without either."""
    tag: str = answer.headers.get("ETag", "")
    date: str = answer.headers.get("Last-Modified", "")
    return date if not tag or tag.startswith("W/") else tag


def _known_version(asked: Download) -> str:
    try:
        return asked.version_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _read(answer: Any) -> bytes:
    try:
        return bytes(answer.read(BLOCK_BYTES))
    except (http.client.HTTPException, OSError) as error:
        raise _Lost from error


def _too_large(asked: Download, size: int) -> DownloadError:
    asked.remove()
    return DownloadError(f"{asked.shown}: has {size} bytes or more; at most {asked.max_bytes} are downloaded")


class SafeRedirects(HTTPRedirectHandler):
    """Follows redirects to http and https, but not from https to http."""

    def redirect_request(  # noqa: PLR0917 # the signature of urllib
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the next request. Raises: DownloadError."""
        if url_problem(newurl) is not None or (req.type == "https" and urlsplit(newurl).scheme != "https"):
            fp.close()
            source, target = without_secrets(req.full_url), without_secrets(newurl)
            raise DownloadError(f"{source}: redirects to {target}, which is less safe, and was not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> OpenerDirector:
    """Return an opener for http and https alone, through the proxies of the environment (`HTTPS_PROXY`)."""
    opener = OpenerDirector()
    handlers: tuple[Callable[[], Any], ...] = (
        ProxyHandler, UnknownHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor,
        SafeRedirects,
    )  # fmt: skip
    for handler in handlers:
        opener.add_handler(handler())
    return opener
