"""Megatron Core's names for .bin/.idx pairs."""

import multiprocessing
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.forked import run_fresh, run_python  # noqa: E402
from zindex.datasets import indexed_dataset  # noqa: E402
from zindex.datasets.indexed_dataset import (  # noqa: E402
    DType,
    IndexedDataset,
    IndexedDatasetBuilder,
    ObjectStorageConfig,
    _FileBinReader,
    _IndexReader,
    _IndexWriter,
    _MMapBinReader,
    get_bin_path,
    get_idx_path,
)
from zindex.errors import ConfigError, SourceError, VerificationError  # noqa: E402

DOCUMENTS = [[[1, 2, 3]], [], [[4, 5], [6]], [[]], [[7, 8, 9, 10]]]
SEQUENCES = [sequence for document in DOCUMENTS for sequence in document]
NUM = len(SEQUENCES)


def build(
    prefix: Path | str,
    documents: list[list[list[int]]] = DOCUMENTS,
    dtype: type = np.uint16,
    multimodal: bool = False,
) -> str:
    """Write documents of sequences; the mode of a sequence is its length."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
    for document in documents:
        lengths = [len(sequence) for sequence in document]
        builder.add_document([t for s in document for t in s], lengths, lengths)
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return build(tmp_path / "a")


@pytest.mark.parametrize("mmap", [True, False])
class TestItems:
    @pytest.fixture
    def dataset(self, prefix: str, mmap: bool) -> IndexedDataset:
        return IndexedDataset(prefix, mmap=mmap)

    def test_attributes(self, dataset: IndexedDataset, prefix: str, mmap: bool) -> None:
        assert isinstance(dataset, torch.utils.data.Dataset)
        assert len(dataset) == NUM == 5
        assert dataset.path_prefix == prefix
        assert dataset.multimodal is False
        assert dataset.mmap is mmap
        assert dataset.object_storage_config is None
        assert dataset.sequence_lengths.tolist() == [3, 2, 1, 0, 4]
        assert dataset.sequence_lengths.dtype == np.int32
        assert dataset.document_indices.tolist() == [0, 1, 1, 3, 4, 5]
        assert dataset.document_indices.dtype == np.int64
        index = dataset.index
        assert index.dtype is np.uint16
        assert index.dtype_size == 2
        assert (index.sequence_count, index.document_count, len(index)) == (5, 6, 5)
        assert index.sequence_pointers.tolist() == [0, 6, 10, 12, 12]
        assert index.sequence_modes is None
        assert index[1] == (6, 2, None)
        assert isinstance(dataset.bin_reader, _MMapBinReader if mmap else _FileBinReader)

    def test_by_number(self, dataset: IndexedDataset) -> None:
        for i in range(-NUM, NUM):
            for number in (i, np.int32(i), np.int64(i)):
                assert dataset[number].tolist() == SEQUENCES[i]
                assert dataset[number].dtype == np.uint16
        assert [sequence.tolist() for sequence in dataset] == SEQUENCES

    @pytest.mark.parametrize("number", [5, -6, 2**40])
    def test_no_such_number(self, dataset: IndexedDataset, number: int) -> None:
        for ask in (dataset.__getitem__, dataset.get):
            with pytest.raises(IndexError, match=rf"within \[-5, 5\), but {number} was asked"):
                ask(number)

    def test_other_keys(self, dataset: IndexedDataset) -> None:
        with pytest.raises(TypeError, match="not by str"):
            dataset["1"]
        with pytest.raises(TypeError, match="float"):
            dataset.get(1.0)

    def test_slices(self, dataset: IndexedDataset) -> None:
        for start in (None, *range(-6, 7)):
            for stop in (None, *range(-6, 7)):
                got = dataset[start:stop]
                assert [sequence.tolist() for sequence in got] == SEQUENCES[start:stop]
        assert [sequence.tolist() for sequence in dataset[1:3:1]] == SEQUENCES[1:3]

    @pytest.mark.parametrize("step", [2, -1])
    def test_slices_are_contiguous(self, dataset: IndexedDataset, step: int) -> None:
        with pytest.raises(ValueError, match=rf"the step of slice\(.*\) is {step}"):
            dataset[::step]

    def test_spans_of_a_sequence(self, dataset: IndexedDataset) -> None:
        for i, sequence in enumerate(SEQUENCES):
            for offset in range(len(sequence) + 1):
                assert dataset.get(i, offset).tolist() == sequence[offset:]
                for length in range(len(sequence) - offset + 1):
                    part = dataset.get(np.int64(i), offset=offset, length=length)
                    assert part.tolist() == sequence[offset : offset + length]
        assert dataset.get(-1, 1, 2).tolist() == [8, 9]

    @pytest.mark.parametrize(("offset", "length"), [(0, 4), (4, None), (-1, 2), (1, 3), (0, -1)])
    def test_spans_must_be_within_their_sequence(
        self, dataset: IndexedDataset, offset: int, length: int | None
    ) -> None:
        count = 3 - offset if length is None else length
        message = rf"of 3 tokens, but {count} tokens from offset {offset} of sequence 0"
        with pytest.raises(IndexError, match=message):
            dataset.get(0, offset, length)

    def test_modes(self, tmp_path: Path, mmap: bool) -> None:
        prefix = build(tmp_path / "m", multimodal=True)
        dataset = IndexedDataset(prefix, multimodal=True, mmap=mmap)
        tokens, mode = dataset[2]
        assert (tokens.tolist(), mode) == ([6], 1)
        assert isinstance(mode, np.int8)
        tokens, mode = dataset.get(4, 1, 2)
        assert (tokens.tolist(), mode) == ([8, 9], 4)
        sequences, modes = dataset[1:4]
        assert [sequence.tolist() for sequence in sequences] == SEQUENCES[1:4]
        assert modes.tolist() == [2, 1, 0]
        assert dataset.sequence_modes.tolist() == [3, 2, 1, 0, 4]
        assert IndexedDataset(prefix, mmap=mmap)[2].tolist() == [6]

    def test_pickles_as_arguments(self, tmp_path: Path, mmap: bool) -> None:
        prefix = build(tmp_path / "m", multimodal=True)
        dataset = IndexedDataset(
            prefix, True, mmap, None, None, True, sequences_per_dataset=[5, 6], dtype_code=8
        )
        content = pickle.dumps(dataset)
        assert len(content) < 600
        again = pickle.loads(content)
        assert again.__getstate__() == dataset.__getstate__()
        assert again[0][0].tolist() == [1, 2, 3]
        assert again.sequence_modes.tolist() == [3, 2, 1, 0, 4]

    @pytest.mark.parametrize(
        "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
    )
    def test_children_after_reads_of_the_parent(self, dataset: IndexedDataset, method: str) -> None:
        assert dataset[0].tolist() == [1, 2, 3]
        context = multiprocessing.get_context(method)
        with context.Pool(2, initializer=None) as pool:
            got = pool.map(dataset.__getitem__, list(range(NUM)) * 4, chunksize=1)
        assert [sequence.tolist() for sequence in got] == SEQUENCES * 4
        assert dataset[-1].tolist() == [7, 8, 9, 10]

    def test_no_sequences(self, tmp_path: Path, mmap: bool) -> None:
        dataset = IndexedDataset(build(tmp_path / "e", []), mmap=mmap)
        assert len(dataset) == 0
        assert dataset[:] == []
        with pytest.raises(IndexError, match=r"within \[0, 0\), but 0 was asked"):
            dataset[0]


CUT = """
import os, sys
import numpy as np
from tests.datasets.configs import plain_config
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from zindex.datasets.utils import Split
from zindex.errors import VerificationError

prefix, suffix, kind = sys.argv[1:]
builder = IndexedDatasetBuilder(prefix + ".bin")
for start in range(4000):
    builder.add_document(range(start, start + 30), [30])
builder.finalize(prefix + ".idx")
dataset = IndexedDataset(prefix)
if kind == "samples":
    config = plain_config(sequence_length=64)
    dataset = GPTDataset(dataset, prefix, np.arange(4000), None, Split.train, config)
    dataset[0]
os.truncate(prefix + suffix, 100)
try:
    for item in range(900, 999) if kind == "samples" else (3990,):
        dataset[item]
except VerificationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".bin", "sequences"), (".idx", "sequences"), (".bin", "samples")]
)
def test_a_pair_cut_under_a_reader_is_an_error_and_no_signal(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    done = run_python("-c", CUT, str(tmp_path / "a"), suffix, kind)
    assert done.returncode == 0, done.stderr
    assert f"a{suffix} must hold" in done.stdout


def test_an_idx_replaced_after_it_was_opened_is_refused(prefix: str) -> None:
    dataset = IndexedDataset(prefix)
    assert dataset.sequence_lengths.tolist() == [3, 2, 1, 0, 4]
    build(prefix, DOCUMENTS[::-1])
    assert dataset.sequence_lengths.tolist() == [3, 2, 1, 0, 4]
    with pytest.raises(VerificationError, match="must stay as it was opened"):
        dataset[0]


class TestOpening:
    def test_every_open_checks_the_files(self, prefix: str) -> None:
        with open(prefix + ".idx", "r+b") as stream:
            stream.seek(34)
            stream.write(struct.pack("<i", 4))
        wrong = r"sequence_pointers\[1\] of \S+ is 6;"
        with pytest.raises(SourceError, match=wrong):
            IndexedDataset(prefix, fast_cache_load=False, sequences_per_dataset=(5, 6))
        fast = IndexedDataset(prefix, fast_cache_load=True, sequences_per_dataset=(5, 6))
        with pytest.raises(SourceError, match=wrong):  # opened by its first use
            fast[0]

    def test_exists(self, prefix: str) -> None:
        assert IndexedDataset.exists(prefix)
        os.unlink(prefix + ".bin")
        assert not IndexedDataset.exists(prefix)
        assert not IndexedDataset.exists(prefix + "none")

    def test_paths(self) -> None:
        assert get_idx_path("x/a") == "x/a.idx"
        assert get_bin_path("x/a") == "x/a.bin"

    def test_counts_are_checked(self, prefix: str) -> None:
        assert len(IndexedDataset(prefix, sequences_per_dataset=(5, 6), dtype_code=8)) == 5
        message = r"says \(5, 5\) where \S+a\.idx counts \(5, 6\)"
        with pytest.raises(SourceError, match=message):
            IndexedDataset(prefix, sequences_per_dataset=(5, 5), dtype_code=8)

    def test_the_dtype_code_of_the_file_decides(self, prefix: str) -> None:
        dataset = IndexedDataset(prefix, sequences_per_dataset=(5, 6), dtype_code=4)
        assert dataset.index.dtype is np.uint16
        assert dataset[0].tolist() == [1, 2, 3]

    def test_object_storage_needs_its_settings(self, prefix: str) -> None:
        for path in ("s3://bucket/a", "msc://profile/a"):
            with pytest.raises(ConfigError, match=rf"got None for {path}; pass ObjectStorageCon"):
                IndexedDataset(path)
        for name in ("object_storage_config", "s3_config"):
            with pytest.raises(ConfigError, match=rf"must be named by a URL .* got {prefix}.idx"):
                IndexedDataset(prefix, **{name: ObjectStorageConfig("cache")})

    def test_modes_need_multimodal(self, prefix: str) -> None:
        with pytest.raises(ConfigError, match=rf"but {prefix} was opened with multimodal=False"):
            _ = IndexedDataset(prefix).sequence_modes

    def test_document_indices_can_be_set(self, prefix: str) -> None:
        dataset = IndexedDataset(prefix)
        assert dataset.get_document_indices().tolist() == [0, 1, 1, 3, 4, 5]
        dataset.set_document_indices(np.array([0, 5]))
        assert dataset.document_indices.tolist() == [0, 5]

    def test_index_reader_and_writer_alone(self, tmp_path: Path) -> None:
        with _IndexWriter(str(tmp_path / "w.idx"), np.int32) as writer:
            writer.write([2, 0, 3], iter([1, 2, 3]), [0, 3])
        index = _IndexReader(str(tmp_path / "w.idx"), multimodal=True)
        assert index.dtype is np.int32
        assert [index[i] for i in range(3)] == [(0, 2, 1), (8, 0, 2), (8, 3, 3)]


class TestFileBinReader:
    def test_failed_reads_are_retried(
        self, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        pauses: list[float] = []
        monkeypatch.setattr("time.sleep", pauses.append)
        reader = _FileBinReader(prefix + ".bin")
        assert (reader.num_max_retries, reader.sleep_duration_start) == (3, 10)
        os.rename(prefix + ".bin", prefix + ".away")
        with pytest.raises(FileNotFoundError, match=r"a\.bin"):
            reader.read(np.uint16, 2, 0)
        assert pauses == [10, 20, 40]
        assert "read 3 of 4 of" in caplog.text

        def come_back(pause: float) -> None:
            os.rename(prefix + ".away", prefix + ".bin")

        monkeypatch.setattr("time.sleep", come_back)
        assert reader.read(np.uint16, 2, 0).tolist() == [1, 2]


class TestBuilder:
    @pytest.mark.parametrize(
        "form",
        [
            list,
            np.array,
            torch.tensor,
            lambda values: [str(value) for value in values],
            lambda values: np.array(values, np.int64),
            lambda values: torch.tensor(values, dtype=torch.int32),
        ],
        ids=["list", "array", "tensor", "strings", "int64", "int32 tensor"],
    )
    def test_forms_of_tokens(self, tmp_path: Path, form: Callable[[Any], Any]) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.uint16)
        builder.add_item(form([1, 2, 3]))
        builder.end_document()
        builder.add_document(form([4, 5, 6]), [2, 1])
        builder.finalize(str(tmp_path / "b.idx"))
        dataset = IndexedDataset(str(tmp_path / "b"))
        assert [sequence.tolist() for sequence in dataset] == [[1, 2, 3], [4, 5], [6]]
        assert dataset.document_indices.tolist() == [0, 1, 3]

    def test_no_sequences_make_an_empty_document(self, tmp_path: Path) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"))
        builder.add_document([], [])
        builder.add_document([], [0])
        builder.finalize(str(tmp_path / "b.idx"))
        dataset = IndexedDataset(str(tmp_path / "b"))
        assert dataset.index.dtype is np.int32
        assert dataset.sequence_lengths.tolist() == [0]
        assert dataset.document_indices.tolist() == [0, 0, 1]

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda b: b.add_document([1, 2, 3], [2, 2]), "given, 3, but for .* add up to 4;"),
            (lambda b: b.add_document([1, 2, 3], []), "given, 3, but for .* add up to 0;"),
            (lambda b: b.add_document([1], [2, -1]), "but entry 1 of this block is -1"),
            (lambda b: b.add_document([1, 2], [1, 1], [5]), "2 sequences .* but there are 1;"),
            (lambda b: b.add_document([1], [1], [128]), "entry 0 of this block is 128"),
            (lambda b: b.add_item([70000]), "must fit uint16, but value 70000"),
            (lambda b: b.add_item(torch.tensor([1, -5])), "value -5 at position 1"),
            (lambda b: b.add_documents([[1], [2, 65536]]), "value 65536"),
            (lambda b: b.add_documents([[1]], eod_token=65536), "eod_token.*value 65536"),
            (lambda b: b.add_documents([[1], [2]], [1]), "2 documents .* but there are 1;"),
        ],
    )
    def test_refused_calls_write_nothing(
        self, tmp_path: Path, call: Callable[[IndexedDatasetBuilder], None], message: str
    ) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.uint16, multimodal=True)
        with pytest.raises(SourceError, match=message):
            call(builder)
        builder.add_item([1], mode=-1)
        builder.end_document()
        builder.finalize(str(tmp_path / "b.idx"))
        dataset = IndexedDataset(str(tmp_path / "b"), multimodal=True)
        assert len(dataset) == 1
        assert dataset[0][0].tolist() == [1]
        assert dataset[0][1] == -1

    def test_dtype_without_code(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="not uint64"):
            IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.uint64)
        assert list(tmp_path.iterdir()) == []

    def test_add_index(self, tmp_path: Path, prefix: str) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.uint16)
        builder.add_document([99], [1])
        builder.add_index(prefix)
        builder.add_index(prefix)
        builder.finalize(str(tmp_path / "b.idx"))
        dataset = IndexedDataset(str(tmp_path / "b"))
        assert [sequence.tolist() for sequence in dataset] == [[99], *SEQUENCES, *SEQUENCES]
        assert dataset.document_indices.tolist() == [0, 1, 2, 2, 4, 5, 6, 7, 7, 9, 10, 11]

    def test_add_index_of_another_kind(self, tmp_path: Path, prefix: str) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.int32)
        with pytest.raises(SourceError, match=r"a\.idx has uint16 and \S+b\.bin has int32"):
            builder.add_index(prefix)
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.uint16, multimodal=True)
        with pytest.raises(SourceError, match=r"and so no modes"):
            builder.add_index(prefix)
        builder.finalize(str(tmp_path / "b.idx"))
        assert len(IndexedDataset(str(tmp_path / "b"), multimodal=True)) == 0


class TestAddDocuments:
    @pytest.mark.parametrize("chunk_size", [1, 2, 1_000_000])
    @pytest.mark.parametrize("form", ["lists", "arrays", "strings", "awkward"])
    @pytest.mark.parametrize("eod", [None, 50])
    def test_one_sequence_per_document(
        self, tmp_path: Path, form: str, chunk_size: int, eod: int | None
    ) -> None:
        documents = [[1, 2, 3], [], [4, 5], [], [6]]
        given: Any = documents
        if form == "arrays":
            given = [np.array(document, np.int64) for document in documents]
        elif form == "strings":
            given = [[str(token) for token in document] for document in documents]
        elif form == "awkward":
            given = pytest.importorskip("awkward").Array(documents)
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"), np.uint16, multimodal=True)
        builder.add_documents(given, [1, 2, 3, 4, 5], eod_token=eod, chunk_size=chunk_size)
        builder.add_documents(documents[:1])
        builder.finalize(str(tmp_path / "b.idx"))
        dataset = IndexedDataset(str(tmp_path / "b"), multimodal=True)
        end = [] if eod is None else [eod]
        assert [sequence.tolist() for sequence, _ in dataset] == [
            *([*document, *end] for document in documents),
            [1, 2, 3],
        ]
        assert dataset.sequence_modes.tolist() == [1, 2, 3, 4, 5, 0]
        assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4, 5, 6]

    def test_the_same_bytes_as_one_by_one(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(7)
        documents = [rng.integers(0, 99, n).tolist() for n in rng.integers(1, 9, 50)]
        many = IndexedDatasetBuilder(str(tmp_path / "m.bin"), np.uint16)
        many.add_documents(documents, eod_token=99, chunk_size=7)
        many.finalize(str(tmp_path / "m.idx"))
        single = IndexedDatasetBuilder(str(tmp_path / "s.bin"), np.uint16)
        for document in documents:
            single.add_document([*document, 99], [len(document) + 1])
        single.finalize(str(tmp_path / "s.idx"))
        for suffix in (".bin", ".idx"):
            assert (tmp_path / f"m{suffix}").read_bytes() == (tmp_path / f"s{suffix}").read_bytes()

    def test_no_documents(self, tmp_path: Path) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"))
        builder.add_documents([], eod_token=1)
        builder.finalize(str(tmp_path / "b.idx"))
        assert len(IndexedDataset(str(tmp_path / "b"))) == 0

    def test_chunk_size(self, tmp_path: Path) -> None:
        builder = IndexedDatasetBuilder(str(tmp_path / "b.bin"))
        with pytest.raises(ConfigError, match="a whole number of at least 1, got 0"):
            builder.add_documents([[1]], chunk_size=0)

    def test_awkward_is_needed_only_for_its_arrays(self) -> None:
        script = "import sys, zindex.datasets.indexed_dataset; assert 'awkward' not in sys.modules"
        run_fresh("-c", script, check=True)


def test_names() -> None:
    for name in indexed_dataset.__all__:
        assert hasattr(indexed_dataset, name)
    assert DType.uint16.value == 8


def test_the_same_object_opens_another_pair(tmp_path: Path) -> None:
    dataset = IndexedDataset(build(tmp_path / "first"))
    dataset.initialize(build(tmp_path / "second", [[[4, 5]]]), False, True, None)
    assert len(dataset) == 1
    assert pickle.loads(pickle.dumps(dataset))[0].tolist() == [4, 5]


def test_a_pair_of_known_size_is_opened_on_first_use(write_corpus: Any, tmp_path: Path) -> None:
    prefix = write_corpus([3, 5, 2], name="known")
    hidden = tmp_path / "hidden.idx"
    Path(f"{prefix}.idx").rename(hidden)
    dataset = IndexedDataset(prefix, fast_cache_load=True, sequences_per_dataset=(3, 4))
    assert len(dataset) == 3
    copy = pickle.loads(pickle.dumps(dataset))
    with pytest.raises((SourceError, FileNotFoundError)):
        dataset[0]
    hidden.rename(f"{prefix}.idx")
    expected = IndexedDataset(prefix)
    for opened in (dataset, copy):
        assert len(opened[1]) == 5
        assert opened[1].tolist() == expected[1].tolist()
        assert opened.sequence_lengths.tolist() == [3, 5, 2]
    wrong = IndexedDataset(prefix, fast_cache_load=True, sequences_per_dataset=(2, 4))
    with pytest.raises(SourceError, match="3"):
        wrong[0]
