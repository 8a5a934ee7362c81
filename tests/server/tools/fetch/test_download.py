"""Downloads of `tutti model fetch`: lost connections, digests, redirects, and servers that do not answer."""

from __future__ import annotations

import httpx
import pytest

from loadtest.served import free_port
from server.tools.fetch.download import Download, DownloadError, Unreachable, check_redirect, download
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


def received(url, folder, waits=None, **limits):
    """Download to a file of the folder, without waiting; return the digest."""
    return download(Download(url, folder / "part", wait=([] if waits is None else waits).append, **limits), no_report)


def no_report(*_):
    pass


def test_a_lost_connection_is_followed_by_another(site, tmp_path, archive):
    site.cuts, waits = [1_000, 500], []
    assert received(site.url(FILE), tmp_path, waits) == digest_of(archive)
    assert (site.requests, waits) == (3, [1, 2])
    assert (tmp_path / "part").read_bytes() == archive


def test_parts_of_two_versions_are_never_joined(site, tmp_path, archive):
    site.files[FILE], site.cuts = bytes(len(archive)), [1_000]

    def changes(_):
        site.files[FILE] = archive

    assert download(Download(site.url(FILE), tmp_path / "part", wait=changes), no_report) == digest_of(archive)
    assert (tmp_path / "part").read_bytes() == archive


@pytest.mark.parametrize(
    ("headers", "waits_s"), [([{}, {}], [1, 2]), ([{"Retry_After": "7"}], [7]), ([{"Retry_After": "soon"}], [1])]
)
def test_a_busy_server_is_asked_again(site, tmp_path, archive, headers, waits_s):
    site.busy, waits = headers, []
    assert received(site.url(FILE), tmp_path, waits) == digest_of(archive)
    assert waits == waits_s


@pytest.mark.parametrize(("headers", "requests"), [([{}] * 9, 5), ([{"Retry_After": "3600"}], 1)])
def test_a_server_that_stays_busy_is_given_up(site, tmp_path, headers, requests):
    site.busy = headers
    with pytest.raises(DownloadError, match=r"the server is busy \(HTTP 503\); run the same command later"):
        received(site.url(FILE), tmp_path)
    assert site.requests == requests


def test_a_connection_that_is_lost_each_time_is_given_up(site, tmp_path):
    site.cuts = [100] * 20
    with pytest.raises(DownloadError, match=r"the connection was lost \(.*\); run the same command later"):
        received(site.url(FILE), tmp_path)
    assert site.requests == 5


def test_without_a_server_the_error_says_what_to_copy_where(in_list, tmp_path, monkeypatch):
    url = f"http://127.0.0.1:{free_port()}/{FILE}"
    done = fetch(url)
    assert done.exit_code == 1
    line = one_line(done)
    assert f"{url}: cannot be reached ([Errno 111] Connection refused)" in line
    assert f"copy {FILE} to this machine, run `mkdir -p {tmp_path / NAME} && tar xf {FILE} -C {tmp_path / NAME}" in line
    assert left(tmp_path) == []
    unknown = fetch(f"https://host.invalid/{FILE}")
    assert unknown.exit_code == 1
    assert f"https://host.invalid/{FILE}: cannot be reached (" in one_line(unknown)


def test_a_server_that_does_not_answer_is_given_up(tmp_path):
    silent = Site()  # accepts connections and never serves them
    with pytest.raises(Unreachable, match=r"cannot be reached \(timed out\)"):
        received(silent.url(FILE), tmp_path, timeout_s=0.05)
    silent.server_close()


def test_a_refusal_of_the_server_is_reported(site, tmp_path):
    done = fetch(site.url("nothing.tar.bz2"))
    assert done.exit_code == 1
    assert one_line(done).endswith("nothing.tar.bz2: refused with HTTP 404")
    assert left(tmp_path) == []


def test_redirects_are_followed_to_http_alone(site, tmp_path):
    site.moved = {"old.tar.bz2": site.url(FILE), "a.tar.bz2": "file:///etc/passwd", "b.tar.bz2": "ftp://127.0.0.1/x"}
    site.moved["c.tar.bz2"] = site.url("c.tar.bz2")
    assert fetch(site.url("old.tar.bz2"), "--out", "old").exit_code == 0
    assert "redirects to file:/etc/passwd, which is less safe" in one_line(fetch(site.url("a.tar.bz2")))
    assert "redirects to ftp://127.0.0.1/x, which is less safe" in one_line(fetch(site.url("b.tar.bz2")))
    with pytest.raises(DownloadError, match="redirects"):
        received(site.url("c.tar.bz2"), tmp_path)


def test_redirects_from_https_to_http_are_refused():
    def redirect(location):
        request = httpx.Request("GET", "https://host/a.zip")
        check_redirect(httpx.Response(302, headers={"Location": location}, request=request))

    with pytest.raises(DownloadError, match=r"redirects to http://other/a\.zip\?…, which is less safe"):
        redirect("http://other/a.zip?key=1")
    redirect("https://other/a.zip")
    redirect("/b.zip")


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
