"""GPT datasets with samples for fill-in-the-middle, from which models of code learn to insert."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from numbers import Real
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.datasets.blended_megatron_dataset_config import CHOICES, DEFAULTS, FIMDraws
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.sample_dataset import SampleDataset, overrides
from zindex.errors import ConfigError, check_choice
from zindex.plan.keys import fill_key
from zindex.samples.batch import resolve_positions
from zindex.samples.fim import EXTRA_TOKENS, MiddleFiller, RandomStream, SequentialDraws, TextCodec
from zindex.samples.gpt import read_texts
from zindex.samples.texts import IndexedText

# Megatron's methods that fill a text, each called by the one before it.
_STEPS = ("_fim_split_and_permute_sequence", "_fim_permute_sequence", "_permute")
# Samples that `replay_draws` reads together.
_NUM_REPLAYED = 256


@dataclass
class GPTFIMDatasetConfig(GPTDatasetConfig):
    """Settings of fill-in-the-middle datasets, by Megatron's names."""

    #: Probability that a text is changed; must be given.
    fim_rate: float | None = None

    #: Probability that the suffix of a changed text precedes its prefix; must be given.
    fim_spm_rate: float | None = None

    #: Tokens named ``prefix``, ``middle``, ``suffix``, ``pad`` and ``eod``; must be given.
    fim_extra_tokens: Mapping[str, str] | None = None

    #: Token that separates the fragments of texts, such as the files of a repository.
    fim_split_sample: str | None = None

    #: Probability that a fragment of a chosen text is changed; needed with the token.
    fim_fragment_rate: float | None = None

    #: Prefix of texts and fragments that are never changed.
    fim_no_prefix: str | None = None

    #: zindex: ``"keyed"`` draws by seed, split and sample; ``"sequential"`` as Megatron does, by
    #: one generator for each dataset and process, which every read advances.
    fim_draws: FIMDraws = field(default_factory=lambda: DEFAULTS.fim_draws, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_choice("fim_draws", self.fim_draws, CHOICES["fim_draws"])
        rates = {"fim_rate": self.fim_rate, "fim_spm_rate": self.fim_spm_rate}
        if self.fim_split_sample:
            rates["fim_fragment_rate"] = self.fim_fragment_rate
        for name, rate in rates.items():
            if not isinstance(rate, Real) or not 0 <= rate <= 1:
                raise ConfigError(f"{name} must be a probability, got {rate}; give one of 0 to 1")
        given = self.fim_extra_tokens or {}
        missing = [name for name in EXTRA_TOKENS if not isinstance(given.get(name), str)]
        if missing:
            raise ConfigError(
                f"fim_extra_tokens must name the tokens {', '.join(EXTRA_TOKENS)}, it lacks "
                f"{', '.join(missing)}; give their texts"
            )
        for name in ("inter_document_masking", "with_provenance"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name} cannot be had of samples that are filled in the middle, whose tokens "
                    "move: where documents start is told by the end tokens alone; leave it out"
                )


class GPTFIMDataset(GPTDataset):
    """A GPT dataset in whose samples the middles of texts are moved to their ends.

    A sample of the GPT dataset is split into texts at the end tokens. Each text is changed with
    probability ``fim_rate``: split into prefix, middle and suffix at two random characters,
    tokenised again, and joined as ``<prefix> p <suffix> s <middle> m``, or, with probability
    ``fim_spm_rate``, as ``<prefix> <suffix> s <middle> p m``. The sample keeps its length. Random
    numbers are keyed by seed, split and sample number, so samples are deterministic and independent
    of the order of reads.

    With ``fim_draws="sequential"`` samples equal those of a run of Megatron, with the same loader
    workers: random numbers are those of ``np_rng``, which each read of this process advances, and
    which starts at the seed whenever a job starts. `replay_draws` continues a job instead.

    Parameters
    ----------
    indexed_dataset, dataset_path, indexed_indices, num_samples, index_split
        As for ``GPTDataset``.
    config
        The configuration. Its tokenizer has Megatron's ``_tokenizer`` with ``text_to_ids``,
        ``ids_to_text`` and ``tokens_to_ids``, or these itself; or ``tokenize``, ``detokenize`` and
        ``vocab``.

    Raises
    ------
    ConfigError
        If the configuration is of another class, or the tokenizer lacks a token.

    Notes
    -----
    Source: Megatron-LM, ``megatron.training.datasets.fim_dataset``.
    """

    config: GPTFIMDatasetConfig

    def _prepare(self) -> None:
        """Count the samples and look up the tokens."""
        super()._prepare()
        config = self.config
        if not isinstance(config, GPTFIMDatasetConfig):
            raise ConfigError(
                f"{self._where} needs a GPTFIMDatasetConfig to be filled in the middle, got a "
                f"{type(config).__name__}; make the configuration of that class"
            )
        if not self.is_sequential and overrides(type(self), GPTFIMDataset, _STEPS):
            raise ConfigError(
                f"{type(self).__name__} overrides how texts are filled, which needs Megatron's "
                f"draws, got fim_draws={config.fim_draws!r}; set it to 'sequential'"
            )
        self.filler = MiddleFiller(config)
        #: The generator of ``fim_draws="sequential"``; its state is that of the reads so far.
        self.np_rng = np.random.RandomState(config.random_seed)
        # By Megatron's names.
        self.fim_rate = config.fim_rate
        self.fim_spm_rate = config.fim_spm_rate
        self.fragment_fim_rate = config.fim_fragment_rate
        self.no_fim_prefix = config.fim_no_prefix
        self.fim_split_sample = self.filler.split_token
        self.prefix_tok_id, self.middle_tok_id = self.filler.prefix, self.filler.middle
        self.suffix_tok_id, self.pad_tok_id = self.filler.suffix, self.filler.pad
        self.eod_tok_id = self.filler.eod

    @property
    def is_sequential(self) -> bool:
        """Whether samples depend on the reads before them."""
        return self.config.fim_draws == "sequential"

    def _describe_text(self, text: IndexedText) -> None:
        """Add the settings of the samples, and how they are filled."""
        text.fill = self._fill
        super()._describe_text(text)

    def _fill(self, tokens: Int64Array, sample: int) -> Int64Array:
        """Return the tokens of a sample, by its number, with the middles of its texts moved."""
        if self.is_sequential:
            return self.filler.fill(tokens, self._fim_split_and_permute_sequence)
        key = fill_key(self.config.random_seed, self.index_split.name, sample)
        draws = RandomStream(key)
        return self.filler.fill(
            tokens, lambda text: self.filler.fill_text(text, draws, keep_all=True)
        )

    def _fim_split_and_permute_sequence(self, sequence: Int64Array) -> Int64Array:
        """Return one text with its middle moved, or those of its fragments."""
        draws = SequentialDraws(self.np_rng)
        return self.filler.fill_text(sequence, draws, self._fim_permute_sequence, keep_all=False)

    def _fim_permute_sequence(self, sequence: Int64Array, rate: float) -> Int64Array:
        """Return a text or a fragment with its middle moved, with this probability."""
        return self._permute(
            sequence,
            rate,
            self.fim_spm_rate,
            self.config.tokenizer,
            truncate_or_pad=False,
            suffix_tok_id=self.suffix_tok_id,
            prefix_tok_id=self.prefix_tok_id,
            middle_tok_id=self.middle_tok_id,
            pad_tok_id=self.pad_tok_id,
            no_fim_prefix=self.no_fim_prefix,
        )

    def _permute(
        self,
        sample: Int64Array,
        fim_rate: float,
        fim_spm_rate: float | None,
        tokenizer: Any,
        truncate_or_pad: bool = True,
        suffix_tok_id: int | None = None,
        prefix_tok_id: int | None = None,
        middle_tok_id: int | None = None,
        pad_tok_id: int | None = None,
        no_fim_prefix: str | None = None,
    ) -> Int64Array:
        """Return a text with its middle moved, by draws of ``np_rng``; see `MiddleFiller.permute`.

        ``truncate_or_pad`` keeps its length.
        """
        filler = copy.copy(self.filler)
        if tokenizer is not self.config.tokenizer:
            filler.codec = TextCodec(tokenizer)
        settings = {
            "suffix": suffix_tok_id,
            "prefix": prefix_tok_id,
            "middle": middle_tok_id,
            "pad": pad_tok_id,
        }
        vars(filler).update(settings, spm_rate=fim_spm_rate, no_prefix=no_fim_prefix)
        draws = SequentialDraws(self.np_rng)
        return filler.permute(sample, fim_rate, draws, keep_length=truncate_or_pad)

    def _skip(self, tokens: Int64Array, sample: int) -> Int64Array:
        """Advance the generator as `_fill` does, without tokenising; return the tokens."""
        draws = SequentialDraws(self.np_rng)

        def permute(text: Int64Array, rate: float) -> Int64Array:
            return self.filler.permute(text, rate, draws, only_draws=True)

        self.filler.fill(
            tokens, lambda text: self.filler.fill_text(text, draws, permute, keep_all=False)
        )
        return tokens


def replay_draws(dataset: SampleDataset, batches: Iterable[Sequence[int | None]]) -> None:
    """Advance the generators of a dataset as if this process had read batches.

    Samples are then those of a job that was never interrupted. `zindex.loading.megatron_samplers.
    ReplayedDraws` does this in loader workers.

    Parameters
    ----------
    dataset
        A ``GPTFIMDataset`` with ``fim_draws="sequential"``, or a blend of them.
    batches
        Positions of the samples of each batch, in the order in which they were read.

    Raises
    ------
    ConfigError
        If the samples of a dataset do not depend on earlier reads, or its class overrides how texts
        are filled.
    """
    members: list[Any] = getattr(dataset, "datasets", [dataset])
    for member in members:
        is_known = isinstance(member, GPTFIMDataset) and not overrides(
            type(member), GPTFIMDataset, _STEPS
        )
        if not is_known or not member.is_sequential:
            raise ConfigError(
                "draws can be replayed of GPTFIMDataset with fim_draws='sequential', got "
                f"{type(member).__name__}; read the batches instead"
            )
    for member in members:
        member.open_text().fill = member._skip
    try:
        positions = chain.from_iterable(batches)
        while read := list(islice(positions, _NUM_REPLAYED)):
            read_texts(dataset._request(*resolve_positions(read, len(dataset), dataset._where)))
    finally:
        for member in members:
            member.open_text().fill = member._fill
