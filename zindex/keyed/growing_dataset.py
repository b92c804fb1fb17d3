"""Rounds of a growing store as a torch dataset, its loader, and its batches as an iterable."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Unpack, cast

import numpy as np
import torch

from zindex.errors import ConfigError, StateMismatchError, check_whole
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.growing.growing_log import GrowingLog
from zindex.growing.rounds import Priority, Round, RoundJournal, RoundRules
from zindex.io.fork_locks import fork_safe_lock
from zindex.io.objects import PlaceLike
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.dataset_factory import DatasetFactory
from zindex.keyed.growing_store import GrowingStore
from zindex.keyed.sampler import find_ranks
from zindex.loading.loader import Loader, ReadSettings
from zindex.loading.order import SampleOrder
from zindex.loading.sampler import BatchPlan
from zindex.plan.tail import Tail
from zindex.samples.batch import SampleBatch
from zindex.store.commit import fingerprint

_NO_END = 1 << 60


class GrowingDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """The records that a growing store gives to one run, by their position in the run.

    The positions are divided into rounds of ``round_size`` records. A round is chosen when a rank
    first needs it, from the head of the store at that moment, and recorded in the store. So all
    ranks and loader workers get the same records without talking to each other, and so does a run
    that is killed and resumed, or replayed from an earlier state.

    Parameters
    ----------
    train_type
        Kind of the samples: a preset such as ``"grpo"``, a `RecordSchema` or its YAML file; each
        sample is one record.
    store
        Path or URL of the store. It may be empty at first.
    round_size
        Records of a round, usually the samples of one or more steps of all ranks.
    reader
        Name of the run: ranks, and the run when it is resumed, have one name; another run has
        another one. Its settings never change.
    staleness
        Policy versions by which a record may be behind the newest one; None for any.
    priority
        ``"new"`` chooses the newest unused records first, ``"old"`` the oldest.
    num_uses
        Times that a record may be used; unused ones are chosen first.
    records_per_version
        Records after which the trainer publishes a new version: staleness then counts from the
        trainer's version, which is a function of the position. None counts from the newest version
        of the store.
    shuffle, seed
        Whether the records of a round are in a keyed order instead of that of their commits.
    num_samples
        Samples of the run, the length of the dataset; None for no end.
    patience
        Seconds to wait until the store has enough records for a round.
    options
        ``pad_id`` and other settings of the samples, as for ``DatasetFactory.load``.

    Raises
    ------
    ConfigError
        If a setting is invalid.
    StoreNotFoundError
        If there is no growing store.
    FingerprintMismatchError
        If the reader has other settings.

    Notes
    -----
    Reads raise `NotReadyError` after ``patience`` seconds. Evicted records are not chosen any more.
    """

    def __init__(
        self,
        train_type: str | os.PathLike[str] | RecordSchema,
        store: PlaceLike,
        *,
        round_size: int,
        reader: str = "train",
        staleness: int | None = None,
        priority: Priority = "new",
        num_uses: int = 1,
        records_per_version: int | None = None,
        shuffle: bool = True,
        seed: int = 42,
        num_samples: int | None = None,
        patience: float = 600.0,
        **options: Any,
    ) -> None:
        super().__init__()
        rules = RoundRules(
            round_size, staleness, priority, num_uses, records_per_version, shuffle, seed
        )
        if num_samples is not None:
            num_samples = check_whole("num_samples", num_samples, 1)
        self.num_samples = _NO_END if num_samples is None else num_samples
        self.patience = patience
        # Opened at the first read, with the records that there are.
        self._template = _create_template(train_type, options)
        self._journal = RoundJournal(GrowingLog(store), reader, rules)
        self._view: GrowingStore | None = None
        self._lock = fork_safe_lock()
        settings = asdict(rules) | options
        settings |= {"reader": reader, "num_samples": num_samples, "patience": patience}
        self._arguments = train_type, self._journal.log.root, settings

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_dataset, (type(self), *self._arguments)

    @property
    def rules(self) -> RoundRules:
        """How records are chosen."""
        return self._journal.rules

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of what determines the samples and their order."""
        settings = self._template._settings()
        return fingerprint({"rounds": self._journal.fingerprint, "samples": settings})

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the sample at a position of the run."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> SampleBatch:
        """Return the samples at some positions, read together; waits for records."""
        if not len(indices):
            return SampleBatch.of_items([])
        positions = np.asarray(indices, np.int64)
        if positions.min() < 0 or positions.max() >= self.num_samples:
            raise IndexError(
                f"positions must lie within [0, {self.num_samples:,}), got "
                f"{positions.min():,} to {positions.max():,}"
            )
        numbers, places = np.divmod(positions, self.rules.round_size)
        records = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            found, order = self._journal.find(number, self.patience)
            chosen = numbers == number
            records[chosen] = order[places[chosen]]
        # The last round has the latest generation.
        return self._template._read(self._open(found), records)

    def find_generation(self, position: int) -> int:
        """Return the generation of the round before a position; 0 at the start.

        Raises
        ------
        StateMismatchError
            If no round was recorded there.
        """
        number = -(-position // self.rules.round_size) - 1
        if number < 0:
            return 0
        found = self._journal.read(number)
        if found is None:
            raise StateMismatchError(
                f"position {position:,} must be one that reader {self._journal.reader!r} of "
                f"{self._journal.log.root} has reached, round {number} is not recorded; restore "
                "the store, or begin at an earlier state"
            )
        return found.generation

    def collate(self, batch: Sequence[Any]) -> Any:
        """Return the tensors of a batch; a ``collate_fn`` for torch's DataLoader."""
        return self._template.collate(batch)

    def _open(self, wanted: Round) -> GrowingStore:
        """Return the records up to a round, or later ones, by their global numbers."""
        log = self._journal.log
        log.wait_for(wanted.generation)
        with self._lock, log.lock:
            if self._template.storage is None:
                # The records of the round show what other keys than the declared ones are like.
                chosen = log.history.find_generations(wanted.ranges)
                self._template.open(GrowingStore.over(log, chosen, is_dense=True))
            view = self._view
            if view is None or cast("int", view.generation) < wanted.generation:
                chosen = np.arange(log.history.num_generations)
                view = self._view = GrowingStore.over(log, chosen, is_dense=False)
            return view


def _make_dataset(
    kind: type[GrowingDataset], train_type: Any, store: Any, settings: Mapping[str, Any]
) -> GrowingDataset:
    return kind(train_type, store, **settings)


def _create_template(train_type: Any, options: Mapping[str, Any]) -> BaseDataset:
    """Return the dataset that makes samples of records."""
    for name in ("split", "split_weights", "split_seed"):
        if name in options:
            raise ConfigError(
                f"{name} must be left out for rounds of a growing store, whose records all train; "
                "split one of its generations, which zindex.keyed.open_growing opens"
            )
    return DatasetFactory.create(train_type, 1, mode="records", **options)


class GrowingLoader(Loader):
    """A `Loader` over rounds of a growing store; created by `growing_loader`.

    Its states name the generation of the last round, and are checked against the recorded rounds.
    """

    dataset: GrowingDataset

    def state_dict(self) -> dict[str, Any]:
        """Return the state, equal on all ranks at the same step.

        Returns
        -------
        state
            ``version``, ``fingerprint``, ``consumed_samples``, ``epoch`` and ``generation``: plain
            values.
        """
        generation = self.dataset.find_generation(self.consumed_samples)
        return super().state_dict() | {"generation": generation}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the same records follow as before, in the same order.

        Raises
        ------
        StateMismatchError
            If the state belongs to other samples, or the rounds before it are not recorded.
        """
        if not isinstance(state_dict, Mapping) or "generation" not in state_dict:
            raise StateMismatchError(
                "a state of a growing store must be a mapping with a generation, got "
                f"{state_dict!r}; give what state_dict() returned"
            )
        rest = {name: value for name, value in state_dict.items() if name != "generation"}
        position = self.plan.parse_state(rest)
        found, wanted = self.dataset.find_generation(position), state_dict["generation"]
        if found != wanted:
            raise StateMismatchError(
                f"a state at position {position:,} must be of generation {found}, as recorded, got "
                f"{wanted!r}; give a state of this store"
            )
        super().load_state_dict(rest)


def growing_loader(
    dataset: GrowingDataset,
    batch_size: int,
    *,
    rank: int | None = None,
    num_ranks: int | None = None,
    state: Mapping[str, Any] | None = None,
    **reading: Unpack[ReadSettings],
) -> GrowingLoader:
    """Return the batches of rounds of a growing store for this rank, resumable at any step.

    Parameters
    ----------
    dataset
        The rounds.
    batch_size
        Samples of this rank in each batch, the same on all ranks. Usually ``batch_size * num_ranks
        * steps`` is the size of a round.
    rank, num_ranks
        This rank, and how many share the samples; by default of ``torch.distributed``, or of
        ``torchrun``'s environment.
    state
        State to resume from, as ``state_dict()`` returned it on any number of ranks.
    reading
        ``num_workers``, ``prefetch``, ``multiprocessing_context``, ``pin_memory`` and ``collate``,
        as for ``zindex.loader``. By default nothing is prefetched: a batch that is prefetched
        chooses its round earlier, from older records.

    Returns
    -------
    batches
        An iterable of batches with ``state_dict()`` and ``load_state_dict()``. It ends after
        ``num_samples`` of the dataset, and otherwise never.

    Raises
    ------
    ConfigError, PlanError
        If a setting is invalid.
    StateMismatchError
        If the state belongs to other samples.
    """
    if not isinstance(dataset, GrowingDataset):
        raise ConfigError(
            f"a growing loader needs a GrowingDataset, got {type(dataset).__name__}; use "
            "keyed_loader for other datasets"
        )
    rank, num_ranks = find_ranks(None, rank, num_ranks)
    order = SampleOrder(_NO_END, None, 0, dataset.fingerprint)  # of one pass, of any length
    plan = BatchPlan(
        order, len(dataset), check_whole("batch_size", batch_size, 1), rank, num_ranks, Tail.EXACT
    )
    reading["collate"] = reading.get("collate") or dataset.collate
    if not reading.get("num_workers"):
        reading.setdefault("prefetch", 0)
    made = GrowingLoader(dataset, plan, **reading)
    if state is not None:
        made.load_state_dict(state)
    return made


class GrowingBatches(torch.utils.data.IterableDataset[Any]):
    """The batches of rounds of a growing store as an iterable, for a plain ``DataLoader``.

    Parameters
    ----------
    dataset, batch_size, rank, num_ranks
        As for `growing_loader`.
    start
        Position of the run at which to begin: the samples that all ranks have consumed.

    Notes
    -----
    Use it with ``DataLoader(batches, batch_size=None, num_workers=n)``: the workers make the
    batches in turn, so their order does not depend on n.
    """

    def __init__(
        self,
        dataset: GrowingDataset,
        batch_size: int,
        *,
        rank: int | None = None,
        num_ranks: int | None = None,
        start: int = 0,
    ) -> None:
        super().__init__()
        self._loader = growing_loader(dataset, batch_size, rank=rank, num_ranks=num_ranks)
        self.start = check_whole("start", start, 0)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        plan, dataset = self._loader.plan, self._loader.dataset
        batches = plan.plan_batches(self.start, plan.find_stop(self.start))
        for positions in islice(batches, number, None, step):
            yield dataset.collate(dataset.__getitems__(positions))  # type: ignore[arg-type]
