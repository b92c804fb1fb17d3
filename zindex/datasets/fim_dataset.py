"""GPT datasets with samples for fill-in-the-middle, from which models of code learn to insert."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from zindex.arrays import Int64Array
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.errors import ConfigError
from zindex.plan.keys import fill_key
from zindex.samples.fim import EXTRA_TOKENS, MiddleFiller
from zindex.samples.texts import IndexedText


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

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
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
    Source: Megatron-LM, ``megatron.training.datasets.fim_dataset``, whose samples depend on earlier
    reads and on the worker, because they share one generator.
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
        self.filler = MiddleFiller(config)
        # By Megatron's names.
        self.fim_rate = config.fim_rate
        self.fim_spm_rate = config.fim_spm_rate
        self.fragment_fim_rate = config.fim_fragment_rate
        self.no_fim_prefix = config.fim_no_prefix
        self.fim_split_sample = self.filler.split_token
        self.prefix_tok_id, self.middle_tok_id = self.filler.prefix, self.filler.middle
        self.suffix_tok_id, self.pad_tok_id = self.filler.suffix, self.filler.pad
        self.eod_tok_id = self.filler.eod

    def _describe_text(self, text: IndexedText) -> None:
        """Add the settings of the samples, and how they are filled."""
        text.fill = self._fill
        super()._describe_text(text)

    def _fill(self, tokens: Int64Array, sample: int) -> Int64Array:
        """Return the tokens of a sample, by its number, with the middles of its texts moved."""
        key = fill_key(self.config.random_seed, self.index_split.name, sample)
        return self.filler.fill(tokens, key)
