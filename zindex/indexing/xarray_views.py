"""Open runs, corpora and stores in xarray, with coordinates, units and names.

``xarray.open_dataset(path, engine="zindex")`` finds this module through its entry point.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray
from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, MissingKeyError
from zindex.indexing.lazy_index import open_nodes
from zindex.ingest.corpora.corpus import Corpus, store_corpus
from zindex.ingest.corpora.pairs import open_corpus
from zindex.ingest.length_source import is_store
from zindex.lazy import need
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_store
from zindex.store.rows import RowReader

try:
    import pandas as pd
    import xarray
    from xarray.core import indexing
except ImportError:
    need("xarray", "zindex.open_index", "zindex[xarray]")
    raise

_TOKEN_SPECS = (
    schema.TOKENS,
    schema.SEQUENCE_LENGTH,
    schema.SEQUENCE_OFFSET,
    schema.DOCUMENT_OFFSET,
    schema.SEQUENCE_MODE,
)


def open_index(config: RunConfig | Mapping[str, Any] | str | os.PathLike[str]) -> xarray.DataTree:
    """Open the indices of a run as an ``xarray.DataTree`` of Dask arrays.

    Built indices are read from their stores; others are computed lazily, chunk by chunk. Each chunk
    is a shard of the store. The size of a packed index is known only after packing all documents,
    so unless it is built, this call counts them, on the process's Dask client or in threads.

    Parameters
    ----------
    config
        A ``RunConfig``, its mapping, or the path of a YAML file.

    Returns
    -------
    tree
        ``tree["train/blend"]`` has ``dataset_index`` and ``dataset_sample_index``,
        shape (samples,), of a split. ``tree["train/datasets/web"]`` has ``document_index``,
        ``sample_index`` and ``shuffle_index`` of a dataset. Shapes, dtypes and units are those of
        the stores. Coordinates are positions, except for ``dataset``, which has names.

    Raises
    ------
    PlanError
        If a packed index would have no sample.
    ZindexError
        If a dataset is missing, damaged or too small.
    """
    config = as_config(config)
    nodes = {"/": _label((), {}, {"order": config.order, "seed": config.seed})}
    for node in open_nodes(config):
        nodes[node.path] = _label(*node[1:])
    return xarray.DataTree.from_dict(nodes)


def _label(
    arrays: Iterable[tuple[ArrayLayout, Any]],
    names: Mapping[str, Sequence[str]],
    attributes: Mapping[str, Any],
) -> xarray.Dataset:
    """Build an ``xarray.Dataset`` from numpy arrays, Dask arrays or lazy readers.

    Parameters
    ----------
    arrays
        Arrays with their layouts.
    names
        Coordinate labels of some dimensions; the others get positions, which take no memory.
    attributes
        Attributes of the dataset.
    """
    variables, sizes = {}, dict[str, int]()
    for layout, values in arrays:
        # Stores of earlier versions may reuse a dimension name with different sizes.
        dims = [
            name if sizes.setdefault(name, size) == size else f"{layout.name}_{name}"
            for name, size in zip(layout.dims, layout.shape, strict=True)
        ]
        sizes |= zip(dims, layout.shape, strict=True)
        facts = {"long_name": layout.description, "units": layout.unit}
        encoding = {}
        if isinstance(values, RowReader):
            values = indexing.LazilyIndexedArray(_LazyReader(values))
            encoding["preferred_chunks"] = {dims[0]: layout.shard_length}
        variables[layout.name] = (dims, values, facts, encoding)
    indexes = {
        name: xarray.indexes.PandasIndex(pd.Index(names.get(name, range(size))), name)
        for name, size in sizes.items()
    }
    coordinates = xarray.Coordinates()
    for index in indexes.values():
        coordinates = coordinates.assign(xarray.Coordinates.from_xindex(index))
    return xarray.Dataset(variables, coordinates, dict(attributes))


class _LazyReader(xarray.backends.BackendArray):
    """Adapter from a reader to an xarray backend array."""

    def __init__(self, reader: RowReader) -> None:
        self.reader, self.shape, self.dtype = reader, reader.shape, reader.dtype

    def __getitem__(self, key: Any) -> Any:
        support = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, support, self.reader.__getitem__)


class ZindexEngine(xarray.backends.BackendEntrypoint):
    """Xarray backend that opens pairs, stores and runs lazily, without conversion."""

    description = "Open .bin/.idx pairs, stores and run files of zindex"
    open_dataset_parameters = ("filename_or_obj", "drop_variables")

    def open_dataset(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None
    ) -> xarray.Dataset:
        """Open a ``.bin/.idx`` pair, corpus, index, keyed or record store.

        Parameters
        ----------
        filename_or_obj
            Path or URL of a store, or of a pair: the ``.idx``, the ``.bin`` or their prefix.
        drop_variables
            Names of arrays to omit.

        Raises
        ------
        ZindexError
            If the path does not exist or is damaged.
        """
        path = os.fspath(filename_or_obj)
        if is_store(path):
            store = open_store(path)
            if store.kind == "tokens":
                found = _open_corpus(store_corpus(store))
            else:
                arrays = [(layout, store[name]) for name, layout in store.layouts.items()]
                found = _label(arrays, {}, {"kind": store.kind, "path": path})
        else:
            found = _open_corpus(open_corpus(path.removesuffix(".idx").removesuffix(".bin")))
        return found.drop_vars([] if drop_variables is None else drop_variables)

    def open_datatree(self, filename_or_obj: Any, **settings: Any) -> Any:
        """Open the indices of a run file; see `open_index`."""
        return open_index(filename_or_obj)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether a path belongs to a ``.bin/.idx`` pair."""
        return isinstance(filename_or_obj, str | os.PathLike) and os.fspath(
            filename_or_obj
        ).endswith(".idx")


class _CorpusArray(RowReader):
    """Lazy reader of one array of a corpus."""

    def __init__(self, layout: ArrayLayout, corpus: Corpus) -> None:
        super().__init__(layout)
        self.corpus = corpus

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        out[:] = self.corpus.read(self.layout.name, start, stop)


def _open_corpus(corpus: Corpus) -> xarray.Dataset:
    """Open the arrays of a corpus lazily."""
    arrays = []
    for spec in _TOKEN_SPECS[: None if corpus.has_modes else -1]:
        layout = ArrayLayout.plan(spec, *corpus.shape_of(spec.name), ChunkGrid())
        arrays.append((layout, _CorpusArray(layout, corpus)))
    return _label(arrays, {}, {"kind": "tokens", "path": corpus.prefix})


@xarray.register_dataset_accessor("zindex")  # type: ignore[no-untyped-call]
class DatasetAccessor:
    """Accessor for whole documents, samples and records of a dataset.

    Parameters
    ----------
    dataset
        Dataset opened by ``engine="zindex"``, `xarray.open_zarr` or `zindex.open_index`.
    """

    def __init__(self, dataset: xarray.Dataset) -> None:
        self._dataset = dataset

    def document(self, number: int) -> xarray.DataArray:
        """Return the tokens of a document, with dimension ``token`` and position coordinates."""
        tokens = self._array(schema.TOKENS.name)
        return tokens[slice(*self._bounds([number])[0])]

    def documents(self, numbers: Sequence[int]) -> Any:
        """Return the tokens of several documents as an awkward array of shape (numbers, ragged)."""
        tokens, bounds = self._array(schema.TOKENS.name), self._bounds(numbers)
        parts = [tokens[start:stop].values for start, stop in bounds]
        values = np.concatenate([*parts, tokens[:0].values])
        return need("awkward", "documents()").unflatten(values, [len(part) for part in parts])

    def sample(self, position: int) -> xarray.DataArray:
        """Return the tokens of the sample at a position, with dimension ``token``.

        The dataset must come from `zindex.open_index`, which records its corpus.
        """
        facts, names = self._dataset.attrs, ("document_index", "sample_index", "shuffle_index")
        documents, samples, shuffle = map(self._array, names)
        number = int(shuffle[position])
        (row, first), (last_row, last) = samples[number : number + 2].values.tolist()
        corpus = open_corpus(facts["corpus"])
        parts = []
        for place, document in enumerate(documents[row : last_row + 1].values.tolist(), row):
            start, stop = corpus.read(schema.SEQUENCE_OFFSET.name, document, document + 2).tolist()
            until = start + last + facts["extra_token"] if place == last_row else stop
            begin = start + first if place == row else start
            parts.append(corpus.read(schema.TOKENS.name, begin, until))
        return xarray.DataArray(np.concatenate(parts), dims="token", name="sample")

    def record(self, number: int) -> dict[str, AnyArray]:
        """Return the fields of a record of a keyed or record store."""
        found = {}
        for name in map(str, self._dataset.data_vars):
            field = name.removesuffix("_value")
            if field != name:
                start, stop = self._array(f"{field}_offset")[number : number + 2].values.tolist()
                found[field] = self._array(name)[start:stop].values
        return found

    def _array(self, name: str) -> xarray.DataArray:
        if name not in self._dataset:
            raise MissingKeyError(
                f"the dataset must have {name}, it has {sorted(map(str, self._dataset))}; open a "
                "corpus, an index or a store that has it"
            )
        return self._dataset[name]

    def _bounds(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the half-open token ranges of documents."""
        documents = self._array(schema.DOCUMENT_OFFSET.name)
        sequences = self._array(schema.SEQUENCE_OFFSET.name)
        bounds = []
        for number in numbers:
            if not -len(documents) < number < len(documents) - 1:
                raise IndexError(f"document {number} is none of {len(documents) - 1}")
            place = number % (len(documents) - 1)
            span = documents[place : place + 2].values
            start, stop = (int(sequences[row].values) for row in span.tolist())
            bounds.append((start, stop))
        return bounds


@xarray.register_dataarray_accessor("zindex")  # type: ignore[no-untyped-call]
class ArrayAccessor:
    """Accessor that decodes token arrays.

    Parameters
    ----------
    array
        Shape (tokens,), token ids.
    """

    def __init__(self, array: xarray.DataArray) -> None:
        self._array = array

    def decode(self, tokenizer: Any) -> str:
        """Decode the tokens with a tokenizer that has ``detokenize`` or ``decode``."""
        decode = getattr(tokenizer, "detokenize", None) or getattr(tokenizer, "decode", None)
        if decode is None:
            raise ConfigError(
                f"a tokenizer must have detokenize or decode, got {type(tokenizer).__name__}"
            )
        text: str = decode(self._array.values.tolist())
        return text
