"""Limits on the tokens of records: what each keeps, and what it would cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

from zindex.errors import ConfigError, SourceError, check_choice
from zindex.text.length_histogram import LengthHistogram
from zindex.text.token_spans import Span

Keep = Literal["start", "end"]
OnLong = Literal["truncate", "drop", "error"]

#: The settings of limits, in the order in which they apply.
LIMITS = ("max_prompt", "max_answer", "max_length")


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Maximum tokens of a record's sequences, and what happens to longer ones.

    A record is one sequence, or a prompt followed by one or more answers, which share it: all
    answers to a prompt keep the same tokens of it.
    """

    #: Tokens of a sequence; of a pair, of the prompt with either answer; None: unlimited.
    max_length: int | None = None
    #: Tokens of a prompt, which keeps its end.
    max_prompt: int | None = None
    #: Tokens of each answer, which keeps its start.
    max_answer: int | None = None
    #: Which end of a sequence to keep for ``max_length``.
    keep: Keep = "start"
    #: Whether longer records are truncated, left out, or an error.
    on_long: OnLong = "truncate"

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if get_origin(item.type) is Literal:
                name = f"{item.name} (--{item.name.replace('_', '-')})"
                check_choice(name, value, get_args(item.type))
            elif value is not None and (type(value) is not int or value < 1):
                raise ConfigError(
                    f"{item.name} (--{item.name.replace('_', '-')}) must be a whole number from 1 "
                    f"on, got {value!r}"
                )

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, by setting."""
        found = {name: getattr(self, name) for name in LIMITS}
        return {name: limit for name, limit in found.items() if limit is not None}

    def cut_sequence(self, *lengths: int) -> "Cut":
        """Return what is kept of a sequence, or of independent ones."""
        cut = Cut([(0, length) for length in lengths])
        if self.max_length is not None:
            cut.narrow("max_length", range(len(lengths)), self.max_length, self.keep == "end")
        return cut

    def cut_answers(self, lengths: Sequence[int], *, joined: bool) -> "Cut":
        """Return what is kept of a prompt and its answers.

        Parameters
        ----------
        lengths
            Tokens of the prompt, and of each answer.
        joined
            Whether ``max_length`` bounds the prompt with an answer. Otherwise it bounds the prompt
            and each answer by itself, as ``max_prompt`` and ``max_answer`` do.

        Notes
        -----
        Law: with one answer and ``max_length`` alone, joined sequences keep what a single one
        keeps. With several, ``keep="start"`` truncates the answers after the prompt;
        ``keep="end"`` truncates the prompt to what the longest answer leaves.
        """
        cut = Cut([(0, length) for length in lengths])
        answers = range(1, len(lengths))
        if self.max_prompt is not None:
            cut.narrow("max_prompt", [0], self.max_prompt, True)
        if self.max_answer is not None:
            cut.narrow("max_answer", answers, self.max_answer, False)
        limit = self.max_length
        if limit is None:
            return cut
        if not joined:
            cut.narrow("max_length", [0], limit, True)
            cut.narrow("max_length", answers, limit, False)
        elif self.keep == "start":
            cut.narrow("max_length", [0], limit, False)
            cut.narrow("max_length", answers, limit - cut.length(0), False)
        else:
            cut.narrow("max_length", answers, limit, True)
            longest = max(map(cut.length, answers), default=0)
            cut.narrow("max_length", [0], limit - longest, True)
        return cut

    def check(self, cut: "Cut") -> None:
        """Raise for a record that is longer than a limit, if that is an error.

        Raises
        ------
        SourceError
            If it is; the caller adds the location of the record.
        """
        if cut.lost and self.on_long == "error":
            name, lost = next(iter(cut.lost.items()))
            raise SourceError(
                f"a record must have at most {self.limits[name]:,} tokens by {name} "
                f"(--{name.replace('_', '-')}), this one has {lost:,} more; increase the limit, or "
                "choose on_long='truncate' or 'drop' (--on-long)"
            )


@dataclass(slots=True)
class Cut:
    """What is kept of the sequences of a record."""

    #: First and last token to keep of each sequence, half-open.
    spans: list[Span]
    #: Tokens that each limit removes, for those that remove any.
    lost: dict[str, int] = field(default_factory=dict)

    def length(self, number: int) -> int:
        """Return the tokens that are kept of a sequence."""
        start, stop = self.spans[number]
        return stop - start

    def narrow(self, name: str, numbers: Sequence[int], limit: int, keeps_end: bool) -> None:
        """Truncate some sequences to a limit."""
        for number in numbers:
            start, stop = self.spans[number]
            surplus = stop - start - max(0, limit)
            if surplus > 0:
                span = (start + surplus, stop) if keeps_end else (start, stop - surplus)
                self.spans[number] = span
                self.lost[name] = self.lost.get(name, 0) + surplus


@dataclass(slots=True)
class LengthReport:
    """Lengths of the records of some files, and what the limits cost."""

    limits: LengthLimits
    num_records: int = 0
    #: Records with a sequence that is too long, and records left out for that.
    num_long: int = 0
    #: Records and tokens that each limit concerns.
    records_over: dict[str, int] = field(default_factory=dict)
    tokens_over: dict[str, int] = field(default_factory=dict)
    #: How many parts have each length, by part of a record: ``sequence``, ``prompt``, ``answer``.
    counts: dict[str, Counter[int]] = field(default_factory=dict)
    #: Damaged records that are left out.
    num_skipped: int = 0

    def add(self, lengths: Mapping[str, Sequence[int]], cut: Cut) -> None:
        """Count a record, by the lengths of its parts and what is kept of it."""
        self.num_records += 1
        self.num_long += bool(cut.lost)
        for name, lost in cut.lost.items():
            self.records_over[name] = self.records_over.get(name, 0) + 1
            self.tokens_over[name] = self.tokens_over.get(name, 0) + lost
        for part, found in lengths.items():
            self.counts.setdefault(part, Counter()).update(found)

    @property
    def histograms(self) -> dict[str, LengthHistogram]:
        """Histogram of the lengths of each part."""
        return {
            part: LengthHistogram.of([*found], [*found.values()])
            for part, found in self.counts.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "num_records": self.num_records,
            "num_skipped": self.num_skipped,
            "num_long": self.num_long,
            "on_long": self.limits.on_long,
            "limits": {
                name: {
                    "limit": limit,
                    "num_records": self.records_over.get(name, 0),
                    "num_lost": self.tokens_over.get(name, 0),
                }
                for name, limit in self.limits.limits.items()
            },
            "lengths": {
                part: [asdict(item) for item in histogram.limit_costs()]
                for part, histogram in self.histograms.items()
            },
        }

    def to_lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = []
        for part, histogram in self.histograms.items():
            lines.append(
                f"{part}: {histogram.num_tokens:,} tokens, {histogram.longest:,} at most; a limit "
                "of as many would truncate"
            )
            lines.append(f"{'up to':>12}  {'count':>12}  {'longer':>12}  {'tokens lost':>15}")
            lines += [
                f"{item.most:12,}  {item.count:12,}  {item.num_longer:12,}  {item.num_lost:15,}"
                for item in histogram.limit_costs()
            ]
        for name, limit in self.limits.limits.items():
            lines.append(
                f"{name} {limit:,}: {self.records_over.get(name, 0):,} of {self.num_records:,} "
                f"records are longer, by {self.tokens_over.get(name, 0):,} tokens"
            )
        fate = {"truncate": "truncated", "drop": "left out", "error": "an error"}
        if self.limits.limits:
            lines.append(
                f"{self.num_long:,} records would be {fate[self.limits.on_long]}, "
                f"{self.num_records - self.num_long:,} are kept whole"
            )
        return lines
