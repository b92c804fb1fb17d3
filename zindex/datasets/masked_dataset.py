"""Base class of datasets that mask tokens in runs of sentences.

Megatron Core's sentence mapping selects the sentences of a sample. Masks are drawn from a generator
keyed by seed and position. BERT and T5 have separate modules.
"""

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.sample_dataset import inherits, overrides
from zindex.datasets.text_dataset import TextDataset
from zindex.datasets.utils import current_rank, log_single_rank
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError
from zindex.formats.megatron_cache import MASKED_ARRAYS
from zindex.indexing import sentence_mapping
from zindex.indexing.computed_arrays import range_reader
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.maintenance.cache_checks import check_mapping
from zindex.maintenance.megatron_caches import MegatronCache
from zindex.plan.sentence_mapping import MappingPlan, SentenceFacts
from zindex.samples import lengths
from zindex.samples.batch import Item, resolve_positions
from zindex.samples.lengths import is_stored
from zindex.samples.masking.mask_rules import Masked, Vocabulary, mask_tokens
from zindex.store.rows import RowReader
from zindex.text.tokenizers.base import find_token

logger = logging.getLogger(__name__)

#: Default of a required setting.
MISSING: Any = None
# Methods that subclasses may override; the kernel is then not used.
_WAYS = ("_create_masked_lm_predictions", "_get_token_mask")


# The three splits of a dataset share one digest of its documents.
_facts: "WeakKeyDictionary[Any, SentenceFacts]" = WeakKeyDictionary()


class SentenceRules(NamedTuple):
    """Size of the samples of a dataset."""

    #: Maximal number of tokens, without special ones.
    max_length: int
    #: Minimal number of sentences.
    min_sentences: int


class ComputedMapping(NamedTuple):
    """A sentence mapping in memory, with the same arrays as a stored one."""

    #: Shape (samples, 3), uint32 or uint64: first sentence, end, and maximal number of tokens.
    sample_index: AnyArray
    #: The same array: the samples are already shuffled.
    sentence_index: AnyArray
    #: Shape (samples,), int64: each position itself.
    shuffle_index: RowReader | Int64Array


@dataclass
class MaskedWordPieceDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of datasets that mask tokens, by Megatron Core's names; all are required.

    Raises
    ------
    ConfigError
        If a setting is missing, out of range, or excludes another.
    """

    #: Share of the tokens that are masked, above 0 and below 1.
    masking_probability: float = MISSING

    #: Share of samples with a shorter target length, 0 to 1.
    short_sequence_probability: float = MISSING

    #: Maximal number of words that are masked together.
    masking_max_ngram: int = MISSING

    #: Whether whole words are masked, or single pieces.
    masking_do_full_word: bool = MISSING

    #: Whether as many further tokens are permuted.
    masking_do_permutation: bool = MISSING

    #: Whether longer n-grams are more likely than shorter ones, or less likely.
    masking_use_longer_ngrams: bool = MISSING

    #: Whether lengths of n-grams are drawn as in SpanBERT (arXiv:1907.10529, section 3.1).
    masking_use_geometric_distribution: bool = MISSING

    #: Not in Megatron: directory of each node for copies of ``.idx`` files in object storage, as
    #: for GPT datasets.
    object_storage_cache_path: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        self._require("masked", "tokenizer", *_masking_settings())
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
            text = "masking_use_longer_ngrams has no effect: the lengths of n-grams are geometric"
            log_single_rank(logger, logging.WARNING, text)

    def _check_kind(self, kind: str, num_special: int, tokens: tuple[str, ...]) -> None:
        """Raise if samples have no room for two tokens, or the tokenizer lacks special tokens."""
        if self.sequence_length < num_special + 2:
            raise ConfigError(
                f"sequence_length of {kind} datasets must be at least {num_special + 2}, for "
                f"{num_special} special tokens and two others, got {self.sequence_length}; raise it"
            )
        missing = [name for name in tokens if find_token(self.tokenizer, name) is None]
        if missing:
            raise ConfigError(
                f"the tokenizer of {kind} datasets must have {', '.join(tokens)}, "
                f"{type(self.tokenizer).__name__} has no {', '.join(missing)}; take a WordPiece "
                "tokenizer with these special tokens"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The token ids of the tokenizer; all datasets of a configuration share it."""
        return Vocabulary.of(self.tokenizer, is_sorted=self._sorts_tokens)

    @property
    def _sorts_tokens(self) -> bool:
        """Whether random tokens are drawn from sorted ids."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "vocabulary"}


def _masking_settings() -> list[str]:
    """Return the names of the required settings of masking, which identify a dataset."""
    own = fields(MaskedWordPieceDatasetConfig)[len(fields(BlendedMegatronDatasetConfig)) :]
    return [item.name for item in own if not item.kw_only]


class MaskedWordPieceDataset(TextDataset[sentence_mapping.MappingArrays | ComputedMapping]):
    """A split of documents as samples of sentences with masked tokens.

    The documents are divided among the splits; sentences are the sequences of the dataset. The
    tokenizer is a WordPiece one: pieces that begin with ``##`` belong to the word before them.

    Draws are keyed by ``random_seed`` and the position of the sample, so they do not depend on
    batches, workers or the order of reads. With ``order="megatron"`` samples equal Megatron Core's,
    except that permutations are drawn from the sample's generator instead of numpy's global one. As
    there, a negative position reads the sample from the end but keys its draws as it is.

    A subclass defines `_sentence_rules`, or calls `_build_sample_index`. Samples with a token
    unknown to the tokenizer raise ConfigError.

    Parameters
    ----------
    indexed_dataset
        The low-level dataset.
    dataset_path
        Its path, as the user wrote it: part of Megatron's cache key.
    indexed_indices
        The documents of the split: consecutive numbers, as an array or a range.
    num_samples
        Minimal number of samples, over as many epochs as needed; None means one epoch.
    index_split
        The split.
    config
        The configuration.

    Raises
    ------
    PlanError
        If the documents are not consecutive, or give no samples.
    NotReadyError
        If another rank has not built the index in time.
    """

    config: MaskedWordPieceDatasetConfig

    _read_index = staticmethod(sentence_mapping.MappingArrays.open)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Return the number of documents: masked datasets are split by documents."""
        if isinstance(low_level_dataset, ZarrIndexedDataset):
            return int(low_level_dataset.store.spec["num_documents"])
        return len(low_level_dataset.document_indices) - 1

    @staticmethod
    def _key_config_attributes() -> list[str]:
        """Return the settings that are part of Megatron's cache key."""
        # Explicit class instead of super(), because Megatron Core's callers use static methods.
        return [*MegatronDataset._key_config_attributes(), *_masking_settings()]

    def _sentence_rules(self) -> SentenceRules | None:
        """Return the size of samples; None if the subclass calls `_build_sample_index`."""
        return None

    def _prepare(self) -> None:
        """Set the size of samples."""
        super()._prepare()
        self._refuse_follow()
        self._rules = self._sentence_rules()
        self._own_rows: AnyArray | None = None

    def _request_index(self) -> None:
        """Request the mapping; a subclass without rules calls `_build_sample_index` later."""
        if self._rules is None:
            self._rank, self._store, self._arrays, self._cache = current_rank(), None, None, None
        else:
            super()._request_index()

    def _build_sample_index(
        self, sequence_length: int, min_sentences_per_sample: int
    ) -> RowReader | AnyArray:
        """Return the samples, opened or built now; Megatron Core's subclasses call this.

        Parameters
        ----------
        sequence_length
            Maximal tokens of a sample, without special tokens.
        min_sentences_per_sample
            Minimal number of its sentences.

        Returns
        -------
        sample_index
            Shape (samples, 3), uint32 or uint64: first sentence, end, and maximal number of tokens.
        """
        self._rules = SentenceRules(sequence_length, min_sentences_per_sample)
        self._store = self._arrays = self._cache = self._own_rows = self._text = None
        return self._open_index().sample_index

    def _make_batch(self, positions: Sequence[int | None]) -> Sequence[Item]:
        """Return the samples of a batch; positions as given key draws in Megatron's order."""
        found = resolve_positions(positions, len(self), self._where)
        keys = np.array([0 if position is None else int(position) for position in positions])
        if self.config.order != "megatron" or (keys >= 0).all():
            return self._read_batch(*found)
        return self._make_together(replace(self._request(*found), keys=keys))

    @property
    def _makes_arrays(self) -> bool:
        """Whether a subclass of one with rules overrides `_build_sample_index`."""
        has_rules = type(self)._sentence_rules is not MaskedWordPieceDataset._sentence_rules
        return has_rules and overrides(type(self), MaskedWordPieceDataset, ("_build_sample_index",))

    def _make_arrays(self) -> ComputedMapping:
        """Return the samples that `_build_sample_index` of a subclass returns."""
        assert self._rules is not None
        found = self._build_sample_index(self._rules.max_length, self._rules.min_sentences)
        rows = np.asarray(found[:])
        return ComputedMapping(rows, rows, np.arange(len(rows)))

    def _find_cache(self) -> MegatronCache | Literal[False]:
        """Return Megatron Core's cache, if it is sound."""
        if self.config.order != "megatron" or not self._is_stored or self._rules is None:
            return False
        cache = self._name_cache(self._index_folder, "", MASKED_ARRAYS)
        if not cache.exists:
            return False
        plan, source = self._plan(), self._source

        def check(arrays: list[AnyArray]) -> None:
            check_mapping(plan, arrays[0], source)

        store = plan.store_plan(self._index_folder)
        return cache.is_sound(self.unique_description, store, check) and cache

    def _read_cache(self, arrays: list[AnyArray]) -> ComputedMapping:
        """Return the samples of a cache; they are already shuffled."""
        (rows,) = arrays
        return ComputedMapping(rows, rows, range_reader(len(rows)))

    @property
    def _is_stored(self) -> bool:
        """Whether the samples are stored; those of sentences in memory are computed."""
        return self._own_rows is None and self.num_samples != 0 and super()._is_stored

    def _compute_arrays(self) -> ComputedMapping:
        """Return the samples of sentences in memory, or those that were set."""
        rows = self._own_rows
        if rows is None and self.num_samples == 0:
            rows = np.empty((0, 3), np.uint32)
        elif rows is None:
            plan, dataset = self._plan(), self.dataset
            bounds = np.asarray(dataset.document_indices)[plan.start : plan.stop + 1]
            own = dataset.sequence_lengths[plan.first_sentence : plan.stop_sentence]
            rows = sentence_mapping.compute_mapping(plan, bounds, own)
            if not len(rows):
                raise sentence_mapping.nothing_to_map(plan, str(self.dataset_path))
        return ComputedMapping(rows, rows, np.arange(len(rows)))

    def _plan(self) -> MappingPlan:
        """Return the plan of the samples."""
        if self._rules is None:
            raise ConfigError(
                f"{type(self).__name__} must say how much its samples hold, it says nothing; "
                "define _sentence_rules, or call _build_sample_index"
            )
        config, dataset, span = self.config, self.dataset, self._span
        settings = config.plan_settings(self.index_split) | {
            "max_sequence_length": self._rules.max_length,
            "min_num_sentences": self._rules.min_sentences,
            "short_sequence_probability": config.short_sequence_probability,
            "num_requested": self.num_samples or None,
            "order": config.order,
        }
        if is_stored(dataset):
            if dataset not in _facts:
                _facts[dataset] = sentence_mapping.stored_facts(self._source)
            return sentence_mapping.plan_mapping(
                self._source, span, facts=_facts[dataset], **settings
            )
        bounds = dataset.document_indices
        return MappingPlan(
            source=sentence_mapping.memory_facts(
                lengths.memory_facts(dataset.sequence_lengths), bounds
            ),
            start=span.start,
            stop=span.stop,
            first_sentence=int(bounds[span.start]),
            stop_sentence=int(bounds[span.stop]),
            **settings,
        )

    @property
    def _source(self) -> SentenceSource:
        """The input of a build of the samples."""
        return SentenceSource(super()._source)

    @property
    def sample_index(self) -> RowReader | AnyArray:
        """Shape (samples, 3), uint32 or uint64: first sentence, end, and maximal length."""
        return self._open_arrays().sample_index

    @sample_index.setter
    def sample_index(self, rows: RowReader | AnyArray) -> None:
        if self._arrays is None or rows is not self._arrays.sample_index:
            self._own_rows, self._arrays, self._text = np.asarray(rows), None, None
            self._cache = False

    @cached_property
    def token_lookup(self) -> list[int]:
        """Token ids, of which random tokens are drawn by number."""
        ids: list[int] = self.config.vocabulary.ids.tolist()
        return ids

    def __len__(self) -> int:
        return len(self._open_arrays().shuffle_index)

    @property
    def _masks_plainly(self) -> bool:
        """Whether tokens are masked by the kernel's rules, not overridden by a subclass."""
        kind: Any = type(self)
        return inherits(kind, _WAYS)

    def _create_masked_lm_predictions(
        self,
        token_ids: Sequence[int],
        target_sequence_length: int,
        numpy_random_state: np.random.RandomState,
    ) -> Masked:
        """Return the tokens of a sample with some of them masked.

        Classes that override neither this nor `_get_token_mask` use a kernel with the same draws.

        Parameters
        ----------
        token_ids
            The tokens.
        target_sequence_length
            Maximal tokens of the sample.
        numpy_random_state
            Source of all draws.

        Returns
        -------
        masked_token_ids, masked_positions, masked_labels, boundaries, masked_spans
            The tokens after masking; positions of masked or moved tokens, and their tokens before;
            1 where a word or separator begins, else 0; positions and tokens of each masked n-gram.

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
        """Return the replacement of a masked token; None leaves it unchanged."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "token_lookup"}
