"""Find addresses by which the processes of a cluster reach each other."""

import ipaddress
import logging
import socket

from zindex.errors import ConfigError
from zindex.io.system_errors import reason_of

logger = logging.getLogger("zindex.cluster")

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can reach an address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(host: str) -> str:
    """Resolve a host name to an address.

    Raises
    ------
    ConfigError
        If the name does not resolve.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(
            f"{host} must be the name or address of a host, the system says: {reason_of(error)}; "
            "give one that all nodes know, or an address"
        ) from error


def warn_if_open(host: str, encryption: str) -> None:
    """Log a warning if other users can reach a scheduler without a certificate."""
    if encryption == "none" and not is_loopback(resolve(host)):
        logger.warning(
            "the cluster at %s is not encrypted: everybody who reaches it can run code as this "
            "user; leave encryption out to have TLS",
            host,
        )


def address_towards(peer: str) -> str:
    """Return this machine's address on the route to a peer; no packet is sent."""
    address = resolve(peer)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise ConfigError(
                f"{peer} must be reachable from this machine, the system says: {reason_of(error)}; "
                "give the address of this machine that other nodes reach with host "
                "(--cluster-host)"
            ) from error
        return str(probe.getsockname()[0])


def own_address(job_master: tuple[str, int] | None) -> str:
    """Return the address by which other nodes reach this one.

    Parameters
    ----------
    job_master
        Host and port of the job's master, if known.

    Notes
    -----
    On the master's node the route to the master is local and yields its address. The host name
    is the last resort, because some machines resolve it to loopback.
    """
    if job_master is not None:
        return address_towards(job_master[0])
    address = resolve(socket.gethostname())
    if not is_loopback(address):
        return address
    # Any external address selects the interface of the default route; no packet is sent.
    try:
        return address_towards("192.0.2.1")
    except ConfigError:
        return address
