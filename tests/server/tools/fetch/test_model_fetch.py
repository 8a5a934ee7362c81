"""`tutti model fetch`: download, digest, unpacking, and what stays on the disk after each failure."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import Request

import pytest
from typer.testing import CliRunner

from loadtest.served import free_port
from model.published import releases as listed
from model.published.contracts import KINDS
from server.cli import app
from server.tools import model_fetch
from server.tools.download import Download, DownloadError, SafeRedirects, downloaded, url_problem
from server.tools.model_fetch import Progress
from server.tools.unpack import ArchiveError, unpack
from tests.support.networks.probes import make_probe

NAME = "sherpa-onnx-streaming-probe-2026-01-01"
FILE = f"{NAME}.tar.bz2"
TRANSDUCERS = {"zipformer2-transducer", "nemo-transducer"}
runner = CliRunner()


class Site(ThreadingHTTPServer):
    """An HTTP server of files by path. `cuts`: the bytes after which the next answers end early."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.cuts: list[int] = []
        self.ranges: list[str | None] = []
        self.ignores_ranges = False

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site: Site = self.server
        asked = self.headers["Range"]
        site.ranges.append(asked)
        name = self.path.strip("/").partition("?")[0]
        if name in site.moved:
            self.reply(302, b"", Location=site.moved[name])
        elif name not in site.files:
            self.reply(404, b"no such file")
        else:
            self.send_file(site, site.files[name], asked)
        self.close_connection = True

    def send_file(self, site, content, asked):
        start = 0 if asked is None or site.ignores_ranges else int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
        if start >= len(content):
            self.reply(416, b"")
            return
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        cut = site.cuts.pop(0) if site.cuts else len(content)
        self.reply(206 if start else 200, content[start:], cut, **headers)

    def reply(self, status, content, cut=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    return make_probe("t-one-ctc", tmp_path_factory.mktemp("probe") / NAME).folder


@pytest.fixture(scope="module")
def archive(probe):
    return tar_of(probe)


def tar_of(folder, mode="w:bz2"):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=mode) as tar:
        tar.add(folder, arcname=NAME)
    return written.getvalue()


@pytest.fixture
def site(archive, monkeypatch, tmp_path):
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    server = Site()
    server.files[FILE] = archive
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def in_list(site, monkeypatch, tmp_path_factory):
    """Make the list of published models one of this site, with other keys for its only model."""

    def write(**keys):
        more = "".join(f'{name} = "{value}"\n' for name, value in keys.items())
        path = tmp_path_factory.mktemp("list") / "releases.toml"
        entry = f'[[release]]\nname = "{NAME}"\nkind = "t-one-ctc"\nlanguages = ["ru"]\n{more}'
        path.write_text(f'address = "{site.url("{name}.tar.bz2")}"\n\n{entry}')
        monkeypatch.setattr(listed, "LIST", path)

    write()
    return write


def fetch(*arguments):
    return runner.invoke(app, ["model", "fetch", *map(str, arguments)])


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def digest_of(content):
    return hashlib.sha256(content).hexdigest()


def one_line(done):
    """Return the error without the line that names the download."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tutti: ")]
    return line


def test_a_model_of_the_list_is_fetched_checked_and_examined(site, in_list, archive, tmp_path):
    in_list(sha256=digest_of(archive))
    done = fetch(NAME)
    assert done.exit_code == 0, done.stderr
    assert f"SHA-256 {digest_of(archive)}, as expected" in done.stdout
    assert re.search(r"^kind +t-one-ctc, fp32$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == f"serve it: tutti serve --model {tmp_path / NAME}"
    assert f"downloading {site.url(FILE)}" in done.stderr
    assert left(tmp_path) == [NAME]
    assert "model.onnx" in left(tmp_path / NAME)


@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "zip"])
def test_a_url_is_fetched_and_its_unknown_digest_is_printed(site, probe, tmp_path, ending):
    if ending == "zip":
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as packed:
            for path in probe.iterdir():
                packed.write(path, path.name)  # no folder of its own
        content = written.getvalue()
    else:
        content = tar_of(probe, "w:gz")
    site.files[f"other.{ending}"] = content
    done = fetch(site.url(f"other.{ending}?token=secret"), "--out", "models/mine")
    assert done.exit_code == 0, done.stderr
    assert f"SHA-256 {digest_of(content)}, not checked: none is known" in done.stdout
    assert "secret" not in done.stderr
    assert left(tmp_path / "models") == ["mine"]
    assert "tokens.txt" in left(tmp_path / "models" / "mine")


def test_a_graph_that_has_to_be_named_is_named(site, in_list, probe, tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:bz2") as tar:
        for path in probe.iterdir():
            if path.suffix == ".onnx":
                tar.add(path, arcname=f"{NAME}/model-streaming.onnx")
            tar.add(path, arcname=f"{NAME}/{path.name}")
    site.files[FILE] = content.getvalue()
    in_list(graph="model-streaming.onnx")
    done = fetch(NAME)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"--model {tmp_path / NAME / 'model-streaming.onnx'}")


@pytest.mark.parametrize("known", [True, False])
def test_another_digest_is_refused_and_the_file_removed(in_list, archive, tmp_path, known):
    wrong = "0" * 64
    if known:
        in_list(sha256=wrong)
    done = fetch(NAME, *([] if known else ["--sha256", wrong]))
    assert done.exit_code == 1
    assert f"its SHA-256 is {digest_of(archive)}, expected {wrong}; it was removed" in one_line(done)
    assert left(tmp_path) == []


def test_digests_are_compared_without_case(in_list, archive):
    assert fetch(NAME, "--sha256", digest_of(archive).upper()).exit_code == 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [("abc", "--sha256 abc: must be 64 hexadecimal digits"), ("1" * 64, f"the list has {'0' * 64} for {NAME}")],
)
def test_a_digest_that_is_none_or_not_that_of_the_list_is_refused_before_the_download(site, in_list, given, problem):
    in_list(sha256="0" * 64)
    done = fetch(NAME, "--sha256", given)
    assert done.exit_code == 2
    assert problem in one_line(done)
    assert site.ranges == []


def test_a_lost_connection_continues_where_it_ended(site, in_list, archive, tmp_path):
    site.cuts = [1_000, 500]
    done = fetch(NAME)
    assert done.exit_code == 0, done.stderr
    assert site.ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert digest_of(archive) in done.stdout
    assert left(tmp_path) == [NAME]


def test_a_download_that_ends_early_is_continued_by_the_next_command(site, in_list, archive, tmp_path):
    site.cuts = [1_000, 0]
    done = fetch(NAME)
    assert done.exit_code == 1
    assert "the connection was lost after 1000 bytes; run the same command again to continue" in one_line(done)
    assert not (tmp_path / NAME).exists()
    (part,) = left(tmp_path)
    assert part.endswith(".part")
    assert fetch(NAME).exit_code == 0
    assert site.ranges[-1] == "bytes=1000-"
    assert left(tmp_path) == [NAME]


def test_a_server_without_ranges_sends_the_whole_file_again(site, in_list, archive, tmp_path):
    site.ignores_ranges, site.cuts = True, [1_000]
    done = fetch(NAME)
    assert done.exit_code == 0, done.stderr
    assert digest_of(archive) in done.stdout


def test_a_part_longer_than_the_file_is_downloaded_again(site, in_list, archive, tmp_path):
    url = site.url(FILE)
    part = tmp_path / f".{NAME}.{digest_of(url.encode())[:8]}.part"
    part.write_bytes(bytes(len(archive) + 1))
    assert fetch(NAME).exit_code == 0
    assert site.ranges == [f"bytes={len(archive) + 1}-", None]


def test_a_server_that_sends_nothing_more_is_not_asked_for_ever(site, in_list, tmp_path):
    site.cuts = [100] * 20
    done = fetch(NAME)
    assert done.exit_code == 1
    assert len(site.ranges) == 5


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


def test_two_downloads_to_one_file_are_refused(site, tmp_path):
    asked = Download(site.url(FILE), tmp_path / "part")
    with (
        downloaded(asked, lambda *_: None),
        pytest.raises(DownloadError, match="another process"),
        downloaded(asked, lambda *_: None),
    ):
        pass
    assert left(tmp_path) == []


def test_without_a_server_the_error_says_what_to_copy_where(in_list, tmp_path, monkeypatch):
    url = f"http://127.0.0.1:{free_port()}/{FILE}"
    done = fetch(url)
    assert done.exit_code == 1
    line = one_line(done)
    assert f"{url}: cannot be reached (Connection refused)" in line
    assert f"copy {FILE} to this machine, run `mkdir -p {tmp_path / NAME} && tar xf {FILE} -C {tmp_path / NAME}" in line
    assert left(tmp_path) == []
    unknown = fetch(f"https://host.invalid/{FILE}")
    assert unknown.exit_code == 1
    assert f"https://host.invalid/{FILE}: cannot be reached (" in one_line(unknown)


def test_a_server_that_does_not_answer_is_given_up(tmp_path, site):
    silent = Site()  # accepts connections and never serves them
    with (
        pytest.raises(DownloadError, match=r"cannot be reached \(timed out\)"),
        downloaded(Download(silent.url(FILE), tmp_path / "part", timeout_s=0.05), lambda *_: None),
    ):
        pass
    silent.server_close()
    assert left(tmp_path) == []


def test_a_refusal_of_the_server_is_reported(site, tmp_path):
    done = fetch(site.url("nothing.tar.bz2"))
    assert done.exit_code == 1
    assert one_line(done).endswith("nothing.tar.bz2: refused with HTTP 404")
    assert left(tmp_path) == []


def test_redirects_are_followed_to_http_alone(site):
    site.moved = {"old.tar.bz2": site.url(FILE), "a.tar.bz2": "file:///etc/passwd", "b.tar.bz2": "ftp://127.0.0.1/x"}
    assert fetch(site.url("old.tar.bz2"), "--out", "old").exit_code == 0
    assert "refused with HTTP 302; it redirects to another protocol" in one_line(fetch(site.url("a.tar.bz2")))
    assert "redirects to ftp://127.0.0.1/x, which is less safe" in one_line(fetch(site.url("b.tar.bz2")))


def test_redirects_from_https_to_http_are_refused():
    request = Request("https://host/a.zip")
    with pytest.raises(DownloadError, match=r"redirects to http://other/a\.zip\?…, which is less safe"):
        SafeRedirects().redirect_request(request, io.BytesIO(), 302, "", {}, "http://other/a.zip?key=1")
    assert SafeRedirects().redirect_request(request, io.BytesIO(), 302, "", {}, "https://other/a.zip")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/a.zip", "must begin with https:// or http://"),
        ("file:///tmp/a.zip", "must begin with https:// or http://"),
        ("https://me:secret@host/a.zip", "must not have a user or a password"),
        ("https:///a.zip", "has no host"),
        ("https://host/a.onnx", "must be the address of an archive"),
        ("https://host/.zip", "must be the address of an archive"),
    ],
)
def test_addresses_that_cannot_be_fetched_are_refused(url, problem):
    done = fetch(url)
    assert done.exit_code == 2
    assert problem in one_line(done)
    assert "secret" not in done.stderr


def test_an_unknown_name_is_refused_with_the_nearest_ones(site):
    done = fetch("sherpa-onnx-streaming-t-one-russian")
    assert done.exit_code == 2
    assert "did you mean sherpa-onnx-streaming-t-one-russian-2025-09-08 or " in one_line(done)
    assert "kroko" in one_line(fetch("kroko"))
    assert "has no similar name" in one_line(fetch("%%%"))


def test_a_folder_that_exists_is_replaced_by_force_alone(site, in_list, tmp_path):
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "mine.txt").write_text("kept")
    done = fetch(NAME)
    assert done.exit_code == 1
    assert f"{tmp_path / NAME}: already exists; " in one_line(done)
    assert site.ranges == []
    site.files[FILE] = b"damaged"
    assert fetch(NAME, "--force").exit_code == 1
    assert left(tmp_path / NAME) == ["mine.txt"], "a failure leaves the old folder"
    site.files[FILE] = tar_of(make_probe("t-one-ctc", tmp_path / "new" / NAME).folder)
    assert fetch(NAME, "--force").exit_code == 0
    assert "mine.txt" not in left(tmp_path / NAME)
    assert left(tmp_path) == ["new", NAME]


def test_a_model_that_cannot_be_loaded_stays_and_is_reported(site, in_list, tmp_path):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:bz2") as tar:
        tar.addfile(tarfile.TarInfo(f"{NAME}/readme.txt"))
    site.files[FILE] = written.getvalue()
    done = fetch(NAME)
    assert done.exit_code == 1
    assert f"fetched to {tmp_path / NAME}, but it cannot be loaded: " in one_line(done)
    assert left(tmp_path / NAME) == ["readme.txt"]


@pytest.mark.parametrize("where", ["download", "unpack"])
def test_an_interruption_leaves_nothing(site, in_list, tmp_path, monkeypatch, where):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    if where == "download":
        monkeypatch.setattr(Progress, "__call__", lambda *_: interrupt())
    else:
        monkeypatch.setattr(tarfile.TarFile, "extract", interrupt)
    done = fetch(NAME)
    assert done.exit_code == 130
    assert one_line(done) == f"tutti: interrupted; nothing was written to {NAME}"
    assert left(tmp_path) == []


def test_the_list_is_printed_without_a_name():
    for arguments in ([], ["--list"]):
        done = fetch(*arguments)
        assert done.exit_code == 0
        head, *rows = done.stdout.splitlines()
        assert head.split() == ["name", "kind", "languages", "MB", "SHA-256", "license"]
        assert len(rows) == len(listed.read_releases())
        (row,) = [row for row in rows if "t-one" in row]
        assert row.split() == [
            "sherpa-onnx-streaming-t-one-russian-2025-09-08", "t-one-ctc", "ru", "128", "known", "Apache-2.0",
        ]  # fmt: skip


@pytest.mark.parametrize("arguments", [["--out", "x"], ["--list", NAME], ["--force"]])
def test_options_without_a_name_are_refused(arguments):
    done = fetch(*arguments)
    assert done.exit_code == 2
    assert re.match(r"tutti: (NAME: is missing|--list: cannot be combined)", one_line(done))


def test_the_shipped_list_is_of_kinds_that_load():
    releases = listed.read_releases()
    assert len({release.name for release in releases}) == len(releases) >= 20
    assert {release.kind for release in releases} <= {*KINDS, *TRANSDUCERS}
    for release in releases:
        assert url_problem(release.url) is None
        assert release.url.startswith("https://")
        assert model_fetch.find(release.url, releases) is release
        assert release.languages
        assert release.sha256 is None or re.fullmatch("[0-9a-f]{64}", release.sha256)
        assert (release.graph is not None) == (release.kind == "wenet-ctc")
    digests = [release.sha256 for release in releases if release.sha256]
    assert len(set(digests)) == len(digests)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@contextmanager
def progress_on(stream):
    now = [1_000.0]
    progress = Progress(stream, lambda: now[0])

    def show(seconds, done, total):
        now[0] += seconds
        progress(done, total)

    yield show
    progress.close()


def test_progress_is_a_line_every_five_seconds_in_a_log():
    stream = io.StringIO()
    with progress_on(stream) as show:
        for _ in range(11):
            show(1.0, 10_000_000, 100_000_000)
        show(1.0, 100_000_000, 100_000_000)
    assert stream.getvalue().splitlines() == [
        "10.0 of 100.0 MB, 10 %, 0.0 MB/s",
        "10.0 of 100.0 MB, 10 %, 0.0 MB/s",
        "100.0 of 100.0 MB, 100 %, 8.2 MB/s",
    ]


def test_progress_is_one_line_on_a_terminal():
    stream = Terminal()
    with progress_on(stream) as show:
        show(0.0, 0, None)
        show(0.1, 1_000_000, None)  # too soon
        show(0.9, 2_000_000, None)
    shown = [line.rstrip() for line in stream.getvalue().split("\r")]
    assert shown == ["", "0.0 MB, 0.0 MB/s", "2.0 MB, 2.0 MB/s"]
    assert stream.getvalue().endswith("\n")
