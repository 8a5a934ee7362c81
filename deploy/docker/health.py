"""Health check of the container, for an image without curl: exit code 0 if the local server answers 200.

`python -I health.py [PATH]`; the default path is `/healthz`, address and port are `TUTTI_HOST` and `TUTTI_PORT`.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_S = 3.0

HEALTHY, UNHEALTHY = 0, 1
HERE = "127.0.0.1"
ALL_INTERFACES = ("", "0.0.0.0", "::")  # noqa: S104 - addresses of the server, not of this program


def check(path: str, port: int, host: str = HERE) -> int:
    """Check once and return the exit code. `host` is the address that the server listens on."""
    host = host.strip("[] ")
    connection = http.client.HTTPConnection(HERE if host in ALL_INTERFACES else host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return HEALTHY if connection.getresponse().status == http.HTTPStatus.OK else UNHEALTHY
    except (OSError, http.client.HTTPException):
        return UNHEALTHY
    finally:
        connection.close()


if __name__ == "__main__":
    path, port = sys.argv[1] if len(sys.argv) > 1 else "/healthz", int(os.environ.get("TUTTI_PORT") or "8080")
    sys.exit(check(path, port, os.environ.get("TUTTI_HOST", "")))
