"""What this machine says of its own network, for a bookie's address."""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path

import pytest

from fastbk.apache.configuration import key_translation
from fastbk.apache.configuration.key_translation import Machine


def test_the_loopback_interface_has_its_address() -> None:
    assert Machine().interface_address("lo") == "127.0.0.1"
    assert Machine().address_of("127.0.0.1") == "127.0.0.1"
    assert Machine().name_of("127.0.0.1")


def test_every_interface_has_an_address_or_says_why_not() -> None:
    for _, name in socket.if_nameindex():
        try:
            found = Machine().interface_address(name)
        except OSError as error:
            found = errno.errorcode[error.errno or 0]
        assert found in ("EADDRNOTAVAIL", "ENODEV") or ipaddress.ip_address(found)


def test_an_interface_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="No such device"):
        Machine().interface_address("none9")


def test_of_ipv6_addresses_a_link_local_one_is_the_last_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's table: key_translation, index, prefix, scope, flags, name."""
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe80000000000000020000fffe000001 02 40 20 80     six\n"
        "20010db8000000000000000000000006 02 40 00 80     six\n"
        "fe80000000000000020000fffe000002 03 40 20 80     far\n"
    )
    monkeypatch.setattr(key_translation, "VERSION_6_TABLE", table)
    assert Machine().interface_address("six") == "2001:db8::6"
    assert Machine().interface_address("far") == "fe80::200:ff:fe00:2"
    monkeypatch.setattr(key_translation, "VERSION_6_TABLE", tmp_path / "none")
    with pytest.raises(OSError, match="No such device"):
        Machine().interface_address("six")
