"""GPT datasets whose samples are filled in the middle: models of code learn from them to insert."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.fim_batches import EXTRA_TOKENS, MiddleFiller, make_fim_batch
from zindex.datasets.batching.gpt_batches import is_plain, join_parts
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.errors import ConfigError
from zindex.plan.keys import fill_key

__all__ = ["GPTFIMDataset", "GPTFIMDatasetConfig"]


@dataclass
class GPTFIMDatasetConfig(GPTDatasetConfig):
    """Settings of fill-in-the-middle datasets, by Megatron's names."""

    fim_rate: float | None = None
    """Probability that a text is changed; must be given."""

    fim_spm_rate: float | None = None
    """Probability that a changed text has its suffix in front of its prefix; must be given."""

    fim_extra_tokens: Mapping[str, str] | None = None
    """Tokens named ``prefix``, ``middle``, ``suffix``, ``pad`` and ``eod``; must be given."""

    fim_split_sample: str | None = None
    """Token that cuts texts into fragments, such as the files of a repository."""

    fim_fragment_rate: float | None = None
    """Probability that a fragment of a text that is to be changed is; needed with the token."""

    fim_no_prefix: str | None = None
    """What texts and fragments that are never changed begin with."""

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
    """A GPT dataset in whose samples middles of texts stand at their ends.

    A sample is the GPT dataset's own, cut into texts at the end tokens. Each of them is changed
    with probability ``fim_rate``: cut into prefix, middle and suffix at two random characters,
    tokenised again, and put together as ``<prefix> p <suffix> s <middle> m``, or, with probability
    ``fim_spm_rate``, as ``<prefix> <suffix> s <middle> p m``. The sample keeps its length. Draws
    are keyed by seed, split and number of the sample: a sample is the same whenever, wherever and
    after whatever else it is read.

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
    Source: Megatron-LM, ``megatron.training.datasets.fim_dataset``, whose generator goes on with
    every read, so that its samples depend on what was read before, and by which worker.
    """

    config: GPTFIMDatasetConfig
    _make_together = staticmethod(make_fim_batch)

    def _prepare(self) -> None:
        """Count the samples, and look up the tokens."""
        super()._prepare()
        config = self.config
        if not isinstance(config, GPTFIMDatasetConfig):
            raise ConfigError(
                f"{self._where} needs a GPTFIMDatasetConfig to be filled in the middle, got a "
                f"{type(config).__name__}; make the configuration of that class"
            )
        assert config.fim_rate is not None  # both were checked there
        assert config.fim_spm_rate is not None
        self.filler = MiddleFiller(
            config.tokenizer,
            config.fim_extra_tokens or {},
            rate=config.fim_rate,
            spm_rate=config.fim_spm_rate,
            split_sample=config.fim_split_sample,
            fragment_rate=config.fim_fragment_rate,
            no_prefix=config.fim_no_prefix,
        )
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
    def _is_plain(self) -> bool:
        """Whether items are made as batches make them, and not in a subclass's own way."""
        return is_plain(self, GPTFIMDataset)

    def _query_document_sample_shuffle_indices(
        self, idx: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the token ids of a sample, filled and padded to its full length.

        Parameters
        ----------
        idx
            Position of the sample, from the end if negative.

        Returns
        -------
        text, documents
            Shape (sequence_length + x,) and (parts,), both int64. A document may be part twice.
        """
        sample, parts, documents = self._read_parts(idx)
        text = join_parts(self, sample, parts)
        count = sum(map(len, parts))
        text[:count] = self._fill(text[:count], sample)
        return text, documents

    def _fill(self, tokens: npt.NDArray[np.int64], sample: int) -> npt.NDArray[np.int64]:
        """Return the tokens of a sample, by its number, with the middles of its texts moved."""
        key = fill_key(self.config.random_seed, self.index_split.name, sample)
        return self.filler.fill(tokens, key)
