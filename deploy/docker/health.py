"""The container's health check, for an image without curl: exit code 0 if the server on this machine answers with 200.

`python -I health.py [PATH]`; the path is `/healthz` unless given, the port that of `TUTTI_PORT`.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_S = 3.0

HEALTHY, UNHEALTHY = 0, 1


def check(path: str, port: int) -> int:
    """Ask once; return the exit code."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return HEALTHY if connection.getresponse().status == http.HTTPStatus.OK else UNHEALTHY
    except (OSError, http.client.HTTPException):
        return UNHEALTHY
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(check(sys.argv[1] if len(sys.argv) > 1 else "/healthz", int(os.environ.get("TUTTI_PORT", "8080"))))
