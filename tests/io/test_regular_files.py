"""Regular files are opened, and nothing else is waited for."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import SourceError
from zindex.io.regular_files import open_file, open_regular, regular


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with open_file(tmp_path / "a") as stream, open(tmp_path / "a", "rb", opener=regular) as again:
        assert stream.read() == again.read() == b"abc"


@pytest.mark.parametrize(("make", "number"), [(os.mkfifo, errno.EINVAL), (os.mkdir, errno.EISDIR)])
def test_something_else_is_refused(make: Any, number: int, tmp_path: Path) -> None:
    make(tmp_path / "a")
    with pytest.raises(OSError, match=r"Not a regular file|Is a directory") as caught:
        open_file(tmp_path / "a")
    assert caught.value.errno == number
    with pytest.raises(SourceError, match=r"is made of regular files, but .* is something else"):
        open_regular(str(tmp_path / "a"))


def test_a_file_whose_status_fails_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    opened, close = list[int](), os.close

    def fail(descriptor: int) -> os.stat_result:
        opened.append(descriptor)
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        patch.setattr(os, "close", lambda number: (close(number), opened.remove(number)))
        with pytest.raises(OSError, match="Stale"):
            open_regular(str(tmp_path / "a"))
    assert opened == []
