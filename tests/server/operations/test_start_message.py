"""Start message of `tutti serve`: from a real process, and each line by its settings."""

from __future__ import annotations

import re
import signal

import pytest

from server.operations.start_message import start_message
from server.settings import Settings
from tests.support.servers.server_process import REAL, ServerProcess

URL = "http://127.0.0.1:8080"
QUICK = {"program": ("-c", REAL), "model": "gru", "decoder": "greedy"}  # which needs no time to compile


def test_serve_prints_its_address_who_may_use_it_and_how_to_stop() -> None:
    with ServerProcess(**QUICK, max_streams="auto", log_format="console") as server:
        server.until(lambda: any("Ctrl-C" in line["raw"] for line in server.log))
        said = "".join(line["raw"] for line in server.log)
        (url,) = re.findall(r"open +(http://\S+) in a browser", said)
        assert f"{url}/docs" in said
        with server.http as http:
            assert [http.get(path).status_code for path in ("/", "/docs")] == [200, 200]
            assert http.post("/admin/drain").status_code == 403
        assert re.search(r"streams +about [1-9]\d* at a time, estimated for this machine at run time", said)
        assert re.search(r"keys +none are set: anyone who can reach this address can use it", said)
        assert re.search(r"/admin +closed: no admin key is set; .*--admin-local", said)
        assert re.search(r"stop +Ctrl-C drains: .*20 s.*a second Ctrl-C exits immediately", said)
        assert server.stop(signal.SIGINT) == 0
        assert any("drained" in line["raw"] for line in server.rest_of_log())


def test_json_logs_have_the_same_facts_in_the_start_line_and_no_other_text() -> None:
    with ServerProcess(**QUICK, max_streams=7) as server:
        line = server.wait_for("listening")
        assert line["docs"] == f"{line['url']}/docs"
        assert (line["streams"], line["streams_fixed"]) == (7, True)
        assert line["keys"].startswith("none are set")
        assert line["admin"].startswith("closed")
        assert all("raw" not in each for each in server.log)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_streams": 12}, "12 at a time, fixed by --max-streams or TUTTI_MAX_STREAMS"),
        ({"api_keys": ["k"]}, "every client needs a key"),
        ({"api_keys_file": "keys"}, "every client needs a key"),
        ({"admin_keys": ["k"], "admin_local": True}, "open with an admin key"),
        (
            {"admin_local": True},
            "open to this machine without a key; a proxy on this machine would open it to everyone:",
        ),
        ({"drain_timeout_s": 3_600}, "3600 s for open ones"),
        ({"vosk_port": 2_700}, "clients of the vosk port send no key"),
        ({"wyoming_port": "0.0.0.0:10300"}, "its clients send no key: anyone who can reach 0.0.0.0:10300 can use it"),
    ],
)
def test_each_fact_follows_the_settings(settings: dict[str, object], said: str) -> None:
    assert said in start_message(Settings(**settings), URL, 12)
    assert said not in start_message(Settings(), URL, 500)


def test_each_port_without_keys_has_a_line_of_its_own() -> None:
    text = start_message(
        Settings(wyoming_port="[::]:10300", audiosocket_port="192.0.2.1:9092?forward_url=ws://a"), URL, 1
    )
    assert re.findall(r"^  (wyoming|audiosocket) +its clients send no key: .* reach (\S+) can", text, re.MULTILINE) == [
        ("wyoming", "[::]:10300"),
        ("audiosocket", "192.0.2.1:9092"),
    ]


@pytest.mark.parametrize("address", ["10300", "localhost:10300", "[::1]:10300"])
def test_a_port_without_keys_for_this_machine_alone_is_no_warning(address: str) -> None:
    assert "10300" not in start_message(Settings(wyoming_port=address), URL, 12)
