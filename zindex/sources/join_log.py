"""What is said where samples of a tar get no metadata though it was asked for: once per file."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)


class JoinLog:
    """The files of a source of which it was said in this process that nothing was joined.

    Parameters
    ----------
    fields
        Fields of samples that metadata was asked for.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = list(fields)
        self._logged: set[str] = set()

    def watch(
        self,
        url: str,
        sidecar: str,
        metadata: Mapping[str, Any],
        samples: Iterator[dict[str, Any]],
    ) -> Iterator[dict[str, Any]]:
        """Yield samples, and log behind the last one if none of them got metadata.

        Parameters
        ----------
        url, sidecar
            The tar, and the file of its metadata, whether it is there or not.
        metadata
            What was read of that, by key.
        samples
            Of one part of the tar.
        """
        field = self.fields[0]
        num_samples = num_ids = num_joined = 0
        last = ""
        for sample in samples:
            num_samples += 1
            if field in sample:
                num_ids += 1
                last = sample["__key__"]
                num_joined += last in metadata
            yield sample
        if not num_samples or num_joined or url in self._logged:
            return
        self._logged.add(url)
        if not metadata:
            logger.warning(
                "%s: meta_names asks for %s, but there is no line of metadata in %s beside it",
                url,
                self.fields,
                sidecar,
            )
        elif not num_ids:
            logger.warning(
                "%s: meta_names asks for %s, but none of %s samples has a member .id, and only "
                "samples with one get metadata, from the line with their key in %s",
                url,
                self.fields,
                f"{num_samples:,}",
                sidecar,
            )
        else:
            logger.warning(
                "%s: meta_names asks for %s, but no line of %s has the key of one of %s samples "
                "with a member .id, such as %r: its name, with its folder, up to the first dot",
                url,
                self.fields,
                sidecar,
                f"{num_ids:,}",
                last,
            )
