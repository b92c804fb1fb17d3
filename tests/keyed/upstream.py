"""Models of AstrAI's stores and windows, after descriptions of how they behave, faults included."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

#: How a folder is listed: upstream takes the files as the file system gives them.
Listing = Callable[[Path, str], Iterable[Path]]


def list_sorted(folder: Path, ending: str) -> Iterable[Path]:
    """List a folder in the order of names, so that tests do not hang on the file system."""
    return sorted(folder.rglob(f"*{ending}"))


class UpstreamStore:
    """Segments of each key, and the running lengths of these."""

    def __init__(self, data: dict[str, list[torch.Tensor]]) -> None:
        self.data = data
        self.ends = {key: list(accumulate(map(len, parts))) for key, parts in data.items()}
        self.length = min((ends[-1] if ends else 0 for ends in self.ends.values()), default=0)

    def fetch(self, begin: int, end: int, key: str) -> torch.Tensor:
        """Return a span: a view of one segment, or several joined."""
        if not (0 <= begin < self.length and 0 <= end <= self.length):
            raise ValueError(f"Index out of bounds: begin={begin}, end={end}, length={self.length}")
        ends, parts = self.ends[key], self.data[key]
        first, last = bisect_right(ends, begin), bisect_left(ends, end)
        starts = [0, *ends]
        found = [
            parts[i][max(begin - starts[i], 0) : end - starts[i]] for i in range(first, last + 1)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)


def load_h5(folder: Path, listing: Listing = list_sorted) -> dict[str, list[torch.Tensor]]:
    """Read all files of a folder, datasets in the order of names."""
    loaded: dict[str, list[torch.Tensor]] = {}
    for path in listing(folder, ".h5"):
        with h5py.File(path) as file:
            for key in file:
                found = [torch.from_numpy(file[key][name][:]) for name in file[key]]
                loaded.setdefault(key, []).extend(found)
    return loaded


def load_bin(folder: Path, listing: Listing = list_sorted) -> dict[str, list[torch.Tensor]]:
    """Map all folders with a meta.json, so that writes reach the files."""
    loaded: dict[str, list[torch.Tensor]] = {}
    for path in listing(folder, "meta.json"):
        for key, entry in json.loads(path.read_text()).items():
            shape = tuple(entry["shape"])
            values = np.memmap(path.parent / f"{key}.bin", entry["dtype"], mode="r+", shape=shape)
            loaded.setdefault(key, []).append(torch.from_numpy(values))
    return loaded


def detect_format(path: Path) -> str:
    """Return the format of a path: HDF5 wins over others."""
    if path.is_file():
        if path.suffix in {".h5", ".hdf5"}:
            return "h5"
        raise ValueError(f"Unsupported file format: {path.suffix}")
    if any(path.rglob("*.h5")) or any(path.rglob("*.hdf5")):
        return "h5"
    if any(path.rglob("*.bin")) and any(path.rglob("meta.json")):
        return "bin"
    raise FileNotFoundError(f"No supported data files found at {path}")


def to_bin(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return what is written of a key."""
    return torch.cat(list(tensors)).numpy().tobytes()


class UpstreamWindows:
    """Windows of a store; indices are not checked."""

    def __init__(self, store: UpstreamStore, keys: Sequence[str], window: int, stride: int) -> None:
        self.store, self.keys, self.window, self.stride = store, keys, window, stride

    def __len__(self) -> int:
        length = self.store.length
        return 0 if length <= self.window else (length - 1 - self.window) // self.stride + 1

    def get_index(self, index: int) -> tuple[int, int]:
        """Return the span of a window."""
        begin = min(index * self.stride, self.store.length - 1 - self.window)
        return begin, begin + self.window

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin, end = self.get_index(index)
        return {key: self.store.fetch(begin, end, key) for key in self.keys}


def write_documents(
    documents: Iterable[tuple[Sequence[int], Sequence[bool]]],
) -> dict[str, list[np.ndarray]]:
    """Return what the pipeline writes of (tokens, mask): no mask where all of it is trained.

    Once a document has had a mask, later ones without it get ones; those before do not.
    """
    written: dict[str, list[np.ndarray]] = {"sequence": []}
    for tokens, mask in documents:
        written["sequence"].append(np.array(tokens, "int32"))
        if not all(mask) or "loss_mask" in written:
            written.setdefault("loss_mask", []).append(np.array(mask, bool))
    return written


def read_lines_eagerly(path: Path) -> dict[str, Any]:
    """Return a file of JSON lines as one segment for each key, with the records it makes of them.

    A record is a segment of position_ids.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    keys = {key: torch.tensor([v for row in rows for v in row[key]]) for key in rows[0]}
    return {"data": {key: [values] for key, values in keys.items()}, "num_records": 1}
