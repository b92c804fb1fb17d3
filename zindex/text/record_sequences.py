"""Read JSON objects into the sequences and values of which records are made."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from zindex.arrays import AnyArray
from zindex.errors import ConfigError, SourceError, shorten
from zindex.formats.keyed.schema_field import Field
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser, Dialogue
from zindex.text.loss_masks import DialogueCutter, MaskedText
from zindex.text.media import MediaRule, Medium, expand, find_media
from zindex.text.record_recipe import DOCUMENT, PROMPT, Recipe, is_each, part_of
from zindex.text.text_checks import SpecialTexts
from zindex.text.text_encoder import TextEncoder
from zindex.text.token_settings import UNKNOWN_ID, TokenSettings

Sample = dict[str, Any]


class TextSequence(NamedTuple):
    """One sequence before it is tokenised."""

    parts: Sequence[MaskedText]
    #: Ids before and after it.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether it continues another text.
    is_answer: bool = False
    #: Whether the id after it is trained.
    trains_end: bool = True
    #: Images in it, and the tokens of each.
    media: Sequence[Medium] = ()
    counts: Sequence[int] = ()
    #: Its ids, if the object has them instead of a text.
    given: AnyArray | None = None
    #: For each step of an answer, whether its last token is marked; None without steps. A step is
    #: one part, or two with its separator.
    marks: Sequence[bool] | None = None

    @property
    def keys(self) -> list[tuple[MaskedText, bool]]:
        """Each part, and whether it follows other text."""
        follows = self.is_answer
        return [(part, follows or number > 0) for number, part in enumerate(self.parts)]


class SequenceReader:
    """Reads JSON objects by the recipe of their kind of record.

    Parameters
    ----------
    settings, encoder, template, parser, cutter_settings, media
        As of `zindex.text.token_records.TokenRecords`.
    num_ids
        Number of ids of the vocabulary; None if unknown.

    Raises
    ------
    ConfigError
        If a setting does not apply to the kind of record, or special tokens are to be rejected but
        the tokenizer lists none.
    """

    def __init__(
        self,
        settings: TokenSettings,
        encoder: TextEncoder,
        template: ChatTemplate | None,
        parser: ConversationParser,
        cutter_settings: Mapping[str, Any],
        media: MediaRule | None,
        num_ids: int | None,
    ) -> None:
        self.settings, self.template, self.parser = settings, template, parser
        special = encoder.special_texts()
        #: Cuts conversations; None rejects them.
        self.cutter: DialogueCutter | None = None
        if template is not None:
            self.cutter = DialogueCutter(template, ends=special, **cutter_settings)
        if media is not None and settings.kind != "sft":
            raise ConfigError(
                f"media (--media) must be left out for {settings.kind}: images are for sft"
            )
        self._media, self._num_ids = media, num_ids
        self._special = SpecialTexts(special) if settings.special_in_text == "refuse" else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "recipe"}

    @cached_property
    def recipe(self) -> Recipe:
        """What records are made of."""
        return self.settings.recipe

    def read(self, sample: Sample) -> tuple[list[TextSequence], dict[str, Any]]:
        """Return the sequences of a JSON object, and its values by key.

        Raises
        ------
        SourceError
            If it is damaged. The caller adds the location.
        ConfigError
            If it is a conversation and there is no chat template, or a document without an end.
        """
        sequences = self._cut(sample)
        values = self._read_values(sample) if self.recipe.values else {}
        marks = sequences[-1].marks
        if marks is not None:
            keys = [key for key, field in self.recipe.values.items() if is_each(field)]
            marks = _find_marks(values, keys, len(marks))
            sequences[-1] = sequences[-1]._replace(marks=marks)
        return sequences, values

    def find_unread(self, sample: Sample) -> list[str]:
        """Return the non-empty fields of a JSON object that nothing reads."""
        return self.parser.find_unread(sample, self.recipe.parts)

    def keep_fields(self, sample: Sample, record: Mapping[str, Any]) -> Sample:
        """Return the fields of a JSON object that nothing reads, to be stored with a record."""
        names = self.find_unread(sample)
        taken = [name for name in names if name in record]
        if taken:
            raise SourceError(
                f"an object of {self.recipe.schema.name!r} must not have a field {taken[0]!r}, as "
                "the store has a key of that name; rename it"
            )
        return {name: sample[name] for name in names}

    def cut_dialogue(self, dialogue: Dialogue, prompt: str | None = None) -> list[MaskedText]:
        """Return the parts of a conversation that are encoded separately.

        Parameters
        ----------
        dialogue
            The conversation.
        prompt
            The text of its prompt, if it is known.

        Raises
        ------
        SourceError
            If the template rejects it, or its text does not start with that of its prompt.
        """
        cutter, recipe = self._need_cutter(), self.recipe
        if recipe.whole == DOCUMENT:
            return [MaskedText.whole(cutter.text(dialogue))]
        if recipe.whole:
            return [cutter.cut(dialogue)]
        if not recipe.answers or recipe.is_steps:
            return [MaskedText(cutter.prompt(dialogue))]
        prompt, answer = cutter.cut_answer(dialogue, prompt)
        return [MaskedText(prompt), answer]

    def read_dialogues(self, sample: Sample) -> Sequence[Dialogue]:
        """Return the conversations of a JSON object; none if it has texts or ids alone.

        Raises
        ------
        SourceError
            If it is damaged.
        """
        recipe, parser = self.recipe, self.parser
        if self._has_ids(sample):
            return []
        if not recipe.has_prompt:
            if not recipe.whole or self._read_text(sample) is not None:
                return []
            return self._check([parser.read_dialogue(sample)])
        if not recipe.answers or recipe.is_steps:
            return self._check([parser.read_asked(sample)])
        if not recipe.is_group:
            return self._check(parser.read_answers(sample, recipe.answers))
        group = parser.read_group(sample, recipe.answers[0], recipe.score)
        return self._check(group.answers)

    def _cut(self, sample: Sample) -> list[TextSequence]:
        """Return the sequences of a JSON object."""
        recipe, parser = self.recipe, self.parser
        if self._has_ids(sample):
            names = [PROMPT] * recipe.has_prompt + [*recipe.answers]
            return [self._take(sample, name) for name in names]
        if recipe.has_prompt:
            return self._cut_answers(sample)
        if not recipe.whole:
            return [self._document(parser.read_value(sample, name)) for name in recipe.answers]
        text = self._read_text(sample)
        if text is not None:
            return [self._document(text)]
        [dialogue] = self._check([parser.read_dialogue(sample)])
        [masked] = self.cut_dialogue(dialogue)
        if self._media is None:
            return [self._sequence([masked], dialogue)]
        media = find_media(dialogue.messages, sample)
        counts = [self._media.count(item.height, item.width) for item in media]
        masked = expand(masked, self._media.placeholder, counts)
        return [self._sequence([masked], dialogue)._replace(media=media, counts=counts)]

    def _has_ids(self, sample: Sample) -> bool:
        """Return whether a JSON object has token ids instead of texts."""
        if not self.recipe.takes_ids:
            return False
        names = [f"{name}_ids" for name in self.recipe.answers]
        return any(self.parser.read_value(sample, name) is not None for name in names)

    def _cut_answers(self, sample: Sample) -> list[TextSequence]:
        """Return the prompt that conversations share, and the answer of each."""
        prompt: MaskedText | None = None
        sequences = list[TextSequence]()
        for dialogue in self.read_dialogues(sample):
            known = None if prompt is None else prompt.text
            prompt, *answer = self.cut_dialogue(dialogue, known)
            if answer:
                found = self._sequence(answer, dialogue)
                sequences.append(found._replace(begin_id=None, is_answer=True))
        assert prompt is not None
        if self.recipe.is_steps:
            sequences = [self._cut_steps(sample)]
        return [TextSequence([prompt], self._ends()[0]), *sequences]

    def _cut_steps(self, sample: Sample) -> TextSequence:
        """Return the steps of an answer, each a text of its own."""
        steps = self.parser.read_steps(sample, self.recipe.answers[0])
        if self._special is not None:
            self._special.check(steps)
        separator = self.settings.step_separator
        parts = [MaskedText(text) for step in steps for text in (step, separator) if text]
        return TextSequence(parts, is_answer=True, marks=[True] * len(steps))

    def _take(self, sample: Sample, name: str) -> TextSequence:
        """Return a part of a JSON object that is token ids, or a prompt that is a text."""
        given = self.parser.read_value(sample, f"{name}_ids")
        if given is None and name == PROMPT:
            [dialogue] = self._check([self.parser.read_asked(sample)])
            text = MaskedText(self._need_cutter().prompt(dialogue))
            return TextSequence([text], self._ends()[0])
        self.parser.need_value(sample, f"{name}_ids")
        field = Field(f"{name}_ids", axes="token", dtype=self.settings.token_dtype)
        ids = field.convert(given)
        most = int(ids.max(initial=0))
        if self._num_ids is not None and most >= self._num_ids:
            raise SourceError(
                f"{name}_ids must be ids of the tokenizer, from 0 to {self._num_ids - 1:,}, got "
                f"{most:,}"
            )
        return TextSequence([], given=ids, is_answer=name != PROMPT)

    def _read_values(self, sample: Sample) -> dict[str, Any]:
        """Return the values that a JSON object itself has, by key."""
        fields, values = self.recipe.values, dict[str, Any]()
        for key, field in reversed([*fields.items()]):
            if key in values:  # ids that are the names in the values of another field
                continue
            part = part_of(field)
            value = self.parser.read_value(sample, part)
            value = field.default if value is None else value
            if value is None and not field.optional:
                self.parser.need_value(sample, part)
            like = fields.get(field.like or "")
            if like is not None and like.values == "ids" and _has_names(value):
                values[like.key] = [[*map(_parse_id, item)] for item in value]
                value = [[*item.values()] for item in value]
            values[key] = value
        return values

    def _read_text(self, sample: Sample) -> str | None:
        """Return the text of a document; None if the object is a conversation."""
        is_text = self.recipe.whole == DOCUMENT or "text" in self.parser.columns
        if is_text or not self.parser.holds_dialogue(sample):
            return self.parser.read_text(sample)
        return None

    def _check(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """Return conversations; raise for special tokens in their texts if so configured."""
        if self._special is not None:
            for dialogue in dialogues:
                self._special.check([*dialogue.messages, dialogue.tools, dialogue.variables])
        return dialogues

    def _document(self, text: Any) -> TextSequence:
        """Return a text as a sequence."""
        if not isinstance(text, str):
            raise SourceError(
                f"{' and '.join(self.recipe.answers)} must be texts, got {shorten(text)}"
            )
        if self._special is not None:
            self._special.check(text)
        return TextSequence([MaskedText.whole(text)], *self._document_ends())

    def _sequence(self, parts: Sequence[MaskedText], dialogue: Dialogue) -> TextSequence:
        """Return a conversation as a sequence."""
        begin_id, end_id = self._ends()
        trains_end = end_id is None or self._need_cutter().trains_end(dialogue)
        return TextSequence(parts, begin_id, end_id, trains_end=trains_end)

    def _need_cutter(self) -> DialogueCutter:
        """Return the cutter of conversations; an error if there is no chat template."""
        if self.cutter is None:
            raise ConfigError(
                "dialogues and answers need a chat template, and the tokenizer has none; name one "
                "with chat_template (--chat-template): 'chatml', a file, or 'plain' for texts one "
                "after the other"
            )
        return self.cutter

    def _ends(self) -> tuple[int | None, int | None]:
        """Return the ids around conversations: none if the template marks their ends."""
        if self.template is None or not self.template.is_plain:
            return None, None
        return self._document_ends()

    def _document_ends(self) -> tuple[int | None, int | None]:
        """Return the ids around documents."""
        if self.settings.end_id == UNKNOWN_ID:
            raise ConfigError(
                "append_eod (--append-eod) needs the eos_token of the tokenizer, which names none; "
                "give the id or the text of a token, or False (none) to do without"
            )
        return self.settings.begin_id, self.settings.end_id


def _find_marks(values: dict[str, Any], keys: Sequence[str], count: int) -> list[bool]:
    """Return which steps have a label, and leave out the others, whose labels are null."""
    marks = [True] * count
    for key in keys:
        value = values[key]
        if isinstance(value, list) and len(value) == count:
            marks = [one is not None for one in value]
            values[key] = [one for one in value if one is not None]
    return marks


def _has_names(value: Any) -> bool:
    """Return whether a JSON value is a list of objects, from token ids to numbers."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, dict) for x in value)


def _parse_id(text: str) -> int:
    """Return the token id that a JSON object has as a name."""
    if not text.isdecimal():
        raise SourceError(f"objects by token must have token ids as names, got {text!r}")
    return int(text)
