"""An archive of a probe model, the server that has it, and a list with its name."""

from __future__ import annotations

from threading import Thread

import pytest

from server.tools.fetch import releases as listed
from tests.support.networks.probes import make_probe
from tests.support.servers.release_site import FILE, NAME, Site, tar_of


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    return make_probe("t-one-ctc", tmp_path_factory.mktemp("probe") / NAME).folder


@pytest.fixture(scope="module")
def archive(probe):
    return tar_of(probe)


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
