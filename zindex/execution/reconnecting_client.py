"""A Dask client that reconnects soon after its scheduler is restarted."""

import math
from functools import cache
from typing import Any

from zindex.errors import ConfigError

#: Seconds that a client tries to reach a lost scheduler; builds have another timeout.
RECONNECT_SECONDS = 600.0
# Dask's client pauses between attempts for up to the time that it has already tried, and may miss a
# scheduler for minutes. Attempts of this length keep the pauses short.
_ATTEMPT_SECONDS = 3.0


def connect_client(address: str, *, patience: float = RECONNECT_SECONDS, **settings: Any) -> Any:
    """Return a ``distributed.Client`` that survives the loss of its scheduler.

    Parameters
    ----------
    address
        Address of the scheduler, before and after a restart.
    patience
        Seconds that the client tries to reach a lost scheduler before it closes.
    settings
        Arguments of ``distributed.Client``; its ``timeout`` applies to the first connection.

    Raises
    ------
    ConfigError
        If no scheduler answers at the address, or it needs a certificate and none is known.
    """
    from distributed.security import Security

    security = settings.get("security") or Security()
    if address.startswith("tls://") and not security.get_connection_args("client")["ssl_context"]:
        raise ConfigError(
            f"a scheduler at {address} needs a certificate, Dask's configuration names none; set "
            "distributed.comm.tls there, or give --cluster and --cluster-folder"
        )
    try:
        client = _client_class()(address, **{"set_as_default": False} | settings)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"a Dask scheduler must answer at {address}, none does: {error}"
        ) from error
    # As an argument of the constructor it would delay the error for a wrong address.
    client._timeout = patience
    return client


class _Futures(dict[Any, Any]):
    """Futures by key; iteration survives concurrent changes.

    Dask iterates in another thread to mark futures as lost, while a build submits and releases
    futures. An error there would end the client's search for a scheduler.
    """

    def values(self) -> Any:
        """Return the current states."""
        return self.copy().values()


@cache
def _client_class() -> Any:
    """Return the client class; loads distributed."""
    from distributed import Client

    class PatientClient(Client):  # type: ignore[misc]
        """A client with short intervals between attempts to reach a lost scheduler."""

        #: Whether builds continue in this process once the cluster is lost.
        is_dispensable = False
        _attempt_seconds = math.inf

        def __init__(self, *args: Any, **settings: Any) -> None:
            try:
                super().__init__(*args, **settings)
            except BaseException:
                if hasattr(self, "_loop_runner"):
                    self.close()
                raise
            self.futures: dict[Any, Any] = _Futures()

        def close(self, *args: Any, **settings: Any) -> Any:
            closing = super().close(*args, **settings)
            # Dask leaves the thread of a client that found no scheduler and closed itself.
            if not (self.asynchronous or self._is_finalizing()):
                self._loop_runner.stop()
            return closing

        async def _reconnect(self) -> None:
            self._attempt_seconds = _ATTEMPT_SECONDS
            await super()._reconnect()

        async def _ensure_connected(self, timeout: float | None = None) -> None:
            if timeout is not None:
                timeout = min(timeout, self._attempt_seconds)
            await super()._ensure_connected(timeout=timeout)

    return PatientClient
