"""The lengths that an index was made from, where it is to be made again."""

from zindex.building.source import LengthSource, open_source
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.plan.index_plan import SourceFacts
from zindex.store.objects import Place


def open_same_lengths(
    source: str | LengthSource | None, facts: SourceFacts, root: Place, what: str
) -> LengthSource:
    """Return the lengths of a dataset after checking that they are the ones of an index.

    Parameters
    ----------
    source
        The dataset, as far as it is named.
    facts
        What decided the index.
    root, what
        The store, and what of it is to be made again, for messages.

    Raises
    ------
    ConfigError
        If no dataset is named.
    FingerprintMismatchError
        If it is another one.
    """
    if source is None:
        raise ConfigError(
            f"{what} of {root} was made from the lengths of a dataset, which must be named to "
            "repair it; give --source with its token store or prefix, or name the run file"
        )
    if isinstance(source, str):
        source = open_source(source, require_bin=False)
    expected = facts.length_digest, facts.num_sequences
    if (source.facts.length_digest, source.facts.num_sequences) != expected:
        raise FingerprintMismatchError(
            f"{source.path} must have the lengths of digest {expected[0][:16]} that {root} was "
            f"made from, it has {source.facts.length_digest[:16]}; name the right source"
        )
    return source
