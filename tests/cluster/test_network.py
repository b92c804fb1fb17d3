"""Addresses under which processes reach each other."""

import logging

import pytest

from zindex.cluster.network import address_towards, is_loopback, own_address, resolve, warn_if_open
from zindex.errors import ConfigError


def test_addresses() -> None:
    assert resolve("127.0.0.1") == "127.0.0.1"
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("10.1.2.3")
    assert address_towards("127.0.0.1") == own_address(("127.0.0.1", 1)) == "127.0.0.1"
    with pytest.raises(ConfigError, match="must be the name or address of a host"):
        resolve("no-such-host.invalid")


def test_what_is_open_to_others_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zindex.cluster"):
        warn_if_open("127.0.0.1", "none")
        warn_if_open("10.0.0.1", "tls")
        assert not caplog.records
        warn_if_open("10.0.0.1", "none")
    assert "the cluster at 10.0.0.1 is not encrypted" in caplog.text
