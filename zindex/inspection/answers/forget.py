"""Forget documents: no later sample of a run holds them, and what was seen before is listed."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, PlanError, check_whole
from zindex.ingest.corpora.document_fields import open_fields
from zindex.inspection.answers.find import search_source_ids
from zindex.inspection.answers.run_order import RunOrder
from zindex.inspection.answers.screen import fit, fit_lines, fit_table
from zindex.inspection.answers.steps import Steps, make_steps
from zindex.inspection.answers.traced import TracedSample, describe_samples, sample_lines
from zindex.maintenance.edits.forget import PlannedForget, plan_forget
from zindex.maintenance.edits.journal import JournalEntry, open_journal
from zindex.maintenance.erase import ErasedCorpus, erase_documents
from zindex.wording import count_noun

#: A file with an id per line, or ids: ``"DATASET:DOCUMENT"``, a pair of both, or a source id.
DocumentIds = str | os.PathLike[str] | Iterable[str | tuple[str | int, int]]

# Maximum number of positions listed per line in terminal output.
_MAX_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class ForgottenDocuments:
    """Result of `forget`: what was forgotten, what had been seen, and how the run changed."""

    split: str
    #: Position from which no sample holds the documents.
    position: int
    #: Documents by path of their dataset, ascending; without those that were forgotten before.
    documents: dict[str, tuple[int, ...]]
    #: The SHA-256, in hex, of the datasets' numbers and the documents.
    digest: str
    #: Samples before the position that hold the documents, with these spans only.
    seen: tuple[TracedSample, ...]
    #: Positions of samples that remain without the documents, as numbered before the edit.
    changed: tuple[int, ...]
    #: Positions whose samples held nothing else, as numbered before the edit.
    emptied: tuple[int, ...]
    #: The former position of samples that fill emptied ones, by the new one.
    moved: Mapping[int, int]
    #: Samples of the run before and after the edit.
    num_samples: tuple[int, int]
    #: The edit; None if nothing was written.
    entry: JournalEntry | None
    #: The rewritten corpora.
    erased: tuple[ErasedCorpus, ...]
    #: Short names of the datasets, by path.
    labels: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        entry = self.entry
        return {
            "split": self.split,
            "position": self.position,
            "documents": {path: list(numbers) for path, numbers in self.documents.items()},
            "digest": self.digest,
            "seen": [sample.to_json() for sample in self.seen],
            "changed": list(self.changed),
            "emptied": list(self.emptied),
            "moved": {str(new): old for new, old in self.moved.items()},
            "num_samples": {"before": self.num_samples[0], "after": self.num_samples[1]},
            "edit": None if entry is None else entry.number,
            "fingerprint": None if entry is None else entry.fingerprint,
            "erased": [corpus.to_json() for corpus in self.erased],
        }

    def to_lines(self) -> list[str]:
        """Format the documents and their samples for a terminal."""
        count = sum(map(len, self.documents.values()))
        lines = []
        if count:
            verb = "forgotten" if self.entry else "to forget, nothing is written"
            what = f"{count_noun(count, 'document')} {verb}"
            lines.append(f"{self.split}, from position {self.position:,}: {what}")
            rows = [
                {"dataset": self.labels.get(path, path), "documents": f"{len(numbers):,}"}
                for path, numbers in self.documents.items()
            ]
            lines += fit_table(rows, text_columns=("dataset",), wide="dataset")
            lines += ["", *self._position_lines(), f"digest {self.digest}", ""]
            lines.append(f"seen before: {count_noun(len(self.seen), 'sample')}")
            lines += sample_lines(self.seen, self.labels)
        for corpus in self.erased:
            lines += ["", *corpus.to_lines()]
        return fit_lines(lines)

    def _position_lines(self) -> list[str]:
        """Format the positions that change."""
        before, after = self.num_samples
        lines = [
            _list_positions(self.changed, "without the documents"),
            _list_positions(self.emptied, "with nothing else, filled from the end"),
        ]
        if after != before:
            lines.append(f"the run has {count_noun(after, 'sample')}, it had {before:,}")
        return lines


def _list_positions(positions: tuple[int, ...], what: str) -> str:
    """Format a few of many positions."""
    shown = ", ".join(f"{position:,}" for position in positions[:_MAX_POSITIONS])
    more = ", …" if len(positions) > _MAX_POSITIONS else ""
    suffix = f": {shown}{more}" if positions else ""
    return fit(f"{count_noun(len(positions), 'sample')} {what}{suffix}")


def forget(
    run: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    documents: DocumentIds,
    at: int | None = None,
    *,
    dry_run: bool = False,
    physically: str | os.PathLike[str] | None = None,
    num_ranks: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    split: str = "train",
    client: Any = None,
) -> ForgottenDocuments:
    """Leave documents out of a run from a position on: append an edit to its journal.

    From the position on, every sample has the tokens that it had without those of the documents,
    in the same order, followed by padding with a loss mask of 0. All positions and steps stay as
    they are, and no other token is lost, moves to another sample or is repeated. Only a sample
    of which nothing would remain is dropped: its position gets one of the last samples of the run,
    which becomes shorter. Later edits, and indices and passes that they add, leave the documents
    out, too.

    Parameters
    ----------
    run
        A ``RunConfig``, its mapping, or the path of a YAML file. It must have a blend, packed or
        not; earlier edits are applied.
    documents
        Path of a text file with one id per line, or ids. An id is ``DATASET:DOCUMENT``, such as
        ``web:123``: path, short name or number of a dataset of the run, and the number of a
        document in it, as of `zindex.find`. In Python also a pair of both. Blank lines and lines
        that start with ``#`` are ignored.
    at
        The number of samples consumed so far. A run does not know it, so it is required.
    dry_run
        Whether to return what would change without writing anything.
    physically
        Folder for a new token store of each corpus with such documents, in which their tokens are
        replaced by 0; see Notes. None leaves the corpora alone.
    num_ranks, global_batch_size, micro_batch_size
        Batch sizes of the training run, for steps and ranks; see `zindex.trace`.
    split
        The split of the run. Each split is edited by itself.
    client
        Where to build, as of ``zindex.build``.

    Returns
    -------
    forgotten
        The documents, the samples that were seen before the position, and the positions that
        change. The edit with its certificate is ``forgotten.entry``.

    Raises
    ------
    ConfigError
        If ``at`` is missing, or an id is malformed or names no document of the run.
    PlanError
        If the position is outside the run or before its last edit, or the documents are already
        forgotten.
    StoreNotFoundError
        If a large index is not built.
    FingerprintMismatchError
        If another process edits the run concurrently, or the folder has another store.
    VerificationError
        If a rewritten corpus differs from the original in another document.

    Notes
    -----
    Trade-off: the padding takes compute that another text could use, at most as much as the
    documents took. In return a position has the same text before and after the edit, but for the
    documents, and batches, steps and schedules do not change. A token whose label is left out
    predicts nothing; other labels stay.

    Cost: one scan of the order of the run. The journal lists the documents and the samples that
    hold them, about ten bytes each, in this entry and every later one; a loader looks up each
    sample in that list.

    Physically: lengths and document numbers of the corpus do not change, so all indices, the
    journal and loader states stay valid. The stores are committed as of `zindex.convert`, then
    every other document is compared by its SHA-256. Write their paths into the run's file before
    removing the originals and their copies.
    """
    if at is None:
        raise ConfigError(
            "documents are forgotten from a position on, got none; give the consumed samples "
            "as at (--at)"
        )
    check_whole("at", at, 0)
    steps = make_steps(global_batch_size, num_ranks, micro_batch_size)
    config = as_config(run)
    journal = open_journal(config, split)
    order = RunOrder(config, split)
    found = read_ids(order, documents, client)
    planned = plan_forget(journal, found, at, client)
    if planned is None and physically is None:
        raise PlanError(
            "documents to forget must not be forgotten yet, all of these are; nothing is left to do"
        )
    result = _describe(order, planned, at, steps)
    if dry_run:
        return result
    if planned is not None:
        result = replace(result, entry=planned.commit())
    if physically is not None:
        targets = {order.paths[dataset]: numbers for dataset, numbers in found.items()}
        erased = erase_documents(targets, physically, order.labels, client=client)
        result = replace(result, erased=erased)
    return result


def _describe(
    order: RunOrder, planned: PlannedForget | None, position: int, steps: Steps | None
) -> ForgottenDocuments:
    """Return the result of an edit before it is committed."""
    before = len(order)
    if planned is None:
        return ForgottenDocuments(
            order.split, position, {}, "", (), (), (), {}, (before, before), None, (), order.labels
        )
    documents = {order.paths[item.dataset]: item.documents for item in planned.forgotten}
    samples = describe_samples(order, order.read(planned.seen.positions), steps)
    seen = []
    for sample in samples:
        numbers = set(documents[sample.dataset])
        parts = tuple(part for part in sample.parts if part.document in numbers)
        seen.append(replace(sample, parts=parts))
    return ForgottenDocuments(
        split=order.split,
        position=position,
        documents=documents,
        digest=planned.digest,
        seen=tuple(seen),
        changed=tuple(planned.changed.tolist()),
        emptied=planned.settled.emptied,
        moved=planned.settled.moved,
        num_samples=(before, planned.settled.state.num_samples),
        entry=None,
        erased=(),
        labels=order.labels,
    )


def read_ids(order: RunOrder, documents: DocumentIds, client: Any = None) -> dict[int, Int64Array]:
    """Return the documents of ids, ascending, by the number of their dataset in a run.

    Parameters
    ----------
    order
        The run.
    documents, client
        As of `forget`.

    Raises
    ------
    ConfigError
        If an id is malformed or names no document, with the number of its line.
    """
    if isinstance(documents, str | os.PathLike):
        source = os.fspath(documents)
        try:
            lines = Path(source).read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source} must be text in UTF-8, got {error}; convert it") from error
        numbered = ((row, line.strip()) for row, line in enumerate(lines, 1))
        ids: list[tuple[str, Any]] = [
            (f"line {row} of {source}", line)
            for row, line in numbered
            if line and not line.startswith("#")
        ]
    else:
        ids = [(f"id {row}", each) for row, each in enumerate(documents)]
        source = "the ids"
    found: dict[int, set[int]] = {}
    unknown: dict[str, str] = {}
    for where, each in ids:
        pair = _resolve(order, each, where)
        if pair is None:
            unknown[str(each)] = where
        else:
            found.setdefault(pair[0], set()).add(pair[1])
    for dataset, own in find_source_ids(order, unknown, client).items():
        found.setdefault(dataset, set()).update(own)
    if not found:
        raise ConfigError(
            f"documents to forget must be named, {source} names none; write one DATASET:DOCUMENT "
            "per line, such as web:123"
        )
    return {dataset: np.array(sorted(found[dataset]), np.int64) for dataset in sorted(found)}


def _resolve(order: RunOrder, each: Any, where: str) -> tuple[int, int] | None:
    """Return the dataset and the document of an id; None for a source id."""
    name, document = each if isinstance(each, tuple) else str(each).rpartition(":")[::2]
    try:
        if isinstance(each, tuple):
            check_whole("document", document, 0)
        elif not (name and document.isdecimal() and order.has_dataset(name)):
            return None
        dataset = order.find_dataset(name)
        order.count_tokens(dataset, int(document))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return dataset, int(document)


def find_source_ids(
    order: RunOrder, ids: Mapping[str, str], client: Any = None
) -> dict[int, set[int]]:
    """Return the documents with given source ids, by dataset: one pass over each corpus.

    Parameters
    ----------
    order
        The run.
    ids
        Source ids, such as URLs, and where each of them is given.
    client
        Where to search, as of ``zindex.build``.

    Raises
    ------
    ConfigError
        If no corpus has a document of an id.
    """
    if not ids:
        return {}
    keeping = [n for n, path in enumerate(order.paths) if open_fields(path) is not None]
    found = search_source_ids(order, keeping, ids, None, client)
    for source_id, where in ids.items():
        if not any(own[source_id] for own in found.values()):
            raise ConfigError(
                f"{where}: an id must be DATASET:DOCUMENT, such as web:123, or the id that a "
                f"corpus of the run keeps of a document, got {source_id!r}; datasets are "
                f"{', '.join(order.labels.values())}"
            )
    every = {dataset: {n for each in own.values() for n in each} for dataset, own in found.items()}
    return {dataset: documents for dataset, documents in every.items() if documents}
