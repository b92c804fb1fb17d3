"""A hint to the processor that numba has no name for: fetch a cache line that is needed soon."""

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

_READ, _KEEP, _DATA = 0, 3, 1


def _declare(typing_context: Any, array: Any, index: Any) -> tuple[Any, Any]:
    """Give numba the signature of the hint and the instruction that it stands for."""
    ir = cgutils.ir

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        word = cgutils.int32_t
        hint = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [address.type, word, word, word]),
            "llvm.prefetch.p0",
        )
        builder.call(hint, [address, word(_READ), word(_KEEP), word(_DATA)])
        return context.get_dummy_value()

    return types.void(array, index), emit


prefetch: Any = intrinsic(_declare)
"""Fetch the line of ``array[index]``; in kernels only, for contiguous 1-D arrays.

A hint changes no value and cannot fault, so a wrong index costs time and nothing else.
"""
