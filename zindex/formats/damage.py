"""What is wrong in a file of samples, and where; its reader raises that, or leaves it out."""


# Never leaves a reader, which raises SourceError instead or goes on.
class Damage(Exception):  # noqa: N818
    """Something in a file that is not what its format says.

    Parameters
    ----------
    reason
        What is there, as the end of a sentence that begins with the place.
    offset
        Where, in bytes of the file's content after decompression.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset
