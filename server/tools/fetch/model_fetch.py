"""`tutti model fetch`: downloads a published model, checks its digest, and unpacks it into a folder.

Files are written to a temporary folder next to the destination; the folder itself appears complete, by a rename, or not
at all. `server/tools/model_check.py` then examines it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from model.published.contracts import NO_WENET
from server.errors import ServerError
from server.tools.fetch.download import Download, Report, Unreachable, download, url_problem
from server.tools.fetch.releases import Release, nearest_names
from server.tools.fetch.unpack import ENDINGS, ArchiveError, remove, stem, unpack

SHOWN_LANGUAGES = 8


class UnknownModel(ServerError):
    """The name, address or digest is not valid; the message is the end of a sentence about it."""


class FetchError(ServerError):
    """The model was not fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A folder on the disk, for `--model`."""

    path: Path
    sha256: str
    verified: bool


def find(name: str, releases: Sequence[Release]) -> Release:
    """Return the release of this name or URL. Raises: UnknownModel."""
    if "://" in name:
        return next((release for release in releases if release.url == name), None) or _from_url(name)
    for release in releases:
        if release.name == name:
            return release
    if "wenet" in name.lower():
        raise UnknownModel(NO_WENET)
    nearest = nearest_names(name, releases)
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else "it has no similar name;"
    raise UnknownModel(f"not in the list of published models; {advice} `tutti model fetch --list` shows all")


def _from_url(url: str) -> Release:
    if problem := url_problem(url):
        raise UnknownModel(problem)
    name = stem(Path(unquote(urlsplit(url).path)).name)
    if not name or name.startswith("."):
        raise UnknownModel(f"must be the address of an archive ({', '.join(ENDINGS)})")
    return Release(name, kind="", languages=(), url=url)


def with_digest(release: Release, sha256: str) -> Release:
    """Return the release with the digest that was given. Raises: UnknownModel, if the list has another."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise UnknownModel("must be 64 hexadecimal digits, as `sha256sum` prints")
    sha256 = sha256.lower()
    if release.sha256 not in {None, sha256}:
        raise UnknownModel(f"the list has {release.sha256} for {release.name}; leave the option out, or give the URL")
    return replace(release, sha256=sha256)


def fetch(release: Release, folder: Path, report: Report, *, force: bool = False) -> Fetched:
    """Download and unpack into the folder, which must not exist unless `force` replaces it.

    Raises: DownloadError, ArchiveError, FetchError. After these and after Ctrl-C the folder is as before, and nothing
    else is left.
    """
    folder = folder.absolute()
    if not force and (folder.exists() or folder.is_symlink()):
        raise FetchError(f"{folder}: already exists; `tutti model check {folder}` examines it, --force replaces it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            archive = Path(temporary) / "archive"
            digest = download(Download(release.url, archive), report)
            _check_digest(release, digest)
            _replace(folder, unpack(archive, Path(temporary) / "unpacked", _file_name(release)))
    except Unreachable as error:
        raise FetchError(f"{error}; {_by_hand(release, folder)}") from error
    return Fetched(folder, digest, verified=release.sha256 is not None)


def _check_digest(release: Release, digest: str) -> None:
    """Raises: FetchError, if another digest is expected."""
    if release.sha256 not in {None, digest}:
        raise FetchError(
            f"{_file_name(release)}: its SHA-256 is {digest}, expected {release.sha256}; it was removed. Try again; if "
            "the digest is the same, the file was changed after its publication"
        )


def _by_hand(release: Release, folder: Path) -> str:
    """Return what to do on a machine without a network."""
    file = _file_name(release)
    if file.lower().endswith(".zip"):
        unpacked = f"`unzip {file}`, move its folder to {folder}"
    else:
        unpacked = f"`mkdir -p {folder} && tar xf {file} -C {folder} --strip-components=1`"
    return (
        f"behind a proxy set HTTPS_PROXY; without a network download it elsewhere, copy {file} to this machine, run "
        f"{unpacked}, and `tutti model check {folder}`"
    )


def _file_name(release: Release) -> str:
    return Path(unquote(urlsplit(release.url).path)).name


def _replace(folder: Path, unpacked: Path) -> None:
    """Rename the unpacked files to the folder; one that is there is moved aside first. Raises: FetchError."""
    if not any(unpacked.iterdir()):
        raise ArchiveError(f"{folder.name}: the archive is empty")
    old = folder.with_name(f".{folder.name}.old")
    try:
        if folder.exists() or folder.is_symlink():
            remove(old)
            folder.rename(old)
        try:
            unpacked.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
        remove(old)
    except OSError as error:
        raise FetchError(f"{folder}: {error.strerror}") from error


def table(releases: Sequence[Release]) -> Iterator[str]:
    """Yield the list of releases as lines of a table."""
    heads = ("name", "kind", "languages", "MB", "SHA-256", "license")
    rows = [heads, *(_row(release) for release in releases)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(release: Release) -> tuple[str, ...]:
    first, others = release.languages[:SHOWN_LANGUAGES], release.languages[SHOWN_LANGUAGES:]
    languages = ",".join(first) + (f" and {len(others)} more" if others else "")
    size = "" if release.size_mb is None else str(release.size_mb)
    digest = "known" if release.sha256 else "not known"
    return release.name, release.kind, languages, size, digest, release.license or "see the release"
