"""Which sentences make the samples of a split: planned, found in a store, or computed here."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from zindex.building.mapping_arrays import (
    compute_mapping,
    memory_facts,
    needed_mapping,
    plan_mapping,
    stored_facts,
)
from zindex.building.mapping_tasks import SentenceSource
from zindex.building.on_demand import Needed
from zindex.datasets import gpt_index
from zindex.datasets.gpt_index import STORED, stored_source
from zindex.errors import PlanError
from zindex.plan.sentence_mapping import MappingPlan, SentenceFacts

if TYPE_CHECKING:
    from zindex.datasets.masked_dataset import MaskedWordPieceDataset

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

# The three splits of a dataset share one digest of its documents.
_facts: "WeakKeyDictionary[Any, SentenceFacts]" = WeakKeyDictionary()


class SentenceRules(NamedTuple):
    """How much a sample holds."""

    #: Tokens, without special ones.
    max_length: int
    #: Sentences at least.
    min_sentences: int


@dataclass(frozen=True)
class ComputedMapping:
    """A sentence mapping in memory, with the arrays of one that is stored."""

    #: Shape (samples, 3), uint32 or uint64: first sentence, end, and tokens at most.
    sample_index: AnyArray

    @property
    def sentence_index(self) -> AnyArray:
        """The samples, which are shuffled already."""
        return self.sample_index

    @cached_property
    def shuffle_index(self) -> Int64Array:
        """Shape (samples,), int64: each position itself."""
        return np.arange(len(self.sample_index))


def plan_sentences(dataset: "MaskedWordPieceDataset", rules: SentenceRules) -> MappingPlan:
    """Return the plan of a dataset's samples.

    Raises
    ------
    ConfigError, PlanError
        If documents or settings are not what a mapping can be made of.
    """
    config, low_level, span = dataset.config, dataset.dataset, dataset._span
    settings: dict[str, Any] = {
        "split": dataset.index_split.name,
        "max_sequence_length": rules.max_length,
        "min_num_sentences": rules.min_sentences,
        "short_sequence_probability": config.short_sequence_probability,
        "seed": config.random_seed,
        "num_requested": dataset.num_samples or None,
        "order": config.order,
        "stored": config.store,
        "grid": config.grid,
    }
    if isinstance(low_level, STORED):
        source = SentenceSource(stored_source(low_level))
        facts = _facts.get(low_level)
        if facts is None:
            facts = _facts[low_level] = stored_facts(source)
        return plan_mapping(source, span, facts=facts, **settings)
    bounds = low_level.document_indices
    return MappingPlan(
        source=memory_facts(gpt_index.memory_facts(low_level.sequence_lengths), bounds),
        start=span.start,
        stop=span.stop,
        first_sentence=int(bounds[span.start]),
        stop_sentence=int(bounds[span.stop]),
        **settings,
    )


def needed_sentences(low_level_dataset: Any, plan: MappingPlan, folder: str) -> Needed:
    """Return the need for the samples of a dataset on disk."""
    return needed_mapping(plan, SentenceSource(stored_source(low_level_dataset)), folder)


def compute_sentences(low_level_dataset: Any, plan: MappingPlan, where: str) -> ComputedMapping:
    """Return the samples of a dataset in memory.

    Raises
    ------
    PlanError
        If no document gives a sample.
    """
    bounds = np.asarray(low_level_dataset.document_indices)[plan.start : plan.stop + 1]
    lengths = low_level_dataset.sequence_lengths[plan.first_sentence : plan.stop_sentence]
    rows = compute_mapping(plan, bounds, lengths)
    if not len(rows):
        raise PlanError(
            f"{where} must hold documents of at least {plan.min_num_sentences} sentences, none too "
            f"long, its {plan.num_documents:,} give no sample; split documents into sentences, or "
            "give it a larger share"
        )
    return ComputedMapping(rows)
