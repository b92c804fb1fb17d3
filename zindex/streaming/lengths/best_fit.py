"""How well samples pack, by best-fit decreasing as a build packs, without compiled code.

Histograms leave few different lengths, so samples that are alike are placed together; that takes
milliseconds, where the kernel of a build would first be compiled for seconds.
"""

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def count_sequences(lengths: Int64Array, sequence_length: int, max_samples: int) -> int:
    """Return how many sequences samples fill, long samples split.

    Parameters
    ----------
    lengths
        Shape (samples,), int64, tokens of each, > 0.
    sequence_length
        Tokens of a sequence, > 0.
    max_samples
        Most samples, or parts of samples, of a sequence, > 0.

    Notes
    -----
    Law: as many as `zindex.kernels.packing.count_samples` makes with ``SPLIT`` and no extra token.
    Cost: O(L * R) for L different lengths and R different rooms that are left over.

    Examples
    --------
    >>> count_sequences(np.array([3, 9, 5, 2, 3]), 8, 4)
    3
    """
    num_full, rests = np.divmod(lengths, sequence_length)
    num_sequences = int(num_full.sum())
    values, counts = np.unique(rests[rests > 0], return_counts=True)
    # By the room that is left: sequences with how many samples are in each, filled last on top.
    stacks: dict[int, list[tuple[int, int]]] = {}
    rooms: list[int] = []

    def put(room: int, held: int, number: int) -> None:
        if not number or not room or held >= max_samples:
            return
        if room not in stacks:
            insort(rooms, room)
            stacks[room] = []
        stacks[room].append((held, number))

    for length, left in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while left:
            at = bisect_left(rooms, length)
            if at == len(rooms):
                room, held, number = sequence_length, 0, -1
            else:
                room = rooms[at]
                held, number = stacks[room].pop()
                if not stacks[room]:
                    del stacks[room], rooms[at]
            # A sequence takes samples of one length until it has no room for another.
            most = min(room // length, max_samples - held)
            if number < 0:
                number = -(-left // most)
                num_sequences += number
            num_filled = min(number, left // most)
            left -= num_filled * most
            rest = left if num_filled < number else 0
            left -= rest
            put(room, held, number - num_filled - (rest > 0))
            put(room - most * length, held + most, num_filled)
            put(room - rest * length, held + rest, int(rest > 0))
    return num_sequences
