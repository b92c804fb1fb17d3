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
        self, url: str, damage: DamageError, left_out: str, *, what: str | None = None
    ) -> None:
        """Raise for damage, or count it.

        Parameters
        ----------
        url
            The file.
        damage
            The reason and its byte.
        left_out
            Description of what is skipped as a result.
        what
            Expected content of this file, if it differs.

        Raises
        ------
        SourceError
            Unless damage is skipped.
        """
        place = f"{url} must be {what or self.what}, but at byte {damage.offset:,} {damage.reason}"
        if self.on_damage == "error":
            raise SourceError(
                f"{place}; restore the file, or leave out {left_out} with on_damage='skip' "
                "(--on-damage skip)"
            )
        self.num_skipped += 1
        if url not in self._logged:
            self._logged.add(url)
            logger.warning(
                f"{place}; skipped: {left_out}. Further damage in this file is skipped, too; it is "
                "counted in num_skipped, but not logged"
            )
