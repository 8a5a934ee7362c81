"""The OpenAPI document has every endpoint and parameter, and a running server conforms to it."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import jsonschema
import pytest
import schemathesis
import soundfile
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from server.http.api_docs import OPERATIONS
from server.protocols.deepgram.parameters import PARAMETERS
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell

KEY = "s3cret-k3y"
EXAMPLES = 25  # per operation
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    port = "0?forward_url=ws://127.0.0.1:1/text"  # without it the paths of its calls are unknown
    with LiveServer(api_keys=[KEY], max_upload_bytes=2**20, audiosocket_port=port) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: LiveServer) -> dict:
    return server.http.get("/openapi.json").json()


def test_a_running_server_conforms_to_the_document(server: LiveServer) -> None:
    schema = schemathesis.openapi.from_url(f"http://{server.host}/openapi.json")
    # A drain ends the server; its responses are checked in other tests.
    schemathesis.serializer.alias(["audio/*"], "application/octet-stream")
    operations = [found.ok() for found in schema.exclude(path="/admin/drain", method="POST").get_all_operations()]
    assert len(operations) > 10
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def answers(case: schemathesis.Case) -> None:
            case.headers["Authorization"] = f"Token {KEY}"
            case.call_and_validate(base_url=f"http://{server.host}", checks=CHECKS, timeout=WAIT_S)

        answers()


def test_every_http_endpoint_is_described_with_its_responses(server: LiveServer, document: dict) -> None:
    found = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert found == set(OPERATIONS), "FastAPI provides paths and methods; responses must be in OPERATIONS"
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                assert response.get("content") or status in ("204", "422"), (path, status)


def test_parameters_are_those_of_the_parsers_table(document: dict) -> None:
    described = document["paths"]["/v1/listen"]["post"]["parameters"]
    assert [parameter["name"] for parameter in described] == [parameter.name for parameter in PARAMETERS]
    descriptions = {parameter["name"]: parameter["description"] for parameter in described}
    live_only = " For live streams only; for uploads it is listed in `x-ignored-params`."
    assert descriptions["vad_events"] == "`SpeechStarted`." + live_only
    assert descriptions["latency"] == "Ours: the parts of each result's latency." + live_only
    assert descriptions["model"] == "Name of a model; others select the default, unless names are strict."


def test_real_responses_match_their_schemas(server: LiveServer, document: dict) -> None:
    def fits(answer: httpx.Response, path: str, method: str = "post") -> None:
        content = document["paths"][path][method]["responses"][str(answer.status_code)]["content"]
        schema = content["application/json"]["schema"] | {"components": document["components"]}
        jsonschema.validate(answer.json(), schema, jsonschema.Draft202012Validator)

    headers = {"Authorization": f"Token {KEY}"}
    file = io.BytesIO()
    soundfile.write(file, spell("a file"), 16_000, format="WAV")
    good = server.http.post("/v1/listen?punctuate=true", content=file.getvalue(), headers=headers)
    assert good.status_code == 200
    fits(good, "/v1/listen")
    broken = good.json()
    del broken["results"]["channels"][0]["alternatives"][0]["transcript"]
    with pytest.raises(jsonschema.ValidationError):
        fits(httpx.Response(200, json=broken), "/v1/listen")
    for answer in (server.http.post("/v1/listen"), server.http.post("/v1/listen", headers=headers, content=b"no")):
        fits(answer, "/v1/listen")
    for asked in ({"ttl_seconds": 5}, {"ttl_seconds": 0}):
        fits(server.http.post("/v1/auth/grant", headers=headers, json=asked), "/v1/auth/grant")
    for kind in ("json", "verbose_json"):
        form = {"response_format": kind}
        answer = server.http.post(
            "/v1/audio/transcriptions", headers=headers, data=form, files={"file": file.getvalue()}
        )
        assert answer.status_code == 200
        fits(answer, "/v1/audio/transcriptions")
    for path in ("/v1/status", "/v2", "/v2/health/live", "/v2/health/ready"):
        fits(server.http.get(path), path, "get")
