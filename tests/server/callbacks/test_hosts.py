"""The allow-list: which URLs and addresses a result may be posted to."""

from __future__ import annotations

import asyncio

import pytest

from server.callbacks.hosts import AllowedHosts, Forbidden
from server.errors import SettingsError


def test_the_host_that_is_checked_is_the_one_that_is_connected_to() -> None:
    url = AllowedHosts(["results.example.org"]).check("https://evil.example\\@results.example.org/")
    assert url.host == "results.example.org"


def test_names_parents_and_networks_are_allowed() -> None:
    hosts = AllowedHosts(["results.example.org", "*.calls.example.org", "10.1.0.0/16", "::1"])
    for url in (
        "https://results.example.org/x?y=z",
        "http://user:secret@RESULTS.example.org:8443/",
        "https://results.example.org./",
        "https://eu.calls.example.org/",
        "https://a.b.calls.example.org/",
        "http://10.1.2.3/",
        "http://[::1]:9000/",
    ):
        hosts.check(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.org/", "the host example.org is not one of TUTTI_CALLBACK_HOSTS"),
        ("https://calls.example.org/", "the host calls.example.org is not one of"),  # only names below it
        ("https://evilcalls.example.org/", "the host evilcalls.example.org is not one of"),
        ("https://results.example.org.evil.example/", "the host results.example.org.evil.example is not one of"),
        ("https://results.example.org@evil.example/", "the host evil.example is not one of"),
        ("http://10.2.0.1/", "10.2.0.1 is not a public address"),
        ("http://127.0.0.1/", "127.0.0.1 is not a public address"),
        ("http://8.8.8.8/", "the host 8.8.8.8 is not one of"),
        ("http://2130706433/", "the host 2130706433 is not one of"),
        ("http://[::ffff:127.0.0.1]/", "::ffff:7f00:1 is not a public address"),
        ("http://169.254.169.254/latest/meta-data", "169.254.169.254 is not a public address"),
        ("ftp://results.example.org/", "must be a URL that begins with http:// or https://"),
        ("wss://results.example.org/", "must be a URL that begins with http:// or https://"),
        ("results.example.org/x", "must be a URL that begins with http:// or https://"),
        ("http://", "must be a URL that begins with http:// or https://"),
        ("https://results.example.org:x/", "not a URL"),
        (f"https://results.example.org/{'x' * 2_048}", "the URL has 2076 characters; at most 2048"),
    ],
)
def test_other_urls_are_refused(url: str, why: str) -> None:
    hosts = AllowedHosts(["results.example.org", "*.calls.example.org", "10.1.0.0/16"])
    with pytest.raises(Forbidden) as refused:
        hosts.check(url)
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize("entry", ["*", "http://example.org", "exa mple.org", "*.", "10.0.0.0/99", "-x"])
def test_an_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(SettingsError, match="is no host"):
        AllowedHosts([entry])


PRIVATE = (
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
    "64:ff9b:1::a00:1", "2002:a00:1::", "2001:db8::1",
)  # fmt: skip


def resolved(hosts: AllowedHosts, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Resolve a name that has these addresses."""

    async def resolve() -> list[str]:
        async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
            assert (host, port) == ("results.example.org", 443)
            return [(2, 1, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return await hosts.resolve(hosts.check("https://results.example.org/"))

    return asyncio.run(resolve())


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_with_a_private_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = AllowedHosts(["results.example.org"])
    with pytest.raises(Forbidden, match="is not a public address; the operator can list its network"):
        resolved(hosts, monkeypatch, "93.184.216.34", address)


def test_public_addresses_are_taken_and_private_ones_of_a_listed_network(monkeypatch: pytest.MonkeyPatch) -> None:
    public = ("93.184.216.34", "2606:2800:220:1::1", "64:ff9b::808:808")
    assert resolved(AllowedHosts(["results.example.org"]), monkeypatch, *public) == [*public]
    listed = AllowedHosts(["results.example.org", "192.168.0.0/16"])
    assert resolved(listed, monkeypatch, "192.168.1.1") == ["192.168.1.1"]
