"""A heap of bins by their loads, as an array of their numbers."""

from zindex.arrays import Int64Array
from zindex.kernels._jit import jit


@jit
def sift_down(heap: Int64Array, size: int, place: int, load: Int64Array) -> None:
    """Restore the order of a heap, whose first bin has the least load, after a load has grown.

    Parameters
    ----------
    heap
        Numbers of the bins; those of equal loads are in order of their numbers.
    size
        Bins of the heap, which are the first ones of the array.
    place
        Where the bin of that load is.
    load
        Shape (bins,): the load of each.
    """
    item = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(heap[child + 1], heap[child], load):
            child += 1
        if not _precedes(heap[child], item, load):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = item


@jit
def _precedes(item: int, other: int, load: Int64Array) -> bool:
    """Return whether a bin has less load than another, or the same and a smaller number."""
    return bool(load[item] < load[other] or (load[item] == load[other] and item < other))
