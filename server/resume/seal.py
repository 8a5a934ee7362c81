"""Authenticated encryption of tickets: AES-256-GCM with keys derived from the operator's keys.

Each process derives its own key from the first key and a random salt, which is part of each sealed text. So no two
processes share a key, and random nonces do not repeat (up to 2**32 texts per process; source: NIST SP 800-38D, section
8.3). All keys decrypt: to rotate them, put the new one first and remove the old one when its last ticket has expired.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from server.errors import SettingsError

KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
OVERHEAD_BYTES = SALT_BYTES + NONCE_BYTES + 16  # the 16 are the tag
PROCESSES = 64  # number of processes whose derived keys are cached


class Unsealed(Exception):
    """Bytes sealed with another key, or modified."""


class Seal:
    """Encrypts with the first key, decrypts with any key."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys`: at least one, each of `KEY_BYTES`."""
        assert keys, "at least one key is needed"
        self._keys = tuple(keys)
        self._salt = os.urandom(SALT_BYTES)
        self._cipher = AESGCM(_derived(self._keys[0], self._salt))
        self._ciphers = lru_cache(PROCESSES * len(self._keys))(_cipher)

    def close(self, plain: bytes, header: bytes) -> bytes:
        """Encrypt and authenticate `plain`; `header` is only authenticated, and `open` needs the same one."""
        nonce = os.urandom(NONCE_BYTES)
        return self._salt + nonce + self._cipher.encrypt(nonce, plain, header)

    def open(self, closed: bytes, header: bytes) -> bytes:
        """Return the decrypted bytes. Raises: Unsealed."""
        salt, nonce = closed[:SALT_BYTES], closed[SALT_BYTES : SALT_BYTES + NONCE_BYTES]
        if len(closed) < OVERHEAD_BYTES:
            raise Unsealed("too short for sealed bytes")
        for key in self._keys:
            try:
                return self._ciphers(key, salt).decrypt(nonce, closed[SALT_BYTES + NONCE_BYTES :], header)
            except InvalidTag:
                continue
        raise Unsealed("sealed with another key, or modified")


def new_key() -> str:
    """Return a new random key in base64, as `read_keys` expects."""
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def read_keys(keys: Iterable[tuple[str, str]]) -> list[bytes]:
    """Decode keys, each with its location; `#` begins a comment. Raises: SettingsError, without the key."""
    return [_read_key(place, key.partition("#")[0].strip()) for place, key in keys]


def _read_key(place: str, key: str) -> bytes:
    try:
        read = base64.b64decode(key + "=" * (-len(key) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        read = b""
    if len(read) != KEY_BYTES:
        raise SettingsError(f"{place}: expected {KEY_BYTES} bytes in base64; create a key with `tutti keys resume`")
    return read


def _derived(key: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"tutti resume ticket").derive(key)


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(_derived(key, salt))
