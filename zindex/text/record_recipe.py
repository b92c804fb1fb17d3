"""What of a JSON object each field of a kind of record is made of: texts, masks and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, BoolArray
from zindex.errors import ConfigError, SourceError, shorten
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import EACH, LENGTH_SUFFIX, Field, join_items
from zindex.text.token_spans import Span

#: Parts of a JSON object that are a whole sequence: a text or a conversation. Documents come first
#: in the one, conversations in the other.
DOCUMENT, DIALOGUE = "document", "dialogue"
#: The part that answers follow, and the source of positions from 0 on.
PROMPT, POSITIONS = "prompt", "positions"


class Encoded(NamedTuple):
    """The tokens of a sequence, and which are trained; no mask if the kind of record has none."""

    ids: AnyArray
    mask: BoolArray


@dataclass(frozen=True)
class Recipe:
    """How the records of a schema are made of JSON objects.

    A record has one sequence, which is a whole text or conversation; or a prompt and answers to it;
    or independent texts.
    """

    schema: RecordSchema
    #: ``document`` or ``dialogue`` if a record is one sequence; otherwise empty.
    whole: str
    has_prompt: bool
    #: Parts that are answers, or independent texts if there is no prompt.
    answers: tuple[str, ...]
    #: Whether the answers are the items of a list.
    is_group: bool
    #: Whether the only answer is a list of steps.
    is_steps: bool
    #: Sequences that the tokens and masks of each key are made of; none for all answers.
    numbers: Mapping[str, tuple[int, ...]]
    #: Fields whose numbers or texts the JSON object itself has, by key.
    values: Mapping[str, Field]

    @cached_property
    def has_masks(self) -> bool:
        """Whether masks are stored."""
        return any(self.schema.by_key[key].values == "weights" for key in self.numbers)

    @property
    def is_joined(self) -> bool:
        """Whether a prompt and an answer are limited together."""
        return self.has_prompt and bool(self.answers) and not self.is_group

    @cached_property
    def score(self) -> str | None:
        """The first part that has a number for each answer of a group."""
        found = (
            part_of(field)
            for field in self.values.values()
            if field.like is not None and not field.is_group and field.values == "floats"
        )
        return next(found, None) if self.is_group else None

    @cached_property
    def takes_ids(self) -> bool:
        """Whether objects may have token ids instead of texts, as other values belong to tokens."""
        is_plain = not (self.whole or self.is_steps or self.is_group)
        return is_plain and any(field.like is not None for field in self.values.values())

    @cached_property
    def parts(self) -> frozenset[str]:
        """Parts of JSON objects that are read."""
        found = {*self.answers, *map(part_of, self.values.values())}
        if self.whole or self.has_prompt:
            found |= {PROMPT, "input", "system", "tools", "chat_template_kwargs"}
        if self.whole:
            found |= {"text", "messages", "completion"}
            found |= {"images"} if self.whole == DIALOGUE else set()
        if self.takes_ids:
            found |= {f"{name}_ids" for name in (PROMPT, *self.answers)}
        return frozenset(found)

    def make(
        self,
        whole: Sequence[Encoded],
        kept: Sequence[Encoded],
        spans: Sequence[Span] | None,
        values: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the fields of a record.

        Parameters
        ----------
        whole, kept
            The sequences, and what is kept of them.
        spans
            First and last token that is kept of each; None if all are.
        values
            Values of the JSON object by key.

        Raises
        ------
        SourceError
            If a value is invalid, or does not belong to the tokens. The caller adds the location.
        """
        record: dict[str, Any] = {}
        for key, field in self.schema.by_key.items():
            if key in self.values:
                record |= self._make_value(field, whole, spans, values.get(key))
                continue
            numbers = self.numbers.get(key)
            if numbers is None:  # positions
                count = sum(len(kept[number].ids) for number in self.numbers[str(field.like)])
                record[key] = np.arange(count, dtype=field.stored_dtype)
                continue
            place = int(field.values == "weights")
            if field.is_group:
                record |= join_items(field, [pair[place] for pair in kept[self.has_prompt :]])
            elif len(numbers) == 1:
                record[key] = kept[numbers[0]][place]
            else:
                record[key] = np.concatenate([kept[number][place] for number in numbers])
        for key, field in self.values.items():
            one, other = f"{key}{LENGTH_SUFFIX}", f"{field.like}{LENGTH_SUFFIX}"
            if one in record and other in record and not np.array_equal(record[one], record[other]):
                raise SourceError(
                    f"{part_of(field)!r} must have as many values as {field.like!r} in each item, "
                    f"got {shorten(record[one].tolist())} and {shorten(record[other].tolist())}"
                )
        return record

    def _make_value(
        self,
        field: Field,
        whole: Sequence[Encoded],
        spans: Sequence[Span] | None,
        value: Any,
    ) -> dict[str, Any]:
        """Return the stored fields of a value of the JSON object."""
        if field.values == "text":
            return {} if value is None else {field.key: value}
        root = _root(self.schema, field)
        numbers = self.numbers.get(root.key, ())
        if root.key in self.values or root is field:  # aligned with no tokens
            pass
        elif root.is_group:
            _check_count(field, value, len(whole) - self.has_prompt, f"{root.key!r} has answers")
            if field.is_group:
                answers = enumerate(value, int(self.has_prompt))
                value = [_cut(field, item, whole, spans, number) for number, item in answers]
        elif len(numbers) == 2:
            return {field.key: self._spread(field, value, whole, spans)}
        else:
            value = _cut(field, value, whole, spans, numbers[0])
        if field.is_group:
            return join_items(field, field.convert_group(value))
        return {field.key: field.convert(value)}

    def _spread(
        self, field: Field, value: Any, whole: Sequence[Encoded], spans: Sequence[Span] | None
    ) -> AnyArray:
        """Return the values of the last token of each step, and 0 for all others."""
        prompt, steps = whole
        ends = np.flatnonzero(steps.mask)
        _check_count(field, value, len(ends), f"{self.answers[0]!r} has texts")
        found = np.zeros(len(prompt.ids) + len(steps.ids), field.stored_dtype)
        found[len(prompt.ids) + ends] = field.convert(value)
        if spans is None:
            return found
        (start, stop), (first, last) = spans
        return np.concatenate((found[start:stop], found[len(prompt.ids) :][first:last]))


def _cut(
    field: Field,
    value: Any,
    whole: Sequence[Encoded],
    spans: Sequence[Span] | None,
    number: int,
) -> Any:
    """Return the values of the tokens that are kept of a sequence."""
    _check_count(field, value, len(whole[number].ids), "its text has tokens")
    return value if spans is None else value[slice(*spans[number])]


def _check_count(field: Field, value: Any, count: int, what: str) -> None:
    """Check that a JSON value is a list of a length."""
    if not isinstance(value, list) or len(value) != count:
        got = f"{len(value):,} values" if isinstance(value, list) else shorten(value)
        raise SourceError(
            f"{part_of(field)!r} must be a list with as many values as {what}, {count:,}, got {got}"
        )


def part_of(field: Field) -> str:
    """Return the part of a JSON object that a field of values has."""
    return (field.made_of[0] if field.made_of else field.key).removesuffix(EACH)


def is_each(field: Field) -> bool:
    """Return whether a field has a value for each text of a list."""
    return any(name.endswith(EACH) for name in field.made_of) and not _is_text(field)


@cache
def recipe_of(schema: RecordSchema) -> Recipe:
    """Return how the records of a schema are made.

    Raises
    ------
    ConfigError
        If a field cannot be made of a JSON object.
    """
    texts = {key: _sources(field) for key, field in schema.by_key.items() if _is_text(field)}
    used = list(dict.fromkeys(name for sources in texts.values() for name in sources))
    whole = [name for name in used if name in (DOCUMENT, DIALOGUE)]
    answers = [name for name in used if name not in (*whole, PROMPT)]
    groups = [key for key in texts if schema.by_key[key].is_group]
    steps = [name for name in answers if name.endswith(EACH)]
    problem = ""
    if not texts:
        problem = "it has no field of token ids"
    elif whole and len(used) > 1:
        problem = f"{whole[0]!r} must be its only source of tokens"
    elif (groups or steps) and len(answers) > 1:
        problem = f"{(groups or steps)[0]!r} must be its only answers"
    for key, sources in texts.items():
        if len(sources) > 1 and (len(sources) > 2 or sources[0] != PROMPT or key in groups):
            problem = f"{key!r} must be made of one text, or of the prompt and an answer"
    for key, field in schema.by_key.items():
        if field.made_of == (POSITIONS,) and (field.like not in texts or field.is_group):
            problem = f"positions, {key!r}, must be like a key of one text"
    if problem:
        raise ConfigError(
            f"records of {schema.name!r} cannot be made of texts: {problem}; change made_of, or "
            "convert token ids with zindex convert"
        )
    places = {name: number for number, name in enumerate(answers, PROMPT in used)}
    places |= {PROMPT: 0, **dict.fromkeys(whole, 0)}
    numbers = {key: tuple(places[name] for name in own) for key, own in texts.items()}
    values = {}
    for key, field in schema.by_key.items():
        root = _root(schema, field)
        if key in texts or field.made_of == (POSITIONS,):
            continue
        if field.values == "weights" and field.like in texts and not field.made_of:
            numbers[key] = numbers[field.like]
            continue
        values[key] = field
        is_joined = root.key in texts and len(texts[root.key]) > 1
        if is_joined != is_each(field) or (is_joined and (field.is_group or not steps)):
            raise ConfigError(
                f"field {field.name!r} of {schema.name!r} cannot be made of JSON objects: values "
                f"belong to the tokens of one text, or to each text of a list ({EACH}); change "
                "like or made_of, or convert token ids with zindex convert"
            )
    return Recipe(
        schema,
        whole[0] if whole else "",
        PROMPT in used,
        tuple(name.removesuffix(EACH) for name in answers),
        bool(groups),
        bool(steps),
        numbers,
        values,
    )


def _is_text(field: Field) -> bool:
    """Return whether a field has the tokens of a text; ids that are like others are given."""
    return field.values == "ids" and field.like is None


def _sources(field: Field) -> tuple[str, ...]:
    """Return the parts of a JSON object that the tokens of a field are made of."""
    return (*field.made_of,) or (field.key,)


def _root(schema: RecordSchema, field: Field) -> Field:
    """Return the field whose lengths a field has in the end."""
    while field.like is not None:
        field = schema.by_key[field.like]
    return field
