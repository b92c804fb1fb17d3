"""Any Zarr array by position: equal to what zarr-python gives, or an error that says why."""

import json
import pickle
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.damage import flipped
from tests.killing import exit_code, fork
from zindex.errors import ConfigError, StoreError, StoreNotFoundError, VerificationError
from zindex.store.reader import LocalReader, forget_all_files
from zindex.store.rows import RowReader
from zindex.store.zarr_array import ZarrRows, open_array

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPRESSORS = {
    "none": None,
    "zstd": zarr.codecs.ZstdCodec(level=1),
    "blosc": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle", typesize=4),
    "gzip": zarr.codecs.GzipCodec(level=1),
}


def write_array(path: Path, values: Any, **options: Any) -> Any:
    """Write an array with zarr-python, chunks of fill values too."""
    array = zarr.create_array(
        path, shape=values.shape, dtype=values.dtype, config={"write_empty_chunks": True}, **options
    )
    array[...] = values
    return array


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """Return values and how zarr-python is to write them."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES + FLOATS)))
    length = draw(st.integers(0, 120))
    columns = draw(st.sampled_from([(), (), (1,), (2,), (3,), (2, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.integers(0, 100, (length, *columns)).astype(dtype)
    chunk = draw(st.integers(1, 20))
    inner = list(columns)
    if columns and draw(st.integers(0, 9)) == 0:
        inner[0] = 1
    options: dict[str, Any] = {"chunks": (chunk, *inner)}
    steps = []
    compressor = COMPRESSORS[draw(st.sampled_from(list(COMPRESSORS)))]
    if compressor is not None:
        steps.append(compressor)
    if draw(st.booleans()):
        steps.append(zarr.codecs.Crc32cCodec())
    options["compressors"] = steps
    if draw(st.integers(0, 9)) == 0:
        options["serializer"] = zarr.codecs.BytesCodec(endian="big")
    separator = draw(st.sampled_from(["/", "."]))
    options["chunk_key_encoding"] = {
        "name": draw(st.sampled_from(["default", "v2"])),
        "separator": separator,
    }
    if draw(st.booleans()):
        index_codecs: list[Any] = [zarr.codecs.BytesCodec()]
        if draw(st.booleans()):
            index_codecs.append(zarr.codecs.Crc32cCodec())
        shape = (chunk * draw(st.integers(1, 5)), *columns)
        options["shards"] = {
            "shape": shape,
            "index_location": draw(st.sampled_from(["start", "end"])),
        }
        options["index_codecs"] = index_codecs
    return values, options


def make_array(path: Path, values: Any, options: dict[str, Any]) -> Any:
    """Write an array, whose index codecs zarr-python's own function cannot choose."""
    index_codecs = options.pop("index_codecs", None)
    array = write_array(path, values, **options)
    if index_codecs is None:
        return array
    text = json.loads((path / "zarr.json").read_text())
    text["codecs"][0]["configuration"]["index_codecs"] = [step.to_dict() for step in index_codecs]
    shutil.rmtree(path)
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(text))
    array = zarr.open_array(path).with_config({"write_empty_chunks": True, "order": "C"})
    array[...] = values
    return zarr.open_array(path, mode="r")


def check_spans(reader: RowReader, expected: Any, data: st.DataObject) -> None:
    """Compare random spans, in a fresh array and in their places of a wider one."""
    length = len(expected)
    bounds = data.draw(
        st.lists(st.tuples(st.integers(0, length), st.integers(0, length)), max_size=6)
    )
    starts = np.array([min(pair) for pair in bounds], np.int64)
    stops = np.array([max(pair) for pair in bounds], np.int64)
    parts = [expected[start:stop] for start, stop in zip(starts, stops, strict=True)]
    joined = np.concatenate([expected[:0], *parts])
    got = reader.read_spans(starts, stops)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, joined)
    integer = expected.dtype.kind in "iu" and expected.dtype != np.uint64
    if expected.ndim == 1 and integer:
        lengths = stops - starts
        places = np.cumsum(lengths + 1) - lengths
        out = np.full(int(lengths.sum()) + len(bounds) + 1, -7, np.int64)
        assert reader.read_spans(starts, stops, out, places) is out
        wanted = np.full_like(out, -7)
        for place, part in zip(places, parts, strict=True):
            wanted[place : place + len(part)] = part
        np.testing.assert_array_equal(out, wanted)


@given(array=arrays(), data=st.data(), verify=st.sampled_from(["first", "always", "never"]))
@settings(max_examples=150)
def test_every_way_to_read_equals_zarr(array: Any, data: st.DataObject, verify: Any) -> None:
    values, options = array
    patch = pytest.MonkeyPatch()
    few, before = data.draw(st.sampled_from([(0, 0), (2, 10**9)]))
    patch.setattr("zindex.store.reader.FEW_SPANS", few)
    patch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", before)
    with tempfile.TemporaryDirectory() as folder, patch.context():
        path = Path(folder) / "array"
        expected = make_array(path, values, options)[...]
        np.testing.assert_array_equal(expected, values)
        reader = open_array(path, verify=verify)
        assert (reader.shape, reader.dtype) == (values.shape, values.dtype)
        assert (len(reader), reader.nbytes) == (len(values), values.nbytes)
        for _ in range(3):
            check_spans(reader, values, data)
            start = data.draw(st.integers(0, len(values)))
            stop = data.draw(st.integers(start, len(values)))
            np.testing.assert_array_equal(reader.read(start, stop), values[start:stop])
            out = np.empty_like(values[start:stop])
            np.testing.assert_array_equal(reader.read(start, stop, out), values[start:stop])
        np.testing.assert_array_equal(reader, values)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(reader)), values)
    patch.undo()


def values_of(length: int, *columns: int, dtype: str = "int32") -> Any:
    return np.arange(length * int(np.prod(columns))).reshape(length, *columns).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "options", "kind"),
    [
        ((40,), {"chunks": (5,), "compressors": None}, LocalReader),
        ((40,), {"chunks": (5,), "shards": (20,)}, LocalReader),
        ((40, 2), {"chunks": (5, 2), "shards": (20, 2), "compressors": None}, LocalReader),
        ((40, 2), {"chunks": (5, 1), "compressors": None}, ZarrRows),
        ((40, 2, 2), {"chunks": (5, 2, 2)}, ZarrRows),
        ((40,), {"chunks": (5,), "serializer": zarr.codecs.BytesCodec(endian="big")}, ZarrRows),
        ((40,), {"chunks": (5,), "zarr_format": 2}, ZarrRows),
        ((40, 4), {"chunks": (5, 2), "shards": (20, 4)}, ZarrRows),
    ],
    ids=repr,
)
def test_missing_files_and_chunks_are_errors(
    tmp_path: Path, shape: Any, options: dict[str, Any], kind: type
) -> None:
    """Zarr would give fill values for each of these."""
    values = values_of(*shape) + 1
    write_array(tmp_path / "array", values, **options)
    reader = open_array(tmp_path / "array")
    assert type(reader) is kind
    np.testing.assert_array_equal(reader, values)
    files = [path for path in sorted((tmp_path / "array").rglob("*")) if path.is_file()]
    chosen = next(path for path in files if path.name[0] in "0123456789c")
    content = chosen.read_bytes()
    chosen.unlink()
    forget_all_files()
    with pytest.raises(VerificationError, match=f"file {re.escape(str(chosen))} is missing"):
        np.asarray(open_array(tmp_path / "array"))
    np.testing.assert_array_equal(open_array(tmp_path / "array")[20:], values[20:])
    if "shards" in options:
        array = zarr.create_array(
            tmp_path / "array", shape=shape, dtype="int32", overwrite=True, **options
        )
        array[5:] = values[5:]
        with pytest.raises(VerificationError, match=r"(chunk 0 of .* is missing|lacks a chunk)"):
            open_array(tmp_path / "array").read(0, 1)
        np.testing.assert_array_equal(open_array(tmp_path / "array").read(20, 40), values[20:])
        if kind is LocalReader:
            np.testing.assert_array_equal(open_array(tmp_path / "array").read(5, 40), values[5:])
    assert content


@pytest.mark.parametrize("compressor", list(COMPRESSORS))
def test_damage_is_an_error_where_there_is_a_checksum(tmp_path: Path, compressor: str) -> None:
    steps = [COMPRESSORS[compressor], zarr.codecs.Crc32cCodec()]
    write_array(
        tmp_path / "array",
        values_of(20),
        chunks=(5,),
        compressors=[step for step in steps if step is not None],
    )
    file = tmp_path / "array" / "c" / "1"
    content = file.read_bytes()
    for position in range(len(content)):
        file.write_bytes(flipped(content, position, 1 << position % 8))
        for verify in ("first", "always"):
            forget_all_files()
            reader = open_array(tmp_path / "array", verify=verify)
            np.testing.assert_array_equal(reader[:5], np.arange(5))
            with pytest.raises(VerificationError, match=r"chunk 0 of .*/c/1 fails its checksum"):
                reader.read(6, 7)
    for nbytes in range(len(content)):
        file.write_bytes(content[:nbytes])
        with pytest.raises(VerificationError, match=re.escape(str(file))):
            open_array(tmp_path / "array").read(6, 7)


@pytest.mark.parametrize("compressor", ["zstd", "blosc", "gzip"])
def test_a_chunk_that_would_become_larger_is_refused_before_it_is_decoded(
    tmp_path: Path, compressor: str
) -> None:
    """A bomb: a hundred million zeros in a chunk of five."""
    for name, length in (("small", 5), ("large", 10**8)):
        write_array(
            tmp_path / name,
            np.zeros(length, np.int8),
            chunks=(length,),
            compressors=[COMPRESSORS[compressor]],
        )
    shutil.copy(tmp_path / "large" / "c" / "0", tmp_path / "small" / "c" / "0")
    with pytest.raises(VerificationError, match=f"must hold 5 bytes of {compressor}"):
        open_array(tmp_path / "small").read(0, 5)


def test_choices_of_verify(tmp_path: Path) -> None:
    write_array(
        tmp_path / "array", values_of(20), chunks=(20,), compressors=[zarr.codecs.Crc32cCodec()]
    )
    first, always, never = (
        open_array(tmp_path / "array", verify=verify) for verify in ("first", "always", "never")
    )
    assert first[3] == always[3] == never[3] == 3
    file = tmp_path / "array" / "c" / "0"
    with file.open("r+b") as stream:
        stream.seek(12)
        stream.write(b"\7")
    assert first[3] == never[3] == 7
    with pytest.raises(VerificationError, match="fails its checksum"):
        always.read(3, 4)
    forget_all_files()
    assert never[3] == 7
    with pytest.raises(VerificationError, match="fails its checksum"):
        first.read(3, 4)
    message = "verify must be one of first, always, never, got 'sometimes'"
    with pytest.raises(ConfigError, match=message):
        open_array(tmp_path / "array", verify="sometimes")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("compressor", list(COMPRESSORS))
@pytest.mark.parametrize("columns", [(), (2, 2)])
def test_a_forked_child_reads_too(
    tmp_path: Path, compressor: str, columns: tuple[int, ...]
) -> None:
    """Also where a codec or zarr-python has started threads, which the child does not have."""
    values = values_of(3000, *columns)
    options = {"chunks": (500, *columns), "compressors": COMPRESSORS[compressor]}
    write_array(tmp_path / "array", values, **options)
    reader = open_array(tmp_path / "array")
    np.testing.assert_array_equal(reader, values)

    def read() -> None:
        np.testing.assert_array_equal(reader, values)
        np.testing.assert_array_equal(reader[7:2000], values[7:2000])

    children = [fork(read) for _ in range(3)]
    assert [exit_code(child) for child in children] == [0] * 3


# --- metadata -------------------------------------------------------------------------------


def set_at(fields: Any, path: str, value: Any) -> None:
    """Set the value at a dotted path."""
    *steps, last = path.split(".")
    for step in steps:
        fields = fields[int(step) if step.isdigit() else step]
    fields[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("zarr_format", 2, "must describe an array of Zarr format 3, got format 2"),
        ("node_type", "group", "must describe an array of Zarr format 3, got format 3 and 'group'"),
        ("shape", [2**62], r"must have fewer than 2\*\*62 bytes of values"),
        ("shape", [2**70], "must have a shape of whole numbers of at least 0"),
        ("shape", [-1], "must have a shape of whole numbers of at least 0"),
        ("shape", [True], "must have a shape of whole numbers of at least 0"),
        ("shape", [4.5], "must have a shape of whole numbers of at least 0"),
        ("shape", None, "must have a shape of whole numbers of at least 0"),
        ("shape", [], "must have 1 to 32 dimensions, got 0"),
        ("shape", [1] * 33, "must have 1 to 32 dimensions, got 33"),
        ("shape", [2**58], "must have at most 1,073,741,824 chunks"),
        ("shape", [20, 1], "must have chunks of 2 dimensions"),
        ("data_type", "complex64", "must have a data type of .*, got complex64"),
        ("data_type", {"name": "int32"}, "must have a data type of"),
        ("data_type", "object", "must have a data type of"),
        ("chunk_grid.name", "rectangular", "must have a regular chunk grid"),
        ("chunk_grid.configuration", 3, "must have a regular chunk grid"),
        ("chunk_grid.configuration.chunk_shape", [0], "must have a chunk shape in chunk_grid of"),
        ("chunk_grid.configuration.chunk_shape", [2**40], "at most .* in a shard, got 2748"),
        ("chunk_grid.configuration.chunk_shape", [9], r"shards that are multiples of \[4\]"),
        ("codecs", [], "must have a list of codecs"),
        ("codecs", {}, "must have a list of codecs"),
        ("codecs", ["zig"], "cannot be opened by zarr-python"),
        ("codecs.0.configuration", None, "must have a chunk shape in sharding_indexed of"),
        ("codecs.0.configuration.chunk_shape", [0], "chunk shape in sharding_indexed of whole"),
        ("codecs.0.configuration.codecs", 4, "must list the codecs of inner chunks"),
        ("storage_transformers", [{"name": "x"}], "must have no storage transformers"),
        ("surprise", {"name": "x"}, "no extension that must be understood, got surprise"),
    ],
)
def test_metadata_that_no_array_can_have(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    write_array(tmp_path / "array", values_of(20), chunks=(4,), shards=(8,))
    file = tmp_path / "array" / "zarr.json"
    fields = json.loads(file.read_text())
    set_at(fields, path, value)
    file.write_text(json.dumps(fields))
    with pytest.raises(StoreError, match=message) as caught:
        open_array(tmp_path / "array")
    assert str(tmp_path / "array") in str(caught.value)


def test_large_chunks_are_read_in_parts_or_refused(tmp_path: Path) -> None:
    write_array(tmp_path / "array", values_of(20), chunks=(20,), compressors=None)
    file = tmp_path / "array" / "zarr.json"
    fields = json.loads(file.read_text())
    fields["shape"] = fields["chunk_grid"]["configuration"]["chunk_shape"] = [2**40]
    file.write_text(json.dumps(fields))
    with pytest.raises(VerificationError, match="must hold 4398046511104 bytes, got 80"):
        open_array(tmp_path / "array").read(3, 4)
    fields["codecs"].append({"name": "crc32c"})
    file.write_text(json.dumps(fields))
    with pytest.raises(StoreError, match="must have chunks of at most 1,073,741,824 bytes, got 4,"):
        open_array(tmp_path / "array")


def test_extensions_that_need_not_be_understood(tmp_path: Path) -> None:
    write_array(tmp_path / "array", values_of(20), chunks=(4,))
    file = tmp_path / "array" / "zarr.json"
    fields = json.loads(file.read_text())
    fields["extra"] = {"must_understand": False}
    file.write_text(json.dumps(fields))
    np.testing.assert_array_equal(open_array(tmp_path / "array"), np.arange(20))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b'{"a": 1' + b"0"])
def test_metadata_must_be_an_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "zarr.json").write_bytes(content)
    with pytest.raises(StoreError, match="must hold"):
        open_array(tmp_path)


def test_places_without_an_array(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=re.escape(str(tmp_path))):
        open_array(tmp_path)
    (tmp_path / ".zarray").write_text("{}")
    with pytest.raises(StoreError, match="cannot be opened by zarr-python"):
        open_array(tmp_path)
    with pytest.raises(ConfigError, match=r"must be a path or a file:// URL, got scheme 's3'"):
        open_array("s3://bucket/array")


def test_rows_that_only_zarr_reads_may_be_damaged(tmp_path: Path) -> None:
    write_array(tmp_path / "array", values_of(20, 2, 2), chunks=(5, 2, 2))
    (tmp_path / "array" / "c" / "0" / "0" / "0").write_bytes(b"no frame")
    with pytest.raises(VerificationError, match=r"rows \[2, 3\) of .* cannot be read by zarr"):
        open_array(tmp_path / "array").read(2, 3)
    write_array(tmp_path / "scalar", np.zeros((), np.int32))
    with pytest.raises(StoreError, match="must have 1 to 32 dimensions, got 0"):
        open_array(tmp_path / "scalar")
