"""Memory by address, and files by descriptor, for the one kernel that reads files.

Addresses are int64; they must lie within memory that the kernel's caller holds.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(kind: Any, bits: int) -> Any:
    """Return the intrinsic that loads a value, aligned or not."""

    def declare(typing_context: Any, address: Any) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], cgutils.ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return kind(types.int64), emit

    return intrinsic(declare)


def _storer(kind: Any, bits: int) -> Any:
    """Return the intrinsic that stores a value, aligned or not."""

    def declare(typing_context: Any, address: Any, value: Any) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], cgutils.ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), emit

    return intrinsic(declare)


def _declare_pointer(typing_context: Any, address: Any) -> tuple[Any, Any]:
    """Give numba the signature of a pointer made of a number and the instruction for it."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


def _declare_claim(typing_context: Any, address: Any) -> tuple[Any, Any]:
    """Give numba the signature of an atomic addition of one, and the instruction for it."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = cgutils.ir.Constant(cgutils.ir.IntType(64), 1)
        place = builder.inttoptr(arguments[0], one.type.as_pointer())
        return builder.atomic_rmw("add", place, one, "seq_cst")

    return types.int64(types.int64), emit


load_int64: Any = _loader(types.int64, 64)
load_int32: Any = _loader(types.int32, 32)
load_uint8: Any = _loader(types.uint8, 8)
store_int64: Any = _storer(types.int64, 64)
store_uint8: Any = _storer(types.uint8, 8)
pointer: Any = intrinsic(_declare_pointer)
#: Adds one to an int64 that threads share, and returns what it was.
claim: Any = intrinsic(_declare_claim)

#: pread(2). An external symbol and no ctypes function, so that the kernel can be cached.
pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.voidptr, types.uintp, types.int64)
)
