"""Reports of damaged samples: errors, or counts and log lines."""

import logging
from typing import Literal, get_args

from zindex.errors import SourceError, check_choice
from zindex.io.decompression import DamageError

logger = logging.getLogger(__name__)

OnDamage = Literal["error", "skip"]


class DamageLog:
    """The damage of one source, found by this process.

    Parameters
    ----------
    what
        Expected content of each file, for messages.
    on_damage
        ``"error"`` raises; ``"skip"`` counts, and logs once per file.

    Raises
    ------
    ConfigError
        If ``on_damage`` is neither.
    """

    def __init__(self, what: str, on_damage: OnDamage) -> None:
        check_choice("on_damage", on_damage, get_args(OnDamage))
        self.what = what
        self.on_damage = on_damage
        #: Number of skipped samples, or truncated files.
        self.num_skipped = 0
        self._logged: set[str] = set()

    def report(
        self, url: str, damage: DamageError, left_out: str | None, *, what: str | None = None
    ) -> None:
        """Raise for damage, or count it.

        Parameters
        ----------
        url
            The file.
        damage
            The reason and its byte.
        left_out
            Description of what is skipped as a result; None if all is read, but may be wrong.
        what
            Expected content of this file, if it differs.

        Raises
        ------
        SourceError
            Unless damage is skipped.
        """
        place = f"{url} must be {what or self.what}, but at byte {damage.offset:,} {damage.reason}"
        if self.on_damage == "error":
            remedy = "read it as it is" if left_out is None else f"leave out {left_out}"
            raise SourceError(
                f"{place}; restore the file, or {remedy} with on_damage='skip' (--on-damage skip)"
            )
        self.num_skipped += 1
        if url not in self._logged:
            self._logged.add(url)
            effect = "read as it is" if left_out is None else f"skipped: {left_out}"
            logger.warning(
                f"{place}; {effect}. Further damage in this file is skipped, too; it is counted in "
                "num_skipped, but not logged"
            )
