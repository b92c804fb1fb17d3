"""Read files of plain text, with one document each."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from zindex.io.decompression import DamageError
from zindex.io.file_chunks import read_chunks
from zindex.io.file_list import list_files
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.part_files import PartFiles
from zindex.sources.sample_files import WHOLE_FILE, Paths

#: Maximum bytes of a text.
MAX_TEXT_NBYTES = 1 << 28
#: Suffixes of text files in folders.
ENDINGS = (".txt", ".md", ".rst")
_BYTE_ORDER_MARK = "\ufeff"


class TextFiles(PartFiles):
    """Files of text in UTF-8: plain or compressed, local or in an object store.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas in one string or as a list. Folders
        are searched for names with the suffix ``.txt``, ``.md`` or ``.rst``, optionally followed by
        the suffix of a compression; empty files in folders are ignored.
    on_damage
        ``"error"``: a file that is not UTF-8, or too long, is an error. ``"skip"``: it is skipped,
        counted in ``num_skipped``, and logged.

    Raises
    ------
    ConfigError
        If a setting or a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder is missing.
    SourceError
        If there are no files.

    Notes
    -----
    Samples have ``text``, without a byte order mark, ``__url__`` and ``__key__``, which is ``"0"``.
    """

    kind = "text"

    def __init__(self, path: Paths, *, on_damage: OnDamage = "error") -> None:
        damage = DamageLog("a text in UTF-8", on_damage)
        super().__init__(list_files(path, ENDINGS), WHOLE_FILE, damage)

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the document of a file.

        Raises
        ------
        SourceError
            If it is not text, unless such files are skipped.
        StoreNotFoundError, StoreUnavailableError, StoreUnreadableError
            If the file cannot be read.
        """
        url = self.part_url(part)
        try:
            text = self._read(part)
        except DamageError as damage:
            self.damage.report(url, damage, "such files")
        else:
            yield {"text": text, "__url__": url, "__key__": "0"}

    def _read(self, part: int) -> str:
        """Return the text of a file."""
        content = bytearray()
        with closing(read_chunks(self._files[self.locate(part)[0]])) as chunks:
            for chunk in chunks:
                content += chunk
                if len(content) > MAX_TEXT_NBYTES:
                    raise DamageError(
                        f"it has more than {MAX_TEXT_NBYTES:,} bytes, the most of one document",
                        MAX_TEXT_NBYTES,
                    )
        try:
            return content.decode().removeprefix(_BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            raise DamageError(f"there is no UTF-8: {error.reason}", error.start) from error
