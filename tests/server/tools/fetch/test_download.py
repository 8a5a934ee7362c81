"""Downloads of `tutti model fetch`: ranges, digests, redirects, and servers that do not answer."""

from __future__ import annotations

import io
from urllib.request import Request

import pytest

from loadtest.served import free_port
from server.tools.fetch.download import Download, DownloadError, SafeRedirects, downloaded
from tests.support.servers.release_site import FILE, NAME, Site, digest_of, fetch, left, one_line


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
    part, version = left(tmp_path)
    assert (part.endswith(".part"), version) == (True, f"{part}.version")
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
    part.with_name(f"{part.name}.version").write_text(f'"{digest_of(archive)}"')
    assert fetch(NAME).exit_code == 0
    assert site.ranges == [f"bytes={len(archive) + 1}-", None]


@pytest.mark.parametrize("ignores_if_range", [False, True])
@pytest.mark.parametrize("version_header", ["ETag", "Last-Modified", ""])
def test_parts_of_two_versions_are_never_joined(site, in_list, archive, version_header, ignores_if_range):
    site.version_header, site.ignores_if_range = version_header, ignores_if_range
    site.files[FILE], site.cuts = bytes(len(archive)), [1_000, 0]
    assert fetch(NAME).exit_code == 1
    site.files[FILE] = archive
    done = fetch(NAME)
    if done.exit_code:  # the server sent the rest of the other version, which was thrown away
        done = fetch(NAME)
    assert done.exit_code == 0, done.stderr
    assert digest_of(archive) in done.stdout


def test_without_a_version_a_lost_download_starts_again(site, in_list, tmp_path):
    site.version_header, site.cuts = "", [1_000]
    assert fetch(NAME).exit_code == 0
    assert site.ranges == [None, None]


@pytest.mark.parametrize(
    ("headers", "waits_s"), [([{}, {}], [1, 2]), ([{"Retry_After": "7"}], [7]), ([{"Retry_After": "soon"}], [1])]
)
def test_a_busy_server_is_asked_again(site, tmp_path, archive, headers, waits_s):
    site.busy, waits = headers, []
    asked = Download(site.url(FILE), tmp_path / "part", wait=waits.append)
    with downloaded(asked, lambda *_: None) as digest:
        assert digest == digest_of(archive)
    assert waits == waits_s


@pytest.mark.parametrize(("headers", "requests"), [([{}] * 9, 5), ([{"Retry_After": "3600"}], 1)])
def test_a_server_that_stays_busy_is_given_up(site, tmp_path, headers, requests):
    site.busy = headers
    asked = Download(site.url(FILE), tmp_path / "part", wait=lambda _: None)
    with (
        pytest.raises(DownloadError, match=r"the server is busy \(HTTP 503\); run the same command later"),
        downloaded(asked, lambda *_: None),
    ):
        pass
    assert len(site.ranges) == requests
    assert left(tmp_path) == []


def test_a_server_that_sends_nothing_more_is_not_asked_for_ever(site, in_list, tmp_path):
    site.cuts = [100] * 20
    done = fetch(NAME)
    assert done.exit_code == 1
    assert len(site.ranges) == 5


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
