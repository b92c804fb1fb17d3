"""Words of messages and tables."""


def count_noun(count: int, one: str, many: str = "", *, shown: str = "") -> str:
    """Format a count, or `shown` instead, with its noun, whose plural ends in s by default.

    Examples
    --------
    >>> count_noun(1, "blend"), count_noun(2000, "blend"), count_noun(0, "index", "indices")
    ('1 blend', '2,000 blends', '0 indices')
    """
    return f"{shown or f'{count:,}'} {one if count == 1 else many or f'{one}s'}"
