"""Instructions that numba has no name for, written with its own means; in kernels only."""

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic, overload

_READ, _KEEP, _DATA = 0, 3, 1


def _declare_prefetch(typing_context: Any, array: Any, index: Any) -> tuple[Any, Any]:
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


prefetch: Any = intrinsic(_declare_prefetch)
"""Fetch the cache line of ``array[index]``, which is needed soon; for contiguous 1-D arrays.

A hint changes no value and cannot fault, so a wrong index costs time and nothing else.
"""


def lend(array: Any) -> Any:
    """Return a view of an array that is not counted as a reference to it.

    Counting is atomic and would cost more than the work of a kernel that passes a dozen arrays
    through small functions once per element. The caller must hold the original meanwhile.
    """
    return array


def _declare_loan(typing_context: Any, array: Any) -> tuple[Any, Any]:
    """Give numba the signature of a loan and the instructions that it stands for."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loan = context.make_array(signature.args[0])(context, builder, arguments[0])
        loan.meminfo = loan.meminfo.type(None)
        loan.parent = loan.parent.type(None)
        return loan._getvalue()

    return array(array), emit


_loan: Any = intrinsic(_declare_loan)


def _compile_loan(array: Any) -> Any:
    """Give numba the function that stands for `lend`."""

    def compiled(array: Any) -> Any:
        return _loan(array)

    return compiled


overload(lend)(_compile_loan)
