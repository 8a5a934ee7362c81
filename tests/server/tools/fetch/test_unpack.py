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


def linked(link, target):
    """Return a .tar.gz with a link. The only folder of an archive is moved up, and its links with it."""

    def add(tar):
        member = tarfile.TarInfo(link)
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)

    return gzip.compress(gzipped(add))


def nested():
    """Return a .tar.gz of 2,000 folders in each other."""
    return gzip.compress(gzipped(lambda tar: tar.addfile(tarfile.TarInfo("d/" * 2_000 + "f"))))


PAGE, DAMAGED, REFUSED = b"<html>Log in to the network</html>", "is not an archive, or is damaged", "refused: "
DAMAGES = ("a byte", "check sum", "header of a member", "end", "after a member", "in a member")
BAD = {  # name, content by the archive of a model, and what is wrong with it
    **{f"a page as {name}": (name, lambda _: PAGE, DAMAGED) for name in ("page.tar.bz2", "page.tar.gz", "page.zip")},
    "half of it": (FILE, lambda whole: whole[: len(whole) // 2], DAMAGED),
    **{f"damaged: {kind}": ("model.tar.gz", lambda _, kind=kind: damage(kind), DAMAGED) for kind in DAMAGES},
    **{
        f"out of its folder: {kind}": (evil(kind)[0], lambda _, kind=kind: evil(kind)[1], REFUSED)
        for kind in ("parent", "absolute", "link", "device", "zip")
    },
    "a link to a neighbor": ("a.tar.gz", lambda _: linked(f"{NAME}/tokens.txt", "../neighbor/secret.txt"), REFUSED),
    "a deep link": ("a.tar.gz", lambda _: linked(f"{NAME}/deep/tokens.txt", "../../neighbor/secret.txt"), REFUSED),
    "a link to itself": ("a.tar.gz", lambda _: linked(f"{NAME}/tokens.txt", "tokens.txt"), REFUSED),
    "deep folders": ("a.tar.gz", lambda _: nested(), "has more than 32 folders in each other"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_unpacked_is_named_and_leaves_nothing(site, archive, tmp_path, case):
    name, content, problem = BAD[case]
    site.files[name] = content(archive)
    done = fetch(site.url(name), "--out", "models/mine")
    assert done.exit_code == 1
    assert f"{name}: " in one_line(done)
    assert problem in one_line(done)
    assert left(tmp_path / "models") == []
    assert left(tmp_path) == ["models"]


def test_a_link_within_the_folder_stays(tmp_path):
    def add(tar):
        member = tarfile.TarInfo(f"{NAME}/model.onnx")
        member.type, member.linkname = tarfile.SYMTYPE, "file-0"
        tar.addfile(member)

    (tmp_path / "model.tar.gz").write_bytes(gzip.compress(gzipped(add)))
    unpacked = unpack(tmp_path / "model.tar.gz", tmp_path / "to", "model.tar.gz")
    assert (unpacked / "model.onnx").read_bytes() == (unpacked / "file-0").read_bytes()
