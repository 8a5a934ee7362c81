"""Unpacking of `tutti model fetch`: nothing is written outside the folder, and sizes are limited."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import pytest

from server.tools.fetch.download import Download, DownloadError, download
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
    for site.states_length in (True, False):
        with pytest.raises(DownloadError, match=f"at most {len(archive) - 1} bytes are downloaded"):
            download(Download(site.url(FILE), tmp_path / "part", max_bytes=len(archive) - 1), lambda *_: None)
        assert (tmp_path / "part").stat().st_size < len(archive)
    (tmp_path / "bomb.tar.bz2").write_bytes(archive)
    with pytest.raises(ArchiveError, match="unpacks to more than 1000 bytes"):
        unpack(tmp_path / "bomb.tar.bz2", tmp_path / "to", "bomb.tar.bz2", max_bytes=1_000)


def gzipped(write, *, member_sizes=(600, 600)):
    """Return a .tar.gz of a folder with files, and what `write` adds."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for number, size in enumerate(member_sizes):
            member = tarfile.TarInfo(f"{NAME}/file-{number}")
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(range(200)) * (size // 200)))
        write(tar)
    return content.getvalue()


def damage(kind):
    """Return a damaged .tar.gz whose first member is right."""
    plain = gzipped(lambda _: None)
    whole = gzip.compress(plain, mtime=0)
    if kind == "check sum":
        return whole[:-8] + bytes(4) + whole[-4:]
    if kind == "header of a member":
        return gzip.compress(plain[:1536] + b"x" + plain[1537:])
    if kind == "end":
        return whole[:-9]
    if kind == "after a member":
        return gzip.compress(plain[:3072])
    if kind == "in a member":
        return gzip.compress(plain[:2100])
    stored = gzip.compress(plain, compresslevel=0)  # a flipped byte of the contents decompresses
    return stored[:700] + bytes([stored[700] ^ 1]) + stored[701:]


@pytest.mark.parametrize("kind", ["a byte", "check sum", "header of a member", "end", "after a member", "in a member"])
def test_a_damaged_tar_gz_is_refused(site, tmp_path, kind):
    site.files["model.tar.gz"] = damage(kind)
    done = fetch(site.url("model.tar.gz"))
    assert done.exit_code == 1
    assert "model.tar.gz: is not an archive, or is damaged" in one_line(done)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("link", "target"),
    [
        (f"{NAME}/tokens.txt", "../neighbor/secret.txt"),
        (f"{NAME}/deep/tokens.txt", "../../neighbor/secret.txt"),
        (f"{NAME}/tokens.txt", "tokens.txt"),
    ],
)
def test_a_link_out_of_the_only_folder_is_refused(site, tmp_path, link, target):
    """The only folder of an archive is moved up, and its links with it."""

    def add(tar):
        member = tarfile.TarInfo(link)
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)

    site.files["model.tar.gz"] = gzip.compress(gzipped(add))
    done = fetch(site.url("model.tar.gz"))
    assert done.exit_code == 1
    assert "refused: " in one_line(done)
    assert left(tmp_path) == []


def test_a_link_within_the_folder_stays(tmp_path):
    def add(tar):
        member = tarfile.TarInfo(f"{NAME}/model.onnx")
        member.type, member.linkname = tarfile.SYMTYPE, "file-0"
        tar.addfile(member)

    (tmp_path / "model.tar.gz").write_bytes(gzip.compress(gzipped(add)))
    unpacked = unpack(tmp_path / "model.tar.gz", tmp_path / "to", "model.tar.gz")
    assert (unpacked / "model.onnx").read_bytes() == (unpacked / "file-0").read_bytes()


def test_nested_folders_are_limited(site, tmp_path):
    def add(tar):
        tar.addfile(tarfile.TarInfo("d/" * 2_000 + "f"))

    site.files["deep.tar.gz"] = gzip.compress(gzipped(add))
    done = fetch(site.url("deep.tar.gz"))
    assert "has more than 32 folders in each other" in one_line(done)
    assert left(tmp_path) == []
