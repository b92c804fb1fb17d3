"""The base of datasets that mask tokens: documents of sentences, drawn as runs of sentences.

Which sentences make a sample is Megatron Core's sentence mapping; what is masked in it is drawn
from a generator of the sample's own, keyed by seed and position. BERT's and T5's samples are in
their own modules.
"""

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.mapping_arrays import MappingArrays, open_mapping_arrays
from zindex.building.on_demand import Needed
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.gpt_index import STORED, index_folder
from zindex.datasets.masking.mapping import (
    ComputedMapping,
    SentenceRules,
    compute_sentences,
    needed_sentences,
    plan_sentences,
)
from zindex.datasets.masking.plain_masks import Masked, mask_tokens
from zindex.datasets.masking.vocabulary import Vocabulary, require_tokens
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.text_dataset import TextDataset
from zindex.datasets.utils import log_single_rank
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError
from zindex.plan.sentence_mapping import MappingPlan
from zindex.store.open import Store
from zindex.store.reader import RowReader

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)

_REQUIRED = (
    "tokenizer",
    "masking_probability",
    "short_sequence_probability",
    "masking_max_ngram",
    "masking_do_full_word",
    "masking_do_permutation",
    "masking_use_longer_ngrams",
    "masking_use_geometric_distribution",
)
#: Stands for a setting without which there is no configuration.
MISSING: Any = None
# What a subclass may do in its own way, without the kernel's knowing.
_WAYS = ("_create_masked_lm_predictions", "_get_token_mask")


@dataclass
class MaskedWordPieceDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of datasets that mask tokens, by Megatron Core's names; all of them must be given.

    Raises
    ------
    ConfigError
        If a setting is missing, out of range, or excludes another.
    """

    masking_probability: float = MISSING
    """Share of the tokens that are masked, above 0 and below 1."""

    short_sequence_probability: float = MISSING
    """Share of samples that are shorter than they could be, 0 to 1."""

    masking_max_ngram: int = MISSING
    """Words that are masked together at most."""

    masking_do_full_word: bool = MISSING
    """Whether words are masked whole, or by their pieces."""

    masking_do_permutation: bool = MISSING
    """Whether as many tokens again change places among each other."""

    masking_use_longer_ngrams: bool = MISSING
    """Whether longer n-grams are likelier than shorter ones, not the other way round."""

    masking_use_geometric_distribution: bool = MISSING
    """Whether lengths of n-grams are drawn as in SpanBERT (arXiv:1907.10529, section 3.1)."""

    object_storage_cache_path: str | None = field(default=None, kw_only=True)
    """Ours, as GPT datasets have it: directory of each node for copies of ``.idx`` files that are
    in object storage."""

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        for name in _REQUIRED:
            self._require(name)
        probability, short = self.masking_probability, self.short_sequence_probability
        if not 0 < probability < 1:
            raise ConfigError(
                f"masking_probability must be above 0 and below 1, got {probability}; 0.15 is usual"
            )
        if not 0 <= short <= 1:
            raise ConfigError(
                f"short_sequence_probability must lie in [0, 1], got {short}; 0.1 is usual"
            )
        if not self.masking_max_ngram > 0:
            raise ConfigError(
                f"masking_max_ngram must be at least 1 word, got {self.masking_max_ngram}; raise it"
            )
        if not self.masking_use_geometric_distribution:
            return
        if self.masking_do_permutation:
            raise ConfigError(
                "masking_do_permutation must be False with masking_use_geometric_distribution, got "
                "True; give one of the two"
            )
        if self.masking_use_longer_ngrams:
            log_single_rank(
                logger,
                logging.WARNING,
                "masking_use_longer_ngrams has no effect: the lengths of n-grams are geometric",
            )

    def _require(self, name: str) -> None:
        """Refuse a setting that is not given."""
        if getattr(self, name) is None:
            raise ConfigError(f"{name} must be given for masked datasets, got None; set it")

    def _require_length(self, kind: str, num_special: int) -> None:
        """Refuse samples that have no room for two tokens beside the special ones."""
        if self.sequence_length < num_special + 2:
            raise ConfigError(
                f"sequence_length of {kind} datasets must be at least {num_special + 2}, for "
                f"{num_special} special tokens and two others, got {self.sequence_length}; raise it"
            )

    def _require_tokens(self, names: tuple[str, ...], kind: str) -> None:
        """Refuse a tokenizer that lacks a special token, or the texts of its tokens."""
        require_tokens(self.tokenizer, names, kind)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The token ids of the tokenizer; all datasets of a configuration share it."""
        return Vocabulary.of(self.tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("vocabulary", None)  # made again where it is needed
        return state


class MaskedWordPieceDataset(TextDataset[MappingArrays | ComputedMapping]):
    """A split of a dataset of documents as samples of sentences, in which tokens are masked.

    Documents are what is divided among the splits. Sentences are the sequences of the dataset. The
    tokenizer is a WordPiece one: pieces that begin with ``##`` belong to the word before them.

    What a sample draws is keyed by ``random_seed`` and its position: batches, workers and the order
    of reads do not matter. With ``order="megatron"`` samples equal Megatron Core's; but permutation
    draws from the sample's generator too, not from numpy's global one, and a position from the end
    gives the sample that stands there.

    A subclass says by `_sentence_rules` how much its samples hold, or calls `_build_sample_index`.

    Parameters
    ----------
    indexed_dataset
        The low-level dataset.
    dataset_path
        Its path, as the user wrote it: part of Megatron's cache key.
    indexed_indices
        The documents of the split: consecutive numbers, as an array or a range.
    num_samples
        Samples wanted at least, in as many epochs as it takes; None means one epoch.
    index_split
        The split.
    config
        The configuration.

    Raises
    ------
    PlanError
        If the documents are not consecutive, or give no samples.
    NotReadyError
        If another rank should have built the index and has not.
    """

    config: MaskedWordPieceDatasetConfig

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Return the number of documents: masked datasets are split by documents."""
        if isinstance(low_level_dataset, ZarrIndexedDataset):
            return int(low_level_dataset.store.spec["num_documents"])
        return len(low_level_dataset.document_indices) - 1

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Return the settings that are part of Megatron's cache key."""
        # By the class, not super(): callers go by Megatron Core's static methods.
        return [*MegatronDataset._key_config_attributes(), *_REQUIRED[1:]]

    def _sentence_rules(self) -> SentenceRules | None:
        """Return how much a sample holds; None where `_build_sample_index` will be called."""
        return None

    def _prepare(self) -> None:
        """Take the rules of samples."""
        if self.config.follow is not None:
            raise ConfigError(
                f"{self._where} cannot be followed while its sentences are mapped, got follow="
                f"{self.config.follow}: how many samples they give is known when all are; leave "
                "follow out"
            )
        self._rules = self._sentence_rules()
        self._own_rows: AnyArray | None = None

    def _request_index(self) -> None:
        """Have the samples mapped; a subclass that says nothing of them yet does so itself."""
        if self._rules is None:
            return
        if self.num_samples == 0:
            self._open_arrays()
        else:
            super()._request_index()

    def _build_sample_index(
        self, sequence_length: int, min_sentences_per_sample: int
    ) -> RowReader | AnyArray:
        """Return the samples, found or built now: for subclasses in Megatron Core's manner.

        Parameters
        ----------
        sequence_length
            Tokens that a sample may have, without special tokens.
        min_sentences_per_sample
            Sentences that it has at least.

        Returns
        -------
        sample_index
            Shape (samples, 3), uint32 or uint64: first sentence, end, and tokens at most.
        """
        self._rules = SentenceRules(sequence_length, min_sentences_per_sample)
        self._store = self._arrays = self._own_rows = None
        return self.sample_index

    def _find_arrays(self) -> None:
        """Take the samples: from a store, or computed where the sentences are in memory."""
        if self._own_rows is not None:
            self._arrays = ComputedMapping(self._own_rows)
        elif self.num_samples == 0:
            self._arrays = ComputedMapping(np.empty((0, 3), np.uint32))
        elif isinstance(self.dataset, STORED):
            super()._find_arrays()
        else:
            self._arrays = compute_sentences(self.dataset, self._plan(), self._where)

    def _plan(self) -> MappingPlan:
        """Return the plan of the samples."""
        if self._rules is None:
            raise ConfigError(
                f"{type(self).__name__} must say how much its samples hold, it says nothing; "
                "define _sentence_rules, or call _build_sample_index"
            )
        return plan_sentences(self, self._rules)

    @property
    def _spec(self) -> dict[str, Any]:
        """Everything that decides which sample stands where."""
        return self._plan().spec

    @property
    def _needed(self) -> Needed:
        """The store of the samples, and how it is built."""
        folder = index_folder(self.dataset, type(self).__name__, self.config)
        return needed_sentences(self.dataset, self._plan(), folder)

    def _read_index(self, store: Store) -> MappingArrays:
        """Return the samples of a store."""
        return open_mapping_arrays(store)

    @property
    def sample_index(self) -> RowReader | AnyArray:
        """Shape (samples, 3), uint32 or uint64: first sentence, end, and tokens at most."""
        return self._open_arrays().sample_index

    @sample_index.setter
    def sample_index(self, rows: RowReader | AnyArray) -> None:
        if self._arrays is None or rows is not self._arrays.sample_index:
            self._own_rows = np.asarray(rows)
            self._find_arrays()

    @cached_property
    def token_lookup(self) -> list[int]:
        """Token ids, in the order of the tokenizer's ``inv_vocab``."""
        ids: list[int] = self.config.vocabulary.ids.tolist()
        return ids

    def __len__(self) -> int:
        return len(self._open_arrays().shuffle_index)

    @property
    def _is_plain(self) -> bool:
        """Whether items are what `_make_together` makes, of this class or of one above."""
        home = self._home
        return home is not None and type(self).__getitem__ is home.__getitem__

    @property
    def _masks_plainly(self) -> bool:
        """Whether tokens are masked as the kernel does it, and not in a subclass's own way."""
        return all(getattr(type(self), name) is getattr(self._home, name) for name in _WAYS)

    @property
    def _home(self) -> "type[MaskedWordPieceDataset] | None":
        """The class whose samples `_make_together` makes."""
        classes = (base for base in type(self).__mro__ if "_make_together" in vars(base))
        return next(classes, None)

    def _create_masked_lm_predictions(
        self,
        token_ids: Sequence[int],
        target_sequence_length: int,
        numpy_random_state: np.random.RandomState,
    ) -> Masked:
        """Return the tokens of a sample with some of them masked.

        The samples of a class that leaves this and `_get_token_mask` alone are made by a kernel
        with the same draws.

        Parameters
        ----------
        token_ids
            The tokens.
        target_sequence_length
            Tokens that the sample may have at most.
        numpy_random_state
            What is drawn from.

        Returns
        -------
        masked_token_ids, masked_positions, masked_labels, boundaries, masked_spans
            The tokens after masking; where tokens were masked or moved, and what they were; 1 where
            a word or separator begins, else 0; positions and tokens before of each masked n-gram.

        Raises
        ------
        ConfigError
            If the tokenizer does not know a token.
        """
        return mask_tokens(
            token_ids,
            target_sequence_length,
            numpy_random_state,
            self.config,
            self._get_token_mask,
        )

    @abstractmethod
    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> int | None:
        """Return what stands for a masked token; None keeps it."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("token_lookup", None)
        return state
