"""Where a document or a text is in a run: positions, steps, epochs and ranks, seen and to come."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError
from zindex.execution.executor import open_executor, run_builds
from zindex.inspection.answers.documents import resolve_tokenizer
from zindex.inspection.answers.run_order import RunLike, RunOrder
from zindex.inspection.answers.screen import fit, fit_lines
from zindex.inspection.answers.search_text import search_corpus
from zindex.inspection.answers.steps import Steps, make_steps
from zindex.inspection.answers.traced import TracedSample, describe_samples, sample_lines
from zindex.inspection.tables.formatting import count_noun
from zindex.plan.settings import check_whole
from zindex.text.text_encoder import TextEncoder

# Matches of a text whose positions are looked up.
_MAX_MATCHES = 1000


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """The samples of a run that hold tokens of one document."""

    #: Path of the dataset.
    dataset: str
    document: int
    #: Tokens that were looked for, half-open.
    start: int
    stop: int
    #: Samples consumed so far; None if that is not known.
    consumed: int | None
    #: By position; their parts are those within the tokens.
    samples: tuple[TracedSample, ...]

    @property
    def seen(self) -> tuple[TracedSample, ...]:
        """Samples at positions that are consumed; all are to come if that is not known."""
        return tuple(each for each in self.samples if each.position < (self.consumed or 0))

    @property
    def to_come(self) -> tuple[TracedSample, ...]:
        """Samples at positions that are not consumed yet."""
        return tuple(each for each in self.samples if each.position >= (self.consumed or 0))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; each sample says whether it is consumed."""
        known = asdict(self) | {"num_samples": len(self.samples)}
        known["samples"] = [
            sample.to_json()
            | ({} if self.consumed is None else {"is_seen": sample.position < self.consumed})
            for sample in self.samples
        ]
        return known


@dataclass(frozen=True, slots=True)
class Finding:
    """Where some documents are in a run."""

    split: str
    #: Documents that were asked for, or that hold a text.
    documents: tuple[FoundDocument, ...]
    #: Matches of a text; more than there are documents if not all were looked up.
    num_matches: int
    #: Short names of datasets by path.
    labels: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the documents as JSON values."""
        documents = [found.to_json() for found in self.documents]
        return {"split": self.split, "num_matches": self.num_matches, "documents": documents}

    def to_lines(self) -> list[str]:
        """Return the documents as lines of a terminal, each with its samples."""
        lines: list[str] = []
        for found in self.documents:
            name = self.labels.get(found.dataset, found.dataset)
            count = count_noun(len(found.samples), "sample")
            if found.consumed is not None:
                count += f", {len(found.seen):,} seen and {len(found.to_come):,} to come"
            place = f"document {found.document:,}, tokens {found.start}:{found.stop}"
            lines += ["", fit(f"{name}, {place}: {count} of {self.split}")]
            if found.consumed is None:
                lines += sample_lines(found.samples, self.labels)
            else:
                for title, samples in (("seen", found.seen), ("to come", found.to_come)):
                    if samples:
                        lines += [f"  {title}", *sample_lines(samples, self.labels)]
        if not self.documents:
            lines.append("")
            lines.append("no document of the run has these tokens in a row")
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
    text: str | None = None,
    tokenizer: Any = None,
    consumed: int | None = None,
    num_ranks: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    split: str = "train",
    client: Any = None,
) -> Finding:
    """Return every position of a run that holds a document, some of its tokens, or a text.

    Parameters
    ----------
    run
        A ``RunConfig``, the mapping of one, the path of its YAML file, or an opened `RunOrder`,
        which answers many questions. Edits of the run are applied.
    dataset
        Path, short name or number of a dataset of the run; None searches a text in all of them.
    document
        Number of the document in the dataset; a sequence, as samples consist of these.
    tokens
        Tokens of the document, half-open; None for all.
    text
        A text to search instead of a document: its tokens, and those of it after a space, must
        follow each other within a document. One pass over the tokens of the corpora.
    tokenizer
        The tokenizer of the corpora, or the path of its file or folder, to encode a text; None
        takes the one that the corpora keep.
    consumed
        Samples that the training has consumed: tells what was seen from what is to come.
    num_ranks, global_batch_size, micro_batch_size
        Batches of the training, for steps and ranks; see `zindex.trace`.
    split
        The split; that of an opened run stays.
    client
        Where a text is searched, as of ``zindex.build``.

    Returns
    -------
    finding
        For each document its samples in the order of their positions, with epoch, step and rank.

    Raises
    ------
    ConfigError
        If the run has no such dataset, or that no such document or tokens.
    StoreNotFoundError
        If a large index is not built.

    Notes
    -----
    Law: a position is found if and only if `zindex.trace` shows the tokens there. Cost: a keyed
    order is inverted, a greedy blend is searched by interpolation; the shuffles of Megatron's order
    and uniform ones are read as a whole, a few bytes for each sample. Nothing is written.
    """
    steps = make_steps(global_batch_size, num_ranks, micro_batch_size)
    if consumed is not None:
        check_whole("consumed", consumed, 0)
    if (text is None) == (document is None):
        raise ConfigError("find needs a document or a text, one of the two; name one")
    order = run if isinstance(run, RunOrder) else RunOrder(run, split)
    if text is not None:
        if tokens is not None:
            raise ConfigError("tokens are those of a document, got them with a text; leave one out")
        places = _search(order, dataset, text, tokenizer, client)
    else:
        if dataset is None:
            raise ConfigError("a document needs the dataset that it is in, got none; name it")
        number = order.find_dataset(dataset)
        assert document is not None
        start, stop = _check_tokens(order, number, document, tokens)
        places = [(number, document, start, stop)]
    found = [_find_one(order, steps, consumed, *place) for place in places[:_MAX_MATCHES]]
    return Finding(order.split, tuple(found), len(places), order.labels)


def _check_tokens(
    order: RunOrder, dataset: int, document: int, tokens: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the tokens of a document that are looked for."""
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
    """Return the samples with some tokens of a document."""
    samples = describe_samples(order, order.find(dataset, document, start, stop), steps)
    return FoundDocument(order.paths[dataset], document, start, stop, consumed, samples)


def _search(
    order: RunOrder, dataset: str | int | None, text: str, tokenizer: Any, client: Any
) -> list[tuple[int, int, int, int]]:
    """Return dataset, document and tokens of each match of a text."""
    every = range(len(order.paths))
    numbers = list(every) if dataset is None else [order.find_dataset(dataset)]
    if tokenizer is None or tokenizer is True:
        tokenizer = resolve_tokenizer(True, [order.paths[number] for number in numbers])
    wanted = _encode(TextEncoder(tokenizer), text)
    found = set[tuple[int, int, int, int]]()
    with open_executor(client) as executor:
        for number in numbers:
            corpus = order.documents.open(order.paths[number])
            for sequence in wanted:
                for match in run_builds(search_corpus(corpus, sequence, executor)):
                    found.add((number, match.document, match.start, match.stop))
    # A match with the space before holds the one without it.
    kept: list[tuple[int, int, int, int]] = []
    for place in sorted(found):
        if not kept or kept[-1][:2] != place[:2] or kept[-1][3] < place[3]:
            kept.append(place)
    return kept


def _encode(encoder: TextEncoder, text: str) -> Sequence[Int64Array]:
    """Return the tokens of a text, and of it after a space, as it is within a sentence."""
    encoded = encoder.encode([text, f" {text}"], special_tokens=False)
    distinct = {tuple(tokens.tolist()) for tokens in encoded if len(tokens)}
    if not distinct:
        raise ConfigError(f"a text to find must have tokens, got {text!r}; give a longer one")
    return [np.array(tokens, np.int64) for tokens in sorted(distinct)]
