"""Arrays lent to a kernel: views that are not counted as references.

Counting references is atomic and would cost more than the work of a kernel that passes a dozen
arrays through small functions once per element.
"""

from typing import Any

from numba.extending import intrinsic, overload


def lend(array: Any) -> Any:
    """Return an array that is not counted; the caller must hold the original while it is used."""
    return array


def _declare(typing_context: Any, array: Any) -> tuple[Any, Any]:
    """Give numba the signature of a loan and the instructions that it stands for."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loan = context.make_array(signature.args[0])(context, builder, arguments[0])
        loan.meminfo = loan.meminfo.type(None)
        loan.parent = loan.parent.type(None)
        return loan._getvalue()

    return array(array), emit


_lend: Any = intrinsic(_declare)


def _compile_loan(array: Any) -> Any:
    """Give numba the function that stands for `lend`."""

    def compiled(array: Any) -> Any:
        return _lend(array)

    return compiled


overload(lend)(_compile_loan)
