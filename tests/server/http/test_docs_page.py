"""The page `/docs` in a real Chromium that can reach only the server."""

import re
from urllib.parse import urlsplit

from tests.support.page.browser import WAIT_MS

pytest_plugins = ["tests.support.page.browser_fixtures"]


def test_docs_lists_the_operations_without_any_other_host(live_server, browser):
    server = live_server()
    with browser.new_context() as context:
        asked, problems = set(), []
        context.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
        context.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        context.on("weberror", lambda raised: problems.append(str(raised.error)))
        context.route(lambda url: urlsplit(url).netloc != server.host, lambda route: route.abort())
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"http://{server.host}/docs")
        page.locator(".opblock-summary", has_text="/v1/listen").wait_for()
        shown = page.locator(".opblock-summary-path").all_inner_texts()
        assert {re.sub(r"[\u200b\s]", "", path) for path in shown} == set(server.app.openapi()["paths"])
        page.get_by_role("button", name="/healthz").first.click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table .response-col_status", has_text="200").wait_for()
    assert asked == {server.host}
    assert problems == []


def test_docs_refers_to_no_other_host(live_server):
    http = live_server().http
    page = http.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "//" not in re.sub("<!--.*?-->", "", page.text)
    addresses = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    assert len(addresses) == 3
    for address in addresses:
        assert http.get(f"/{address}").status_code == 200, address
    for path in ("/redoc", "/docs/redoc.standalone.js", "/docs/oauth2-redirect"):
        assert http.get(path).status_code == 404, "ReDoc would load a picture from another host"
