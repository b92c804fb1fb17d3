"""Addresses under which the processes of a cluster reach each other."""

import ipaddress
import logging
import socket

from zindex.errors import ConfigError

logger = logging.getLogger("zindex.cluster")

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(host: str) -> str:
    """Return the address of a host by name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(
            f"{host} must be the name or address of a host, got {error}; give one that all nodes "
            "know, or an address"
        ) from error


def warn_if_open(host: str, encryption: str) -> None:
    """Say it, each time, where others than this run's processes can use a scheduler."""
    if encryption == "none" and not is_loopback(resolve(host)):
        logger.warning(
            "the cluster at %s is not encrypted: whoever reaches it can run code as this user; "
            "leave encryption out to have TLS",
            host,
        )


def address_towards(peer: str) -> str:
    """Return this machine's address as a peer sees it; nothing is sent."""
    address = resolve(peer)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise ConfigError(
                f"{peer} must be reachable from this machine, got {error}; give the host that "
                "other nodes reach, as host="
            ) from error
        return str(probe.getsockname()[0])


def own_address(job_master: tuple[str, int] | None) -> str:
    """Return the address under which other nodes reach this one.

    Parameters
    ----------
    job_master
        Where the ranks of the job find each other, if that is known.

    Notes
    -----
    On the master's node the way to the master is a way to itself, so its own address comes back.
    A machine's own name is the last resort: some resolve it to a loopback address.
    """
    candidates = [] if job_master is None else [job_master[0]]
    for host in candidates:
        address = resolve(host)
        return address_towards(address)
    address = resolve(socket.gethostname())
    if not is_loopback(address):
        return address
    # Any address outside names the interface of the default route; nothing is sent.
    try:
        return address_towards("192.0.2.1")
    except ConfigError:
        return address
