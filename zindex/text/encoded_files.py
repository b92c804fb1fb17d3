"""Files whose texts a tokenizer encodes: batches, damage, and the same tokenizer everywhere."""

import multiprocessing
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError
from zindex.io.objects import Place
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.text.kept_tokenizer import describe_tokenizer
from zindex.text.text_checks import check_unicode
from zindex.text.text_encoder import TextEncoder

# What is made of a text: its ids, or its ids and mask.
Encoded = TypeVar("Encoded")

Sample = dict[str, Any]

# Characters and samples per call of the tokenizer; the records do not depend on them.
_BATCH_LENGTH, _MAX_BATCH = 1 << 18, 1024


class _TriedTexts(dict[Hashable, Any]):
    """What was made of texts, for the copies of a source in this process alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class EncodedFiles(WrappedFiles):
    """Base of sources that encode texts; a subclass defines ``_draft``, ``_encode``, ``_finish``.

    Parameters
    ----------
    files, files_fingerprint
        See `WrappedFiles`.
    encoder
        The tokenizer.
    skip_damaged
        Whether samples rejected by ``_draft`` are skipped and counted instead of raising.
    """

    def __init__(
        self,
        files: SampleFiles,
        files_fingerprint: str,
        *,
        encoder: TextEncoder,
        skip_damaged: bool = False,
    ) -> None:
        super().__init__(files, files_fingerprint)
        self.encoder = encoder
        self.skip_damaged = skip_damaged
        #: Whether a store keeps the files of the tokenizer, not only its identity.
        self.keeps_tokenizer = True
        #: Whether the ids of what this object encodes are kept for its copies.
        self.is_trial = False
        # The ids of the texts of a trial, until they are used.
        self._tried = _TriedTexts()
        self._tokenizer = encoder.identity()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if multiprocessing.parent_process() is not None:
            # Each of many processes gets one core, so threads would only contend.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self.encoder.identity() != self._tokenizer:
            raise FingerprintMismatchError(
                f"{self.encoder.path or self.encoder.tokenizer!r} must be the same tokenizer on "
                "all machines while tokens are made, here it is another; copy the file there"
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the records, besides the files, as JSON values."""
        return {"tokenizer": self._tokenizer, "vocab_size": self.encoder.vocab_size()}

    def keep_tokenizer(self, root: Place) -> None:
        """Keep the tokenizer in the store of the records."""
        describe_tokenizer(self.encoder, keep_files=self.keeps_tokenizer).write(root)

    def convert(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the records of samples, in order.

        A thread encodes each batch while the one before is finished and the next one is drafted,
        as tokenizers release the GIL.

        Raises
        ------
        SourceError
            If a sample is damaged, unless damage is skipped.
        ConfigError
            If an id does not fit the dtype.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="zindex-encode") as thread:
            encoded: tuple[Sequence[Any], Future[Any]] | None = None
            batches = self._draft_batches(samples)
            while True:
                batch, damage = None, None
                try:
                    batch = next(batches, None)
                except SourceError as error:
                    damage = error  # raised after the records before it, or their error
                before = encoded
                encoded = None
                if batch is not None:
                    encoded = batch, thread.submit(self._encode, batch)
                if before is not None:
                    yield from list(self._finish(before[0], before[1].result()))
                if damage is not None:
                    raise damage
                if batch is None:
                    return

    def _draft_batches(self, samples: Iterable[Sample]) -> Iterator[Sequence[Any]]:
        """Yield the drafts of samples in batches; see `convert`."""
        batch: list[Any] = []
        length = 0
        for sample in samples:
            try:
                draft, texts = self._draft(sample)
                for text in texts:
                    check_unicode(text)
            except SourceError as error:
                self.refuse(sample, error)
                continue
            batch.append(draft)
            length += sum(map(len, texts))
            if length >= _BATCH_LENGTH or len(batch) >= _MAX_BATCH:
                yield batch
                batch, length = [], 0
        if batch:
            yield batch

    def refuse(self, sample: Sample, error: SourceError) -> None:
        """Count a damaged sample, or raise its error with its location."""
        if not self.skip_damaged:
            raise SourceError(
                f"{error}, in {locate(sample)}; fix it, or leave out such records with "
                "on_damage='skip' (--on-damage skip)"
            ) from error
        self.num_refused += 1

    def _encode_once(
        self, keys: Sequence[Hashable], encode: Callable[[Sequence[int]], Sequence[Encoded]]
    ) -> Sequence[Encoded]:
        """Return the ids of each key; those of a trial in this process are not encoded again.

        Parameters
        ----------
        keys
            What determines the ids: a text.
        encode
            Returns the ids of some keys, by number.
        """
        tried = self._tried
        if self.is_trial:
            found = encode(range(len(keys)))
            tried.update(zip(keys, found, strict=True))
            return found
        if not tried:
            return encode(range(len(keys)))
        known = {number: tried.pop(key) for number, key in enumerate(keys) if key in tried}
        left = [number for number in range(len(keys)) if number not in known]
        known |= dict(zip(left, encode(left), strict=True))
        return [known[number] for number in range(len(keys))]

    def _draft(self, sample: Sample) -> tuple[Any, Sequence[str]]:
        """Return a sample's draft, and its texts; SourceError if it is damaged."""
        raise NotImplementedError

    def _encode(self, batch: Sequence[Any]) -> Any:
        """Return the ids of the texts of drafts, encoded together."""
        raise NotImplementedError

    def _finish(self, batch: Sequence[Any], encoded: Any) -> Iterator[Sample]:
        """Yield the records of drafts, given what ``_encode`` returned."""
        raise NotImplementedError


def locate(sample: Sample) -> str:
    """Return the place of a sample, for messages: of jsonl the line, as editors number it.

    Examples
    --------
    >>> locate({"__url__": "a.jsonl.gz", "__key__": "2"}), locate({"__url__": "a", "__key__": "k"})
    ('line 3 of a.jsonl.gz', "record 'k' of a")
    """
    url, key = str(sample.get("__url__")), sample.get("__key__")
    if ".jsonl" in os.path.basename(url) and str(key).isdecimal():
        return f"line {int(str(key)) + 1:,} of {url}"
    return f"record {key!r} of {url}"


def fit_ids(ids: Int64Array, dtype: str, num_ids: int | None = None) -> AnyArray:
    """Return ids in the dtype in which they are stored.

    Parameters
    ----------
    ids, dtype
        The ids, and the dtype.
    num_ids
        Number of ids of the vocabulary; None if unknown.

    Raises
    ------
    ConfigError
        If an id does not fit the dtype, or the vocabulary does not have it.
    """
    if ids.size:
        least, most, limit = int(ids.min()), int(ids.max()), int(np.iinfo(dtype).max)
        if least < 0 or most > limit:
            raise ConfigError(
                f"token_dtype (--token-dtype) must hold every id of the tokenizer, {dtype} holds "
                f"those from 0 to {limit:,}, got {most if most > limit else least:,}; take a wider "
                "one, such as int32"
            )
        if num_ids is not None and most >= num_ids:
            raise ConfigError(
                f"a tokenizer must give ids of its vocabulary, which has {num_ids:,}, got "
                f"{most:,}; fix the tokenizer"
            )
    return ids.astype(dtype, copy=False)
