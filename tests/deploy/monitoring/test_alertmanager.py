"""A server full of stereo calls: Prometheus raises the alert, Alertmanager calls the webhook; all are real programs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployment.prometheus import RULES, Alertmanager, Prometheus, need, wait_for
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
STEREO = {"channels": 2, "multichannel": "true"}


class Webhook:
    """An HTTP server that keeps what it is sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        kept = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="webhook")
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/alerts"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def alerts(self, name: str, status: str) -> list[dict[str, Any]]:
        """Return the alerts of this name and status that were received."""
        received = [alert for message in list(self.messages) for alert in message["alerts"]]
        return [each for each in received if (each["labels"]["alertname"], each["status"]) == (name, status)]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with contextlib.closing(Webhook()) as found:
        yield found


def hasty_rules(folder: Path) -> Path:
    """Write the shipped rules with a second instead of minutes before an alert fires."""
    asked = yaml.safe_load(RULES.read_text())
    for group in asked["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["for"] = "1s"
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump(asked))
    return path


def test_a_server_full_of_stereo_calls_calls_the_webhook(live_server: Start, tmp_path: Path, webhook: Webhook) -> None:
    need("prometheus-alertmanager")
    server = live_server(max_streams=4)
    manager = Alertmanager(tmp_path, webhook.url)
    prometheus = Prometheus(tmp_path, server.host, hasty_rules(tmp_path), manager.host)
    with contextlib.closing(manager), contextlib.closing(prometheus):
        with server.listen(**STEREO):
            prometheus.wait_for("tutti:sessions_active:share == 0.5")
            with server.listen(**STEREO):
                [alert, *_] = wait_for(lambda: webhook.alerts("TuttiNearCapacity", "firing"), "no call of the webhook")
        wait_for(lambda: webhook.alerts("TuttiNearCapacity", "resolved"), "no call at the end of the alert")
    assert alert["labels"]["severity"] == "ticket"
    assert alert["labels"]["instance"] == server.host
    assert "100%" in alert["annotations"]["summary"]
    assert webhook.messages[0]["receiver"] == "operators"
    assert not webhook.alerts("TuttiDown", "firing")
