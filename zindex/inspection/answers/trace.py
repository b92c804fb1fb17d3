"""Show what a training step consumed: datasets, documents, token spans and texts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from zindex.errors import ConfigError
from zindex.inspection.answers.documents import as_decoder
from zindex.inspection.answers.run_order import RunLike, RunOrder
from zindex.inspection.answers.screen import fit, fit_lines
from zindex.inspection.answers.steps import make_steps
from zindex.inspection.answers.traced import (
    TracedSample,
    as_span,
    dataset_lines,
    describe_samples,
    sample_lines,
)
from zindex.wording import count_noun

#: Maximum number of positions to trace at once.
MAX_POSITIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Trace:
    """Result of `trace`: the samples at some positions of a run."""

    split: str
    #: Description of the request.
    question: str
    #: Sorted by position.
    samples: tuple[TracedSample, ...]
    #: Short names of the datasets, by path.
    labels: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the samples as JSON values."""
        return {"split": self.split, "samples": [sample.to_json() for sample in self.samples]}

    def to_lines(self) -> list[str]:
        """Format the samples for a terminal: a table of datasets, then one of document spans."""
        count = count_noun(len(self.samples), "sample")
        lines = [fit(f"{self.split}, {self.question}: {count}"), ""]
        lines += dataset_lines(self.samples, self.labels)
        return fit_lines([*lines, "", *sample_lines(self.samples, self.labels)])


def trace(
    run: RunLike | RunOrder,
    step: int | None = None,
    *,
    position: int | tuple[int, int] | range | None = None,
    rank: int | None = None,
    num_ranks: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    split: str = "train",
    tokenizer: Any = None,
) -> Trace:
    """Return the samples of a training step, or at given positions of the run.

    Parameters
    ----------
    run
        A ``RunConfig``, its mapping, the path of a YAML file, or an opened `RunOrder`, which
        can be reused for many calls. Edits of the run are applied.
    step
        Training step, from 0; requires a batch size.
    position
        A position, or a half-open range of positions, instead of a step.
    rank, num_ranks
        Data-parallel rank to show, by default all of them, and the number of ranks.
    global_batch_size, micro_batch_size
        Samples per step over all ranks, and samples per rank and micro-batch, by default the whole
        share of the rank. As in Megatron; with `zindex.loader`, a step is one micro-batch per rank.
    split
        The split; ignored for an opened run.
    tokenizer
        A tokenizer, or the path of its file or folder, to decode tokens; True uses the one saved
        with the corpora, None does not decode.

    Returns
    -------
    trace
        For each position: dataset, epoch, sample, and documents with half-open token ranges, and
        with their id, url and other fields that the corpus keeps. The last token of a sample is
        only a label.

    Raises
    ------
    ConfigError
        If not exactly one of ``step`` and ``position`` is given, the batch sizes do not divide, or
        there are more than a million positions.
    PlanError
        If the positions are outside the run.
    StoreNotFoundError
        If a large index is not built.

    Notes
    -----
    Cost: reads a few rows of each array per sample, for any length of run. Nothing is written.
    """
    if (step is None) == (position is None):
        raise ConfigError(
            "trace needs step (--step) or position (--position), one of the two; name one"
        )
    steps = make_steps(global_batch_size, num_ranks, micro_batch_size)
    if steps is None and (step is not None or rank is not None):
        raise ConfigError(
            "a step or a rank needs the size of batches, got none; give global_batch_size "
            "(--global-batch-size)"
        )
    order = run if isinstance(run, RunOrder) else RunOrder(run, split)
    if step is not None:
        assert steps is not None
        start, stop = steps.span_of(step)
        question = f"step {step:,}"
    else:
        assert position is not None
        start, stop = as_span(position)
        question = f"positions [{start:,}, {stop:,})"
    order.check(start, stop)
    if stop - start > MAX_POSITIONS:
        raise ConfigError(
            f"trace needs at most {MAX_POSITIONS:,} positions, got {stop - start:,}; name fewer"
        )
    positions = np.arange(start, stop)
    if steps is not None:
        positions = steps.select_rank(positions, rank)
    if not len(positions):
        raise ConfigError(
            f"rank {rank} must take some of the positions, it takes none of [{start:,}, {stop:,}); "
            "name more of them"
        )
    if rank is not None:
        question += f", rank {rank}"
    decode = as_decoder(tokenizer, order.paths)
    samples = describe_samples(order, order.read(positions), steps, decode, with_sources=True)
    return Trace(order.split, question, samples, order.labels)
