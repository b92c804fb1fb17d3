"""A lane: the samples that one loader worker of one rank reads; and what is left for all lanes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zindex.streaming.pool import Pool

STATE_VERSION = 1

#: What a stream was at: JSON values by the name of a source, a mixing or a yield function.
Entries = dict[str, Any]
#: Origin, rank, ranks, slot, slots.
Head = tuple[str, int, int, int, int]
#: What a sample carries: whose it is, what changed with it, and with the first sample of a lane
#: where all began.
Mark = tuple[Head, Entries, dict[str, Any] | None]


@dataclass(frozen=True)
class Lane:
    """One loader worker of one rank."""

    rank: int = 0
    num_ranks: int = 1
    slot: int = 0
    #: Place of the loader worker in the turns of its rank's loader.
    num_slots: int = 1
    worker: int = 0
    #: Number of the loader worker, as torch knows it.

    @property
    def index(self) -> int:
        """Number of this lane."""
        return self.rank * self.num_slots + self.slot

    @property
    def count(self) -> int:
        """Lanes of all ranks."""
        return self.num_ranks * self.num_slots

    def head(self, origin_id: str) -> Head:
        """Return what the states of its samples begin with: plain values, which travel cheaply."""
        return (origin_id, self.rank, self.num_ranks, self.slot, self.num_slots)


@dataclass(frozen=True)
class Origin:
    """Where all lanes began: what was left of each source then.

    The entries of lanes hold for one origin. A run that goes on with as many ranks and workers
    keeps its origin; any other begins at a new one.
    """

    id: str
    #: By source: what the state of a source holds for.
    identities: Mapping[str, str]
    pools: Mapping[str, Pool] = field(default_factory=dict)
    #: By source: damaged samples that were left out before.
    skipped: Mapping[str, int] = field(default_factory=dict)
    #: By yield function: segments that lanes of older origins have begun.
    orphans: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: The origins of those segments.
    older: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: All origins before.
    ancestors: tuple[str, ...] = ()

    def pool(self, name: str) -> Pool:
        """Return what was left of a source."""
        return self.pools.get(name) or Pool()

    def to_json(self) -> dict[str, Any]:
        """Return the origin as JSON values."""
        return {
            "version": STATE_VERSION,
            "id": self.id,
            "identities": dict(self.identities),
            "pools": {name: pool.to_json() for name, pool in self.pools.items()},
            "skipped": dict(self.skipped),
            "orphans": dict(self.orphans),
            "older": dict(self.older),
            "ancestors": list(self.ancestors),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Origin":
        """Return the origin that `to_json` wrote."""
        return cls(
            id=fields["id"],
            identities=fields["identities"],
            pools={name: Pool.from_json(pool) for name, pool in fields["pools"].items()},
            skipped=fields["skipped"],
            orphans=fields["orphans"],
            older=fields["older"],
            ancestors=tuple(fields["ancestors"]),
        )
