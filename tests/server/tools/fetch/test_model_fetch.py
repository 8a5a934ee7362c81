"""`tutti model fetch`: the list, a fetched model, its options, progress, and what stays after a failure."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile

import pytest

from model.published.contracts import KINDS
from server.tools.fetch import model_fetch
from server.tools.fetch import releases as listed
from server.tools.fetch.download import url_problem
from tests.support.networks.probes import make_probe
from tests.support.servers.release_site import FILE, NAME, digest_of, fetch, left, one_line, tar_of

TRANSDUCERS = {"zipformer2-transducer", "nemo-transducer", "nemo-buffered-transducer"}


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


@pytest.mark.parametrize(
    ("given", "problem"),
    [("abc", "--sha256 abc: must be 64 hexadecimal digits"), ("1" * 64, f"the list has {'0' * 64} for {NAME}")],
)
def test_a_digest_that_is_none_or_not_that_of_the_list_is_refused_before_the_download(site, in_list, given, problem):
    in_list(sha256="0" * 64)
    done = fetch(NAME, "--sha256", given)
    assert done.exit_code == 2
    assert problem in one_line(done)
    assert site.requests == 0


def test_an_unknown_name_is_refused_with_the_nearest_ones(site):
    done = fetch("sherpa-onnx-streaming-t-one-russian")
    assert done.exit_code == 2
    assert "did you mean sherpa-onnx-streaming-t-one-russian-2025-09-08 or " in one_line(done)
    assert "kroko" in one_line(fetch("kroko"))
    assert "has no similar name" in one_line(fetch("%%%"))
    assert "models of WeNet are not served" in one_line(fetch("sherpa-onnx-zh-wenet-wenetspeech"))


def test_a_folder_that_exists_is_replaced_by_force_alone(site, in_list, tmp_path):
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "mine.txt").write_text("kept")
    done = fetch(NAME)
    assert done.exit_code == 1
    assert f"{tmp_path / NAME}: already exists; " in one_line(done)
    assert site.requests == 0
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
        monkeypatch.setattr(model_fetch, "download", interrupt)
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
        (row,) = [row for row in rows if "nemotron-3.5-asr-streaming-0.6b-560ms" in row]
        assert "en,es,fr,it,pt,nl,de,tr and 20 more  475  known      OpenMDW-1.1" in row


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
    digests = [release.sha256 for release in releases if release.sha256]
    assert len(set(digests)) == len(digests)
