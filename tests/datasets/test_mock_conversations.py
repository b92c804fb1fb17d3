"""Made-up conversations: lengths of files, tokens of real datasets, and settings."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from zindex.datasets.mock_conversations import MockSFTLowLevelDataset, open_mock
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor

DRAWN = {"min_seq_len": 2, "max_seq_len": 9, "mean_seq_len": 5, "lognormal_sigma": 0.5}


def test_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("length\n1\n7.0\n8\n")
    mock = MockSFTLowLevelDataset(mode="file", path=str(path), vocab_size=5)
    assert [len(mock[i]) for i in range(len(mock))] == [1, 7, 8]
    assert mock[1].tolist() == [1, 2, 3, 4, 0, 1, 2]
    assert mock[4].tolist() == mock[1].tolist()
    damaged = {
        "a\nb\n": "but .*'b'",
        "a\n0\n": "got 0",
        "a\n": "got none",
        "a\ninf\n": "but cannot convert float infinity",
    }
    for content, message in damaged.items():
        path.write_text(content)
        with pytest.raises(SourceError, match=f"must hold lengths.*{message}"):
            MockSFTLowLevelDataset(mode="file", path=str(path))
    path.unlink()
    with pytest.raises(StoreNotFoundError, match=r"lengths\.csv must be a file of lengths"):
        MockSFTLowLevelDataset(mode="file", path=str(path))


@pytest.mark.parametrize("sequence_length", [1, 2, 3, 8])
def test_default_lengths(monkeypatch: pytest.MonkeyPatch, sequence_length: int) -> None:
    monkeypatch.setattr(MockSFTLowLevelDataset, "size", 50)
    lengths = open_mock(None, sequence_length).sequence_lengths
    assert lengths.min() == max(1, sequence_length // 2)
    assert lengths.max() <= sequence_length


@pytest.mark.parametrize("kind", ["prefix", "store"])
def test_tokens_of_a_real_dataset(
    write_corpus: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(MockSFTLowLevelDataset, "size", 6)
    path = write_corpus([2, 0, 1], tokens=[11, 12, 21])
    if kind == "store":
        zindex.convert(path, f"{path}.zarr", client=SerialExecutor())
        path = f"{path}.zarr"
    length = dict.fromkeys(("min_seq_len", "max_seq_len"), 5)
    mock = MockSFTLowLevelDataset(mode="verification", data_path=path, **length)
    again = pickle.loads(pickle.dumps(mock))
    assert [again[i].tolist() for i in (0, 2)] == [[11, 12, 21, 11, 12], [21, 11, 12, 21, 11]]
    assert again[0].dtype == np.int64


def test_a_real_dataset_must_hold_tokens(write_corpus: Any) -> None:
    path = write_corpus([0])
    with pytest.raises(SourceError, match=r"data_path .* must hold tokens, .*corpus holds none"):
        MockSFTLowLevelDataset(mode="verification", data_path=path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "other"}, "must be one of file, distribution, verification, got 'other'"),
        ({"mode": "file"}, "mode 'file' need path, path missing, none unknown"),
        ({"mode": "distribution", **DRAWN, "typ": 1}, "none missing, typ unknown"),
        ({"mode": "distribution", **DRAWN, "type": "flat"}, "must be one of lognormal, got 'flat'"),
        ({"mode": "distribution", **DRAWN, "format": "x"}, "must be one of thd, sbhd, got 'x'"),
        *(
            (
                {"mode": "distribution", **DRAWN, name: value},
                f"{name} of made-up .* must be a number of at least {lowest}, got {text}",
            )
            for name, value, lowest, text in [
                ("min_seq_len", 0, 1, "0"),
                ("min_seq_len", None, 1, "None"),
                ("max_seq_len", 1, 2, "1"),
                ("mean_seq_len", -3, 1, "-3"),
                ("mean_seq_len", "5", 1, "'5'"),
                ("lognormal_sigma", -1.0, 0, "-1.0"),
                ("vocab_size", 0, 1, "0"),
            ]
        ),
    ],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MockSFTLowLevelDataset(**settings)


def test_the_json_must_name_a_mode() -> None:
    with pytest.raises(ConfigError, match=r"must be an object with a mode, got \[1\]"):
        open_mock("[1]", 8)
