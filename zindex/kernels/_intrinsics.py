"""The names that kernels import from `_instructions` and `_lanes`, without an import of numba.

Constants have their values. The others are placeholders until a kernel that uses them is compiled.
"""

from importlib import import_module
from typing import Any

from zindex.kernels._jit import Late

#: Values of one streaming store, and the alignment of target addresses.
LANES, ALIGNMENT = 8, 64

#: Lanes of a vector of float64, and of uint32; measured.
WIDTH, NUM_WORDS = 32, 128

_NAMES = {
    "_instructions": """
        call_checksum call_decompress carray claim count_bits fence find_bit lend load_int32
        load_int64 load_uint32 load_uint8 memcpy pointer pread prefetch store_int64 store_uint8
        stream_int32 stream_labels_int32 stream_labels_uint16 stream_uint16
    """,
    "_lanes": """
        add_round draw_largest find_errors find_largest find_reaching load_lanes raise_lanes
        set_lane store_lanes
    """,
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Late(lambda: getattr(import_module(f"{__package__}.{_HOMES[name]}"), name))
