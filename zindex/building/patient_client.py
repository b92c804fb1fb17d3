"""A Dask client that finds a scheduler again soon after it is started again."""

import math
from functools import cache
from typing import Any

from zindex.errors import ConfigError

#: Seconds that a client tries to reach a lost scheduler; each build has a patience of its own.
RECONNECT_SECONDS = 600.0
# Dask's client pauses between attempts to connect for up to the time that it has tried already, and
# so may miss a scheduler for minutes. In attempts of this length the pauses stay short.
_ATTEMPT_SECONDS = 3.0


def connect_client(address: str, *, patience: float = RECONNECT_SECONDS, **settings: Any) -> Any:
    """Return a ``distributed.Client`` that outlives its scheduler.

    Parameters
    ----------
    address
        Where a scheduler must answer now, and where it is looked for once it is lost.
    patience
        Seconds that the client tries to reach a lost scheduler, before it closes.
    settings
        Of ``distributed.Client``; its ``timeout`` is that of the first connection.

    Raises
    ------
    ConfigError
        If no scheduler answers at the address.
    """
    try:
        client = _client_class()(address, **{"set_as_default": False} | settings)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"a Dask scheduler must answer at {address}, none does: {error}"
        ) from error
    # An argument of the constructor would make a wrong address cost as long.
    client._timeout = patience
    return client


class _Futures(dict[Any, Any]):
    """Futures by key, some of which may come and go while a loop goes through their states.

    Dask does so in a thread of its own to tell each that it is lost, while a build submits others
    and forgets some. An error there would end the client's search for a scheduler.
    """

    def values(self) -> Any:
        """Return the states that there are now."""
        return self.copy().values()


@cache
def _client_class() -> Any:
    """Return the class of such clients; distributed is loaded where one is needed."""
    from distributed import Client

    class PatientClient(Client):  # type: ignore[misc]
        """A client that tries often to reach a lost scheduler."""

        _attempt_seconds = math.inf

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self.futures: dict[Any, Any] = _Futures()

        async def _reconnect(self) -> None:
            self._attempt_seconds = _ATTEMPT_SECONDS
            await super()._reconnect()

        async def _ensure_connected(self, timeout: float | None = None) -> None:
            if timeout is not None:
                timeout = min(timeout, self._attempt_seconds)
            await super()._ensure_connected(timeout=timeout)

    return PatientClient
