"""Keys of receipts: Ed25519 in a file of JSON Web Keys, the signatures (JWS), and the public keys (JWKS).

Source: RFC 7515 (JWS), RFC 7517 (JWK), RFC 7638 (key ids are thumbprints), RFC 9864 (the algorithm `Ed25519`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.util import urlsafe_b64encode

from server.errors import SettingsError

ALGORITHM: Final = "Ed25519"
_TYPE = "tutti-receipt"


class BadSignature(Exception):
    """A receipt that no known key has signed, or that was changed."""


class ReceiptKeys:
    """Keys that verify receipts; the first one signs, if it is private."""

    def __init__(self, keys: list[OKPKey]) -> None:
        """`keys`: at least one."""
        assert keys, "at least one key is needed"
        self._keys = {_id(key): key for key in keys}
        self._first = keys[0]
        header = {"alg": ALGORITHM, "typ": _TYPE, "kid": _id(self._first)}
        self._head = urlsafe_b64encode(json.dumps(header, separators=(",", ":")).encode())
        private: Any = self._first.get_op_key("sign") if self.signs else None
        self._sign = None if private is None else private.sign

    @classmethod
    def new(cls, others: ReceiptKeys | None = None) -> ReceiptKeys:
        """Return a new key that signs, with others that verify."""
        key = OKPKey.generate_key(ALGORITHM, private=True)
        return cls([key, *(() if others is None else others._keys.values())])

    @classmethod
    def read(cls, text: str) -> ReceiptKeys:
        """Read a JWK or a set of them. Raises: ValueError without any part of the text."""
        try:
            document = json.loads(text)
            return cls([_key(key) for key in document.get("keys", [document])])
        except (ValueError, TypeError, KeyError, AttributeError, JoseError, AssertionError):
            raise ValueError("expected a JSON Web Key of type Ed25519, or a set of them") from None

    @classmethod
    def load(cls, path: Path) -> ReceiptKeys:
        """Read the file of a server, whose first key is private. Raises: SettingsError."""
        try:
            keys = cls.read(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise SettingsError(f"{path}: {error}; `tutti keys receipt --file {path}` makes one") from None
        if not keys.signs:
            raise SettingsError(f"{path}: the first key is public and cannot sign; put the private key first")
        return keys

    @property
    def signs(self) -> bool:
        """Whether there is a private key."""
        return self._first.is_private

    def sign(self, payload: bytes) -> str:
        """Return the payload as a compact JWS: what joserfc makes, at two thirds of the time."""
        signed = self._head + b"." + urlsafe_b64encode(payload)
        assert self._sign is not None, "`load` checks it"
        signature: bytes = self._sign(signed)
        return (signed + b"." + urlsafe_b64encode(signature)).decode()

    def verify(self, receipt: str) -> bytes:
        """Return the payload of a compact JWS. Raises: BadSignature."""
        try:
            kid = jws.extract_compact(receipt.encode()).headers().get("kid")
            key = self._keys.get(str(kid))
            if key is None:
                raise BadSignature(f"signed with the unknown key {str(kid)[:64]!r}")
            return jws.deserialize_compact(receipt, key, algorithms=[ALGORITHM]).payload
        except (JoseError, ValueError) as error:
            raise BadSignature("not signed by its key, or changed") from error

    def as_text(self, *, private: bool) -> str:
        """Return the set of keys as JSON: with the private parts for the file, without them for everybody."""
        keys = [
            key.as_dict(private=private and key.is_private) | {"alg": ALGORITHM, "use": "sig", "kid": kid}
            for kid, key in self._keys.items()
        ]
        return json.dumps({"keys": keys}, indent=2 if private else None, sort_keys=True)


def payload_of(receipt: str) -> bytes:
    """Return the payload of a compact JWS without a check of its signature. Raises: BadSignature."""
    try:
        return jws.extract_compact(receipt.encode()).payload
    except (JoseError, ValueError) as error:
        raise BadSignature("not a compact JWS") from error


def _key(parameters: Any) -> OKPKey:
    if parameters.get("crv") != ALGORITHM:
        raise ValueError("another kind of key")
    return OKPKey.import_key({name: parameters[name] for name in ("kty", "crv", "x", "d") if name in parameters})


def _id(key: OKPKey) -> str:
    return key.thumbprint()
