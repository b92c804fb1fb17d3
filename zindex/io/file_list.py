"""List the files of a path: files, patterns, lists and folders, local or in an object store."""

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.io import object_client
from zindex.io.brace_patterns import expand_braces, split_at_commas
from zindex.io.files import list_keys
from zindex.io.frames import Frames
from zindex.io.growing_copy import GrowingCopy
from zindex.io.local import local_path
from zindex.io.objects import SCHEMES, ObjectPath, Place, mask
from zindex.io.system_errors import reading

#: Suffixes of compressed files, and their compression.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstandard"}
_SHORT = {".tgz": "gzip", ".tbz2": "bzip2", ".txz": "xz", ".tzst": "zstandard"}
# Schemes of S3 in cogdata; the second one requires the sidecar.
_S3_NAMES = ("boto3", "metaboto3")
_REPEATED = re.compile(r"(.*)\*(\d{1,6})")
#: Times that a folder may be read in one epoch.
MAX_REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of samples."""

    #: As given by the user, for ``__url__``.
    url: str
    place: Place
    #: Bytes that are read; None in an object store until it is looked up.
    nbytes: int | None
    #: One of `COMPRESSIONS`; None if it is not compressed.
    compression: str | None = None
    #: Whether its sidecar is required.
    needs_sidecar: bool = False
    #: Version of an object, once it is looked up.
    version: str = ""
    #: Time of modification, in seconds since 1970; 0 if unknown.
    modified: float = field(default=0.0, compare=False)
    #: A local copy of its decompressed content, which has `nbytes`.
    copy: Path | None = None
    #: Its size, if only the first `nbytes` are read, or its frames.
    full_nbytes: int | None = None
    #: Where it is read at any offset although it is compressed; `nbytes` are then of the content.
    frames: Frames | None = field(default=None, compare=False)
    #: Makes the copy, which may be incomplete; None if it is complete.
    growing: GrowingCopy | None = field(default=None, compare=False)

    @property
    def size(self) -> int | None:
        """Size of the file, or of its local copy; None until it is looked up."""
        return self.nbytes if self.full_nbytes is None else self.full_nbytes

    @property
    def path(self) -> Path:
        """Path of a local file, or of its local copy."""
        path = self.copy or self.place
        assert isinstance(path, Path)
        return path

    @property
    def is_local(self) -> bool:
        """Whether it, or its copy, is in a file system."""
        return self.copy is not None or isinstance(self.place, Path)

    @property
    def is_cut(self) -> bool:
        """Whether it can be read from any offset: it is on this node and not compressed."""
        return self.is_local and self.compression is None


def list_files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    endings: Sequence[str],
    *,
    include_dirs: str | None = None,
) -> list[SourceFile]:
    """Return the files of a path and of folders, in this order; folders sorted by name.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas in one string or as a list. Patterns have
        braces, which are expanded, or ``*``, ``[...]``, ``**`` and, in local paths, ``?``, which
        match existing names, sorted, without those that begin with a dot; not over HTTP.
    endings
        Suffixes of file names, without those of compression. Other files in folders are skipped.
    include_dirs
        Folders separated by commas; a suffix ``*n`` repeats the files of one n times.

    Raises
    ------
    ConfigError
        If a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder does not exist.
    SourceError
        If a file is not regular, a folder is empty, or no file is given.
    """
    names = named_paths(path, include_dirs)
    files = [file for name in names for file in _find_files(name, endings)]
    repeated: list[SourceFile] = []
    for folder, count in _folders(include_dirs):
        found = _find_files(folder, endings)
        files += found
        repeated += found * (count - 1)
    seen: set[Place] = set()
    for file in files:
        if file.place in seen:
            raise ConfigError(
                f"each file must be named once, {file.url} is named twice; to read a folder n "
                "times in each epoch write include_dirs='folder*n' (--include-dirs 'folder*n')"
            )
        seen.add(file.place)
    if not files:
        named = [text for text in (path, include_dirs) if text is not None]
        raise SourceError(
            f"a source must have a file, {' and '.join(map(repr, named))} must name one that ends "
            f"in {' or '.join(endings)}; check the folder"
        )
    return files + repeated


def named_paths(path: object, include_dirs: str | None = None) -> list[str]:
    """Return the files and folders of a ``path`` of `list_files`.

    Raises
    ------
    ConfigError
        If it is no path, or names nothing.
    StoreNotFoundError
        If nothing matches a pattern.
    """
    if isinstance(path, str | os.PathLike):
        text = os.fspath(path)
        if not isinstance(text, str):
            raise ConfigError(f"a path must be text, got {path!r}")
        if not text and include_dirs:
            return []
        parts = [text] if os.path.lexists(text) else split_at_commas(text)
        if not parts:
            raise ConfigError(f"a path must name a file or folder, got {path!r}")
    elif isinstance(path, Sequence) and not isinstance(path, bytes | bytearray):
        if include_dirs is not None:
            raise ConfigError(
                "a path must be one text with include_dirs (--include-dirs), got a list; leave "
                "them out"
            )
        if not all(isinstance(part, str | os.PathLike) for part in path):
            raise ConfigError(f"a path must be text or a list of texts, got {path!r}")
        parts = [os.fspath(part) for part in path]
    else:
        raise ConfigError(f"a path must be text or a list of texts, got {path!r}")
    return [
        name
        for part in parts
        for pattern in ([part] if os.path.lexists(part) else expand_braces(part))
        for name in _match(pattern)
    ]


def _match(pattern: str) -> list[str]:
    """Return the sorted local paths that match a pattern, or a name that is no pattern."""
    is_path = "://" not in pattern and not pattern.startswith("pipe:")
    if not is_path or not glob.has_magic(pattern) or os.path.lexists(pattern):
        return [pattern]
    found = sorted(glob.glob(pattern, recursive=True))
    if pattern.endswith("**"):  # the files of a folder match, too
        found = [name for name in found if not os.path.isdir(name)]
    if not found:
        raise StoreNotFoundError(f"no file matches {pattern}; check the path")
    return found


def _folders(include_dirs: str | None) -> Iterator[tuple[str, int]]:
    """Yield the folders of ``include_dirs``, and how often each is read."""
    if not isinstance(include_dirs, str | None):
        raise ConfigError(
            "include_dirs (--include-dirs) must be one text, folders separated by commas, got "
            f"{include_dirs!r}"
        )
    for part in split_at_commas(include_dirs or ""):
        found = _REPEATED.fullmatch(part)
        name, count = (found[1], int(found[2])) if found is not None else (part, 1)
        if not 1 <= count <= MAX_REPEATS:
            raise ConfigError(
                "a folder of include_dirs (--include-dirs) must be read 1 to "
                f"{MAX_REPEATS:,} times, got {part!r}"
            )
        yield name, count


def _find_files(name: str, endings: Sequence[str]) -> list[SourceFile]:
    """Return the file of a name, or the files of a folder; at least one."""
    found = list(_files_of(name, endings))
    if not found:
        raise SourceError(
            f"a folder must hold files that end in {' or '.join(endings)} and are not empty, "
            f"{mask(name)} holds none; check the folder, or leave it out"
        )
    return found


def _files_of(name: str, endings: Sequence[str]) -> Iterator[SourceFile]:
    """Yield the file of a name, or the files of a folder."""
    scheme, separator, rest = name.partition("://")
    is_command = name.startswith("pipe:")
    if not is_command and (not separator or scheme == "file"):
        yield from _local_files(name, local_path(name), endings)
    elif scheme in SCHEMES or scheme in _S3_NAMES:
        place = ObjectPath.parse(f"s3://{rest}" if scheme in _S3_NAMES else name)
        for found in _remote_places(place, endings):
            compression = _compression(found.name)
            yield SourceFile(str(found), found, None, compression, scheme == "metaboto3")
    else:
        got = "pipe:" if is_command else f"{scheme}://"
        raise ConfigError(
            f"a source must be a path or a URL of file, {', '.join(SCHEMES)}, boto3 or metaboto3, "
            f"got {got!r} in {mask(name)[:200]!r}; no command is run and no other scheme is read"
        )


def _compression(name: str) -> str | None:
    """Return the compression of a file by its name."""
    ending = os.path.splitext(name)[1]
    return COMPRESSIONS.get(ending) or _SHORT.get(ending)


def _has_ending(name: str, endings: Sequence[str]) -> bool:
    """Return whether a file name has one of the suffixes."""
    stem, ending = os.path.splitext(name)
    if ending in _SHORT:
        return "tar" in endings
    return (stem if ending in COMPRESSIONS else name).endswith(tuple(endings))


def _local_files(url: str, path: Path, endings: Sequence[str]) -> Iterator[SourceFile]:
    """Yield a local file, or those below a folder that are not empty, sorted by name."""
    with reading(path):
        if path.is_dir():
            keys = sorted(key for key in list_keys(path, depth=None) if _has_ending(key, endings))
            found = [_local_file(f"{url.rstrip('/')}/{key}", path / key) for key in keys]
            yield from (file for file in found if file.nbytes)
            return
        yield _local_file(url, path)


def _local_file(url: str, path: Path) -> SourceFile:
    """Return a local file; StoreNotFoundError if there is none, SourceError if it is no file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"no file {url}; check the path") from None
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{url} must be a regular file or a folder, it is neither")
    compression = _compression(path.name)
    return SourceFile(url, path, status.st_size, compression, modified=status.st_mtime)


def _remote_places(place: ObjectPath, endings: Sequence[str]) -> list[ObjectPath]:
    """Return an object, or those below a prefix or of a pattern, sorted by key."""
    if "*" in place.key or ("[" in place.key and not place.is_read_only):
        return _match_objects(place, endings)
    if _has_ending(place.name, endings):
        return [place]
    if place.is_read_only:
        raise _unlisted(place, endings)
    keys = sorted(list_keys(place, depth=None))
    found = [place / key for key in keys if _has_ending(key, endings)]
    if not found:
        raise StoreNotFoundError(f"no object below {place} ends in {' or '.join(endings)}")
    return found


def _unlisted(place: ObjectPath, endings: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"a URL over {place.scheme} must name a file that ends in {' or '.join(endings)}, or "
        f"such an ending and that of a compression, got {place}; folders cannot be listed there"
    )


def _match_objects(place: ObjectPath, endings: Sequence[str]) -> list[ObjectPath]:
    """Return the object of a name, or those that match it as a pattern."""
    if place.is_read_only:
        raise _unlisted(place, endings)
    if object_client.head(place) is not None:
        return [place]
    parts = place.key.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    folder = ObjectPath(place.scheme, place.bucket, "/".join(parts[:fixed]))
    found = []
    for key in sorted(list_keys(folder, depth=None)):
        names = key.split("/")
        # What is below a folder that matches has an ending.
        above = range(1, len(names)) if _has_ending(key, endings) else ()
        if any(_is_match(names[:stop], parts[fixed:]) for stop in (*above, len(names))):
            found.append(folder / key)
    if not found:
        raise StoreNotFoundError(f"no object matches {place}; check the URL")
    return found


def _is_match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a pattern."""
    if not names or not patterns:
        return not names and all(part == "**" for part in patterns)
    if patterns[0] == "**" and _is_match(names, patterns[1:]):
        return True
    if names[0].startswith(".") and not patterns[0].startswith("."):
        return False
    if patterns[0] == "**":
        return _is_match(names[1:], patterns)
    return fnmatchcase(names[0], patterns[0]) and _is_match(names[1:], patterns[1:])
