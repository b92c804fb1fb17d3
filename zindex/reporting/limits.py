"""What each limit of a run holds: samples, tokens, epochs, and when a dataset repeats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zindex.config import RunConfig
from zindex.inspection.tables.formatting import format_count, format_epochs
from zindex.wording import count_noun

# Maximum number of datasets named by a limit.
_MAX_NAMED = 3


class Drawn(Protocol):
    """A dataset, as limits see it; see `DatasetFigures`."""

    @property
    def name(self) -> str:
        """Short name."""

    @property
    def path(self) -> str:
        """Path."""

    @property
    def share(self) -> float:
        """Share of the run's samples."""

    @property
    def num_tokens(self) -> int:
        """Tokens of one epoch."""

    @property
    def is_capped(self) -> bool:
        """Whether max_epochs limits it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a run."""

    name: str
    #: The setting; empty for a limit of the data.
    setting: str
    #: What it holds, in plain words.
    holds: str


def find_limits(
    config: RunConfig,
    split: str,
    num_samples: int | None,
    num_tokens: int | None,
    datasets: Sequence[Drawn],
) -> tuple[Limit, ...]:
    """Return the limits of a split of a run.

    Parameters
    ----------
    config, split
        The run.
    num_samples, num_tokens
        Samples and tokens of the run; None without a common order.
    datasets
        Its datasets.
    """
    length = config.sequence_length
    limits = []
    wanted = config.samples.get(split)
    if num_samples is not None and num_tokens is not None:
        setting = "" if wanted is None else f"{wanted:,}"
        holds = f"{num_samples:,} samples, {format_count(num_tokens)} tokens"
        limits.append(Limit("samples", setting, holds))
    epoch = sum(item.num_tokens for item in datasets)
    holds = f"{format_count(epoch)} tokens, about {format_count(epoch // length)} samples"
    if num_tokens is not None and epoch:
        holds += f"; the run has {format_epochs(num_tokens / epoch)} times as many"
    limits.append(Limit("one epoch of all datasets", "", holds))
    limits += _find_budgets(config)
    if config.blend_kind is not None:
        limits += _find_epochs(config, datasets)
    return tuple(limits)


def _find_budgets(config: RunConfig) -> list[Limit]:
    """Return the sum of the budgets of train in tokens or epochs."""
    shares = [item.share or 0 for item in config.members]
    if config.share_kind == "tokens":
        holds = f"about {format_count(int(sum(shares)) // config.sequence_length)} samples of train"
        return [Limit("tokens of all datasets", format_count(int(sum(shares))), holds)]
    if config.share_kind == "epochs":
        setting = f"{format_epochs(min(shares))} to {format_epochs(max(shares))}"
        return [Limit("epochs of the datasets", setting, "as the table of datasets lists")]
    return []


def _find_epochs(config: RunConfig, datasets: Sequence[Drawn]) -> list[Limit]:
    """Return when a dataset repeats and when it reaches its maximum epochs."""
    length, limits = config.sequence_length, []
    drawn = [item for item in datasets if item.share > 0 and item.num_tokens]
    if drawn:
        ends = {item.name: item.num_tokens / length / item.share for item in drawn}
        first = min(ends, key=lambda name: ends[name])
        holds = f"{ends[first]:,.0f} samples at these shares, then {first} is the first to repeat"
        limits.append(Limit("no repetition", "", holds))
    own = {item.path: item.max_epochs or config.max_epochs for item in config.members}
    caps = {item.name: own.get(item.path) for item in drawn}
    if any(caps.values()):
        values = sorted({value for value in caps.values() if value})
        setting = " to ".join(f"{value:g}" for value in dict.fromkeys((values[0], values[-1])))
        names = [item.name for item in datasets if item.is_capped]
        if names:
            more = len(names) - _MAX_NAMED
            holds = f"limits {', '.join(names[:_MAX_NAMED])}"
            holds += f" and {count_noun(more, 'other')}" if more > 0 else ""
        else:
            ends = {name: ends[name] * value for name, value in caps.items() if value}
            first = min(ends, key=lambda name: ends[name])
            holds = f"limits no dataset; {first} reaches it after {ends[first]:,.0f} samples"
        limits.append(Limit("max_epochs", setting, holds))
    return limits
