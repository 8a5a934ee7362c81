"""Unpacking of `tutti model fetch`: nothing is written outside the folder, and sizes are limited."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from server.tools.fetch.download import Download, DownloadError, downloaded
from server.tools.fetch.unpack import ArchiveError, unpack
from tests.support.servers.release_site import FILE, NAME, fetch, left, one_line


def evil(kind):
    """Return an archive that tries to write outside its folder."""
    written = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(written, "w") as packed:
            packed.writestr("../outside.txt", "x")
        return "evil.zip", written.getvalue()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        member = tarfile.TarInfo({"parent": f"{NAME}/../../outside.txt", "absolute": "/tmp/outside.txt"}.get(kind, "l"))
        if kind == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "../../outside.txt"
        if kind == "device":
            member.type = tarfile.CHRTYPE
        tar.addfile(member)
    return "evil.tar.gz", written.getvalue()


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "device", "zip"])
def test_an_archive_that_leads_out_of_its_folder_is_refused(site, tmp_path, kind):
    name, content = evil(kind)
    site.files[name] = content
    done = fetch(site.url(name), "--out", "models/evil")
    assert done.exit_code == 1
    assert f"{name}: refused: " in one_line(done)
    assert left(tmp_path / "models") == []
    assert left(tmp_path) == ["models"]


@pytest.mark.parametrize("name", ["page.tar.bz2", "page.tar.gz", "page.zip"])
def test_a_page_instead_of_an_archive_is_refused(site, tmp_path, name):
    site.files[name] = b"<html>Log in to the network</html>"
    done = fetch(site.url(name))
    assert done.exit_code == 1
    assert f"{name}: is not an archive, or is damaged" in one_line(done)
    assert left(tmp_path) == []


def test_a_damaged_archive_is_refused(site, in_list, archive, tmp_path):
    site.files[FILE] = archive[: len(archive) // 2]
    done = fetch(NAME)
    assert done.exit_code == 1
    assert "is not an archive, or is damaged" in one_line(done)
    assert left(tmp_path) == []


def test_sizes_are_limited(site, archive, tmp_path):
    with (
        pytest.raises(DownloadError, match=f"at most {len(archive) - 1} are downloaded"),
        downloaded(Download(site.url(FILE), tmp_path / "part", max_bytes=len(archive) - 1), lambda *_: None),
    ):
        pass
    (tmp_path / "bomb.tar.bz2").write_bytes(archive)
    with pytest.raises(ArchiveError, match="unpacks to more than 1000 bytes"):
        unpack(tmp_path / "bomb.tar.bz2", tmp_path / "to", "bomb.tar.bz2", max_bytes=1_000)
