"""What a step of a training saw: datasets, documents, spans of tokens and texts."""

from dataclasses import dataclass
from typing import Any

from zindex.errors import ConfigError
from zindex.inspection.answers.documents import as_decoder
from zindex.inspection.answers.run_order import RunLike, RunOrder
from zindex.inspection.answers.screen import fit, fit_lines
from zindex.inspection.answers.steps import make_steps
from zindex.inspection.answers.traced import (
    TracedSample,
    as_positions,
    dataset_lines,
    describe_samples,
    sample_lines,
)
from zindex.inspection.tables.formatting import count_noun


@dataclass(frozen=True, slots=True)
class Trace:
    """The samples of some positions of a run."""

    split: str
    #: What was asked for.
    question: str
    #: In the order of their positions.
    samples: tuple[TracedSample, ...]
    #: Short names of datasets by path.
    labels: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the samples as JSON values."""
        return {"split": self.split, "samples": [sample.to_json() for sample in self.samples]}

    def to_lines(self) -> list[str]:
        """Return the samples as lines of a terminal: first their datasets, then their parts."""
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
    """Return what a step of a training, or some positions of its run, consist of.

    Parameters
    ----------
    run
        A ``RunConfig``, the mapping of one, the path of its YAML file, or an opened `RunOrder`,
        which answers many questions. Edits of the run are applied.
    step
        Step of the training, from 0; it needs the size of batches.
    position
        A position, or a half-open range of them, instead of a step.
    rank, num_ranks
        Only the samples of one data-parallel rank, and the number of ranks.
    global_batch_size, micro_batch_size
        Samples of all ranks in a step, and of one rank at a time, by default all of its share. Both
        as in Megatron; a `zindex.loader` takes one micro-batch of each rank in a step.
    split
        The split; that of an opened run stays.
    tokenizer
        A tokenizer, or the path of its file or folder, to decode tokens; True takes the one that
        the corpus or the store keeps, None leaves texts out.

    Returns
    -------
    trace
        For each position its dataset, epoch, sample, and the documents with their tokens,
        half-open. The last token of a sample is a label only.

    Raises
    ------
    ConfigError
        If neither or both of step and position are given, or the sizes do not fit.
    PlanError
        If the positions are outside the run.
    StoreNotFoundError
        If a large index is not built.

    Notes
    -----
    Cost: some rows of each array for each sample, however long the run is. Nothing is written.
    """
    if (step is None) == (position is None):
        raise ConfigError("trace needs a step or positions, one of the two; name one")
    steps = make_steps(global_batch_size, num_ranks, micro_batch_size)
    if steps is None and (step is not None or rank is not None):
        raise ConfigError(
            "a step or a rank needs the size of batches, got none; give global_batch_size "
            "(--global-batch-size)"
        )
    order = run if isinstance(run, RunOrder) else RunOrder(run, split)
    if step is not None:
        assert steps is not None
        positions, question = steps.positions_of(step, rank), f"step {step:,}"
    else:
        assert position is not None
        positions, question = as_positions(position), ""
        if len(positions):
            question = f"positions [{positions[0]:,}, {positions[-1] + 1:,})"
        if rank is not None and steps is not None:
            positions = positions[steps.ranks_of(positions) == rank]
    if len(positions):
        order.check(int(positions[0]), int(positions[-1]) + 1)
    else:
        raise ConfigError("trace needs positions, the range has none; give one with START < STOP")
    if rank is not None:
        question += f", rank {rank}"
    decode = as_decoder(tokenizer, order.paths)
    samples = describe_samples(order, order.read(positions), steps, decode)
    return Trace(order.split, question, samples, order.labels)
