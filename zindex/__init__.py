"""The data index layer of LLM pre-training.

``convert`` turns tokenised ``.bin/.idx`` corpora into Zarr stores, ``build`` computes every index
that pre-training needs on Dask, ``loader`` yields each rank its batches, and ``zindex.datasets``
has the underlying torch datasets. Names are loaded lazily: ``import zindex`` imports neither torch
nor distributed nor numba.
"""

from typing import TYPE_CHECKING

from zindex.lazy import lazy_names
from zindex.version import VERSION

if TYPE_CHECKING:
    from zindex.cluster.begin_build import begin_build as begin_build
    from zindex.config import RunConfig as RunConfig
    from zindex.config import load_config as load_config
    from zindex.datasets.run_datasets import open_run as open_run
    from zindex.indexing.build_graph import plan_graph as plan_graph
    from zindex.indexing.export_cache import export_cache as export_cache
    from zindex.indexing.run import build as build
    from zindex.indexing.xarray_views import open_index as open_index
    from zindex.ingest.convert import convert as convert
    from zindex.ingest.corpora.pairs import count_sequences as count_sequences
    from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus as tokenize_corpus
    from zindex.ingest.dedup.dedup import dedup as dedup
    from zindex.ingest.keyed.convert_keyed import convert_keyed as convert_keyed
    from zindex.ingest.keyed.export_keyed import export_keyed as export_keyed
    from zindex.ingest.keyed.tokenize import tokenize as tokenize
    from zindex.ingest.merge import export as export
    from zindex.ingest.merge import merge as merge
    from zindex.ingest.records.import_records import import_records as import_records
    from zindex.inspection.answers.diff import diff as diff
    from zindex.inspection.answers.find import find as find
    from zindex.inspection.answers.forget import forget as forget
    from zindex.inspection.answers.info import info as info
    from zindex.inspection.answers.info import ls as ls
    from zindex.inspection.answers.show import show as show
    from zindex.inspection.answers.trace import trace as trace
    from zindex.kernels.warm import warm as warm
    from zindex.loading.loader import loader as loader
    from zindex.maintenance.edits.edit import edit as edit
    from zindex.maintenance.edits.verify_journal import verify_journal as verify_journal
    from zindex.maintenance.repairs.repair import repair as repair
    from zindex.reporting.report import report as report
    from zindex.store.open import open_store as open_store
    from zindex.store.verify import verify_store as verify_store
    from zindex.streaming.loader import stream_loader as stream_loader

__version__ = VERSION
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
