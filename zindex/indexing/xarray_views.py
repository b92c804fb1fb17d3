"""Runs, corpora and stores as xarray shows them: with coordinates, units and names.

``xarray.open_dataset(path, engine="zindex")`` finds this module by its entry point.
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
    """Return the indices of a run as an ``xarray.DataTree`` of Dask arrays.

    What is built is read; the rest is computed, chunk by chunk as it is used. A chunk is the shard
    that a build stores. Sizes of packed indices are known once all documents are packed, so this
    call counts them, on the Dask client of the process or in its threads, unless a build has.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.

    Returns
    -------
    tree
        ``tree["train/blend"]``: ``dataset_index`` and ``dataset_sample_index``, shape (samples,),
        of the blend of a split. ``tree["train/datasets/web"]``: ``document_index``,
        ``sample_index`` and ``shuffle_index`` of a dataset. Shapes, dtypes and units are those of
        the stores; dimensions are labelled by position, and ``dataset`` by name.

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
    """Return an ``xarray.Dataset`` of arrays: numpy's, Dask's or readers, which stay lazy.

    Parameters
    ----------
    arrays
        Each with its layout.
    names
        Labels of some dimensions; those of the others are positions, which take no memory.
    attributes
        Of the dataset.
    """
    variables, sizes = {}, dict[str, int]()
    for layout, values in arrays:
        # Stores of earlier versions have dimensions of one name and several sizes.
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
    """A reader as xarray takes it."""

    def __init__(self, reader: RowReader) -> None:
        self.reader, self.shape, self.dtype = reader, reader.shape, reader.dtype

    def __getitem__(self, key: Any) -> Any:
        support = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, support, self.reader.__getitem__)


class ZindexEngine(xarray.backends.BackendEntrypoint):
    """Opens pairs, stores and runs lazily, without conversion."""

    description = "Open .bin/.idx pairs, stores and run files of zindex"
    open_dataset_parameters = ("filename_or_obj", "drop_variables")

    def open_dataset(
        self, filename_or_obj: Any, *, drop_variables: str | Iterable[str] | None = None
    ) -> xarray.Dataset:
        """Return the arrays of a ``.bin/.idx`` pair, corpus, index, keyed or record store.

        Parameters
        ----------
        filename_or_obj
            Path or URL of a store, or of a pair: the ``.idx``, the ``.bin`` or their prefix.
        drop_variables
            Arrays to leave out.

        Raises
        ------
        ZindexError
            If nothing is there, or it is damaged.
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
        """Return the indices of a run file; see `open_index`."""
        return open_index(filename_or_obj)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether a path is one of a pair."""
        return isinstance(filename_or_obj, str | os.PathLike) and os.fspath(
            filename_or_obj
        ).endswith(".idx")


class _CorpusArray(RowReader):
    """An array of a corpus, read by position."""

    def __init__(self, layout: ArrayLayout, corpus: Corpus) -> None:
        super().__init__(layout)
        self.corpus = corpus

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        out[:] = self.corpus.read(self.layout.name, start, stop)


def _open_corpus(corpus: Corpus) -> xarray.Dataset:
    """Return the arrays of a corpus, lazily."""
    arrays = []
    for spec in _TOKEN_SPECS[: None if corpus.has_modes else -1]:
        layout = ArrayLayout.plan(spec, *corpus.shape_of(spec.name), ChunkGrid())
        arrays.append((layout, _CorpusArray(layout, corpus)))
    return _label(arrays, {}, {"kind": "tokens", "path": corpus.prefix})


@xarray.register_dataset_accessor("zindex")  # type: ignore[no-untyped-call]
class DatasetAccessor:
    """Documents, samples and records of a dataset, read as a whole.

    Parameters
    ----------
    dataset
        What ``engine="zindex"``, `xarray.open_zarr` or `zindex.open_index` opened.
    """

    def __init__(self, dataset: xarray.Dataset) -> None:
        self._dataset = dataset

    def document(self, number: int) -> xarray.DataArray:
        """Return the tokens of a document of a corpus: dimension ``token``, with positions."""
        tokens = self._array(schema.TOKENS.name)
        return tokens[slice(*self._bounds([number])[0])]

    def documents(self, numbers: Sequence[int]) -> Any:
        """Return the tokens of several documents as an awkward array of shape (numbers, ragged)."""
        tokens, bounds = self._array(schema.TOKENS.name), self._bounds(numbers)
        parts = [tokens[start:stop].values for start, stop in bounds]
        values = np.concatenate([*parts, tokens[:0].values])
        return need("awkward", "documents()").unflatten(values, [len(part) for part in parts])

    def sample(self, position: int) -> xarray.DataArray:
        """Return the tokens of a position of an index: dimension ``token``.

        The dataset must be one of `zindex.open_index`, which names its corpus.
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
        """Return the values of a record of a keyed or record store, by field."""
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
        """Return the tokens of documents, half-open."""
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
    """The text of tokens.

    Parameters
    ----------
    array
        Shape (tokens,), token ids.
    """

    def __init__(self, array: xarray.DataArray) -> None:
        self._array = array

    def decode(self, tokenizer: Any) -> str:
        """Return the text of the tokens by a tokenizer with ``detokenize`` or ``decode``."""
        decode = getattr(tokenizer, "detokenize", None) or getattr(tokenizer, "decode", None)
        if decode is None:
            raise ConfigError(
                f"a tokenizer must have detokenize or decode, got {type(tokenizer).__name__}"
            )
        text: str = decode(self._array.values.tolist())
        return text
