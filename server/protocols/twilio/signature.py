"""Whether Twilio sent a request: it signs the URL that it dials. Pure.

Source: twilio.com/docs/usage/security: base64 of HMAC-SHA1 over the URL, by the account's auth token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from server.errors import NotAuthorised


def signature(url: str, auth_token: str) -> str:
    """What Twilio sends as `X-Twilio-Signature` with a handshake to this URL."""
    return base64.b64encode(hmac.digest(auth_token.encode(), url.encode(), hashlib.sha1)).decode()


def check_signature(given: str | None, url: str, auth_token: str) -> None:
    """Raises: NotAuthorised. Some of Twilio's regions sign the URL with a slash at its end."""
    offered = (given or "").encode("utf-8", "replace")
    expected = [signature(candidate, auth_token).encode() for candidate in (url, url.rstrip("/") + "/")]
    if not sum(hmac.compare_digest(offered, one) for one in expected):
        raise NotAuthorised("Twilio did not sign this request.")
