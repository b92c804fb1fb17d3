"""Find the positions, steps, epochs and ranks at which a run reads a document or a text."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, check_whole
from zindex.execution.executor import open_executor, run_builds, run_together
from zindex.ingest.corpora.document_fields import open_fields, search_ids
from zindex.inspection.answers.documents import resolve_tokenizer, source_text
from zindex.inspection.answers.run_order import RunLike, RunOrder
from zindex.inspection.answers.screen import fit, fit_lines
from zindex.inspection.answers.search_text import search_corpus
from zindex.inspection.answers.steps import Steps, make_steps
from zindex.inspection.answers.traced import TracedSample, describe_samples, sample_lines
from zindex.text.text_encoder import TextEncoder
from zindex.wording import count_noun

# Maximum number of text matches whose positions are looked up.
_MAX_MATCHES = 1000


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """Samples of a run that contain tokens of one document."""

    #: Path of the dataset.
    dataset: str
    document: int
    #: Requested tokens, half-open.
    start: int
    stop: int
    #: Number of samples consumed so far; None if unknown.
    consumed: int | None
    #: Fields of its source that the corpus keeps, such as id and url.
    source: dict[str, Any] | None
    #: Sorted by position; each lists only its spans within the requested tokens.
    samples: tuple[TracedSample, ...]

    @property
    def seen(self) -> tuple[TracedSample, ...]:
        """Samples at consumed positions; empty if ``consumed`` is unknown."""
        return tuple(each for each in self.samples if each.position < (self.consumed or 0))

    @property
    def to_come(self) -> tuple[TracedSample, ...]:
        """Samples at positions that are not consumed yet."""
        return tuple(each for each in self.samples if each.position >= (self.consumed or 0))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with a flag for each sample that is consumed."""
        known = asdict(self) | {"num_samples": len(self.samples)}
        known["samples"] = [
            sample.to_json()
            | ({} if self.consumed is None else {"is_seen": sample.position < self.consumed})
            for sample in self.samples
        ]
        return known


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of `find`: documents and their positions in a run."""

    split: str
    #: The requested document, or the documents that have the id or contain the text.
    documents: tuple[FoundDocument, ...]
    #: Number of matches; exceeds the number of documents if only some were looked up.
    num_matches: int
    #: Short names of the datasets, by path.
    labels: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the documents as JSON values."""
        documents = [found.to_json() for found in self.documents]
        return {"split": self.split, "num_matches": self.num_matches, "documents": documents}

    def to_lines(self) -> list[str]:
        """Format the documents and their samples for a terminal."""
        lines: list[str] = []
        for found in self.documents:
            name = self.labels.get(found.dataset, found.dataset)
            count = count_noun(len(found.samples), "sample")
            if found.consumed is not None:
                count += f", {len(found.seen):,} seen and {len(found.to_come):,} to come"
            place = f"document {found.document:,}, tokens {found.start}:{found.stop}"
            lines += ["", fit(f"{name}, {place}: {count} of {self.split}")]
            if found.source is not None:
                lines.append(fit(f"  {source_text(found.source)}"))
            if found.consumed is None:
                lines += sample_lines(found.samples, self.labels)
            else:
                for title, samples in (("seen", found.seen), ("to come", found.to_come)):
                    if samples:
                        lines += [f"  {title}", *sample_lines(samples, self.labels)]
        if not self.documents:
            lines.append("")
            lines.append("no document of the run has this text or id")
        if self.num_matches > len(self.documents):
            left_out = self.num_matches - len(self.documents)
            lines += ["", f"and {left_out:,} more matches, which were not looked up"]
        return fit_lines(lines[1:])


def find(
    run: RunLike | RunOrder,
    dataset: str | int | None = None,
    document: int | None = None,
    *,
    tokens: tuple[int, int] | None = None,
    source_id: str | int | None = None,
    field: str | None = None,
    text: str | None = None,
    tokenizer: Any = None,
    consumed: int | None = None,
    num_ranks: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    split: str = "train",
    client: Any = None,
) -> Finding:
    """Find every position of a run that contains a document, some of its tokens, or a text.

    Parameters
    ----------
    run
        A ``RunConfig``, its mapping, the path of a YAML file, or an opened `RunOrder`, which
        can be reused for many calls. Edits of the run are applied.
    dataset
        Path, short name or number of a dataset of the run; None searches all of them for a text or
        a source id.
    document
        Number of the document in the dataset; each sequence of the corpus is a document.
    tokens
        Token range in the document, half-open; None for all tokens.
    source_id, field
        Source id to search for instead of a document, in one pass over the ids that the corpora
        keep, and the name of the field that holds it; None uses the first one of each corpus.
    text
        Text to search for instead of a document. Matches its tokens, encoded with or without a
        leading space, within one document. Scans the tokens of the corpora once.
    tokenizer
        Tokenizer of the corpora, or the path of its file or folder, to encode the text; None
        uses the one saved with the corpora.
    consumed
        Number of samples consumed by training, to separate past from future positions.
    num_ranks, global_batch_size, micro_batch_size
        Batch sizes of the training run, for steps and ranks; see `zindex.trace`.
    split
        The split; ignored for an opened run.
    client
        Where searches run; see ``zindex.build``.

    Returns
    -------
    finding
        The samples of each document, sorted by position, with epoch, step and rank.

    Raises
    ------
    ConfigError
        If the dataset, the document or the tokens do not exist, or no corpus keeps ids.
    StoreNotFoundError
        If a large index is not built.

    Notes
    -----
    Law: `find` returns a position if and only if `zindex.trace` shows the tokens there. Cost:
    keyed orders are inverted; greedy blends use interpolation search; uniform blends and the
    shuffles of Megatron's order are read in full, a few bytes per sample, unless their inverses are
    stored (``zindex.build(run, inverse=True)``). Nothing is written.
    """
    steps = make_steps(global_batch_size, num_ranks, micro_batch_size)
    if consumed is not None:
        check_whole("consumed (--consumed)", consumed, 0)
    if sum(each is not None for each in (document, source_id, text)) != 1:
        raise ConfigError(
            "find needs one of document (--document), source_id (--id) and text (--text); name one"
        )
    if tokens is not None and document is None:
        raise ConfigError(
            "tokens (--tokens) are those of a document, got them with a text or an id; leave one "
            "out"
        )
    order = run if isinstance(run, RunOrder) else RunOrder(run, split)
    places: Sequence[Sequence[int]] | Int64Array
    if text is not None:
        places = _search(order, dataset, text, tokenizer, client)
    elif source_id is not None:
        places = _search_id(order, dataset, str(source_id), field, client)
    else:
        if dataset is None:
            raise ConfigError("a document needs dataset (--dataset), got none; name it")
        number = order.find_dataset(dataset)
        assert document is not None
        start, stop = _check_tokens(order, number, document, tokens)
        places = [(number, document, start, stop)]
    shown = np.array(places[:_MAX_MATCHES], np.int64).reshape(-1, 4).tolist()
    found = [_find_one(order, steps, consumed, *place) for place in shown]
    return Finding(order.split, tuple(found), len(places), order.labels)


def _check_tokens(
    order: RunOrder, dataset: int, document: int, tokens: tuple[int, int] | None
) -> tuple[int, int]:
    """Validate a token range, and return it."""
    path, length = order.paths[dataset], order.count_tokens(dataset, document)
    start, stop = (0, length) if tokens is None else tokens
    if not 0 <= start < stop <= length:
        raise ConfigError(
            f"tokens must lie in [0, {length:,}), those of document {document:,} of {path}, got "
            f"[{start:,}, {stop:,}); name some of these"
        )
    return start, stop


def _find_one(
    order: RunOrder,
    steps: Steps | None,
    consumed: int | None,
    dataset: int,
    document: int,
    start: int,
    stop: int,
) -> FoundDocument:
    """Return the samples that contain tokens of a document in the given range."""
    samples = describe_samples(order, order.find(dataset, document, start, stop), steps)
    path = order.paths[dataset]
    [source] = order.documents.read_sources(path, [document])
    return FoundDocument(path, document, start, stop, consumed, source, samples)


def _search_id(
    order: RunOrder, dataset: str | int | None, source_id: str, field: str | None, client: Any
) -> list[tuple[int, int, int, int]]:
    """Return the dataset, document and tokens of each document with a source id."""
    numbers = range(len(order.paths)) if dataset is None else [order.find_dataset(dataset)]
    fields = {number: open_fields(order.paths[number]) for number in numbers}
    keeping = [
        number
        for number, own in fields.items()
        if dataset is not None or (own is not None and field in (None, *own.names))
    ]
    if not keeping:
        raise ConfigError(
            f"a corpus of the run must keep the {field or 'ids'} of its documents, none does; "
            "tokenize it with metadata (--metadata id), or name a document by its number"
        )
    found = search_source_ids(order, keeping, [source_id], field, client)
    return [
        (number, document, *_check_tokens(order, number, document, None))
        for number, own in found.items()
        for document in own[source_id]
    ]


def search_source_ids(
    order: RunOrder, datasets: Sequence[int], ids: Collection[str], field: str | None, client: Any
) -> dict[int, dict[str, list[int]]]:
    """Return the documents of each source id, by dataset: one pass over the ids of each corpus.

    Parameters
    ----------
    order
        The run.
    datasets
        Numbers of datasets whose corpora keep ids.
    ids, field, client
        As of `zindex.ingest.corpora.document_fields.find_documents`.
    """
    with open_executor(client) as executor:
        searches = (search_ids(order.paths[number], ids, field, executor) for number in datasets)
        return dict(zip(datasets, run_builds(run_together(searches)), strict=True))


def _search(
    order: RunOrder, dataset: str | int | None, text: str, tokenizer: Any, client: Any
) -> Int64Array:
    """Return the dataset, document, start and stop of each text match: shape (matches, 4)."""
    every = range(len(order.paths))
    numbers = list(every) if dataset is None else [order.find_dataset(dataset)]
    if tokenizer is None or tokenizer is True:
        tokenizer = resolve_tokenizer(True, [order.paths[number] for number in numbers])
    wanted = _encode(TextEncoder(tokenizer), text)
    corpora = [order.documents.open(order.paths[number]) for number in numbers]
    with open_executor(client) as executor:
        searches = (search_corpus(corpus, wanted, executor) for corpus in corpora)
        found = run_builds(run_together(searches))
    places = [
        np.insert(drop_inner(matches), 0, number, axis=1)
        for number, matches in zip(numbers, found, strict=True)
    ]
    return np.concatenate(places)


def drop_inner(matches: Int64Array) -> Int64Array:
    """Return matches without those that end inside an earlier one, or with it.

    A match with a leading space includes a match without it.

    Parameters
    ----------
    matches
        Shape (matches, 3), ascending: document, start and stop.

    Examples
    --------
    >>> drop_inner(np.array([[0, 3, 7], [0, 4, 7], [0, 5, 9], [1, 2, 3]])).tolist()
    [[0, 3, 7], [0, 5, 9], [1, 2, 3]]
    """
    documents, _, stops = matches.T
    ends = documents * (int(stops.max(initial=0)) + 1) + stops
    return matches[np.diff(np.maximum.accumulate(ends), prepend=-1) > 0]


def _encode(encoder: TextEncoder, text: str) -> Sequence[Int64Array]:
    """Encode a text with and without a leading space, as at the start and inside of a sentence."""
    encoded = encoder.encode([text, f" {text}"], special_tokens=False)
    distinct = {tuple(tokens.tolist()) for tokens in encoded if len(tokens)}
    if not distinct:
        raise ConfigError(f"a text to find must have tokens, got {text!r}; give a longer one")
    return [np.array(tokens, np.int64) for tokens in sorted(distinct)]
