"""What is done about damage: an error by default; left out, counted and logged where asked for."""

import logging
from typing import Literal

from zindex.errors import ConfigError, SourceError
from zindex.formats.damage import Damage

logger = logging.getLogger(__name__)

OnDamage = Literal["error", "skip"]


class DamageLog:
    """The damage that one source has met in this process.

    Parameters
    ----------
    what
        What each file must be, for messages, unless one is said to be something else.
    on_damage
        ``"error"`` raises; ``"skip"`` counts, and logs once per file.

    Raises
    ------
    ConfigError
        If ``on_damage`` is neither.
    """

    def __init__(self, what: str, on_damage: OnDamage) -> None:
        if on_damage not in ("error", "skip"):
            raise ConfigError(f"on_damage must be 'error' or 'skip', got {on_damage!r}")
        self.what = what
        self.on_damage = on_damage
        #: Samples, or rests of files, that were left out.
        self.num_skipped = 0
        self._logged: set[str] = set()

    def report(self, url: str, damage: Damage, left_out: str, *, what: str | None = None) -> None:
        """Raise for damage, or count it.

        Parameters
        ----------
        url
            The file.
        damage
            What is wrong in it.
        left_out
            What goes with it.
        what
            What this file must be.

        Raises
        ------
        SourceError
            Unless damage is to be skipped.
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
                "%s; left out: %s, and what else is damaged in this file, which is counted "
                "in num_skipped and not logged again",
                place,
                left_out,
            )
