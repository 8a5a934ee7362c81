"""Routes of the page: media types, content policy, caching, and 404 for paths beyond the table."""

import re

import pytest

from server.http.api_docs import SWAGGER_UI
from server.http.page import ASSETS
from tests.support.servers.live_server import LiveServer


@pytest.fixture(scope="module")
def client():
    with LiveServer() as server, server.http as http:
        yield http


TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "flac": "audio/flac"}


FILES = (
    "/",
    *(f"/web/{name}" for name in ASSETS),
    "/web/sample.flac",
    "/docs",
    *(f"/docs/{name}" for name in SWAGGER_UI),
)


@pytest.mark.parametrize("path", FILES)
def test_each_file_has_its_type_and_the_policy(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    expected = TYPES.get(path.rpartition(".")[2], "text/html")
    assert answer.headers["content-type"].partition(";")[0] == expected
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content
    assert answer.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


def test_a_file_in_the_browsers_cache_is_answered_304(client):
    first = client.get("/web/app.js")
    again = client.get("/web/app.js", headers={"If-None-Match": f'W/"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/web/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_each_file_has_its_own_etag(client):
    assert len({client.get(f"/web/{name}").headers["etag"] for name in ASSETS}) == len(ASSETS)


@pytest.mark.parametrize(
    "path",
    ["/web/", "/web/../page.py", "/web/%2e%2e/page.py", "/web/..%2fpage.py", "/web//etc/passwd", "/web/index.html",
     "/web/app.js/", "/web/app.js%00.css", "/web/%2e%2e%2f%2e%2e%2fpyproject.toml"],
)  # fmt: skip
def test_paths_beyond_the_table_are_not_found(client, path):
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code in (307, 404)
    assert not re.search(r"import|root:|\[project\]", answer.text)
