"""Files of plain text, each of which is one document."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from zindex.formats.damage import Damage
from zindex.sources.chunks import read_chunks
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.file_list import list_files
from zindex.sources.part_grid import CutFiles

#: Bytes of the longest text that is read.
MAX_TEXT_NBYTES = 1 << 28
#: What names of text files in folders end in.
ENDINGS = (".txt", ".md", ".rst")
_BYTE_ORDER_MARK = "\ufeff"
# A part that holds any file.
_WHOLE = 1 << 62


class TextFiles(CutFiles):
    """Files of text in UTF-8: plain or compressed, here or in an object store.

    Parameters
    ----------
    path
        Files, folders and brace patterns: one string with commas between them, or a list. Folders
        are searched for names that end in ``.txt``, ``.md`` or ``.rst``, or that and the ending of
        a compression; empty files there are passed by.
    on_damage
        ``"error"``: a file that is no UTF-8, or too long, is an error. ``"skip"``: it is left out,
        counted in ``num_skipped``, and logged.

    Raises
    ------
    ConfigError
        If a setting or a scheme is refused, or a file is named twice.
    StoreNotFoundError
        If a file or folder is not there.
    SourceError
        If nothing is named at all.

    Notes
    -----
    Samples have ``text``, without a byte order mark, ``__url__`` and ``__key__``, which is ``"0"``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        on_damage: OnDamage = "error",
    ) -> None:
        super().__init__(list_files(path, ENDINGS), _WHOLE, DamageLog("a text in UTF-8", on_damage))

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the list of files and their sizes."""
        return self._grid.fingerprint(kind="text")

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the document of a file.

        Raises
        ------
        SourceError
            If it is no text, unless such files are skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        url = self.part_url(part)
        try:
            text = self._read(part)
        except Damage as damage:
            self.damage.report(url, damage, "such files")
        else:
            yield {"text": text, "__url__": url, "__key__": "0"}

    def _read(self, part: int) -> str:
        """Return the text of a file."""
        content = bytearray()
        with closing(read_chunks(self._grid.files[self._grid.locate(part)[0]])) as chunks:
            for chunk in chunks:
                content += chunk
                if len(content) > MAX_TEXT_NBYTES:
                    raise Damage(
                        f"it has more than {MAX_TEXT_NBYTES:,} bytes, the most of one document",
                        MAX_TEXT_NBYTES,
                    )
        try:
            return content.decode().removeprefix(_BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            raise Damage(f"there is no UTF-8: {error.reason}", error.start) from error
