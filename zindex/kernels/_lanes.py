"""SIMD vectors of float64 for kernels, as numba intrinsics that stay in registers.

A kernel handles all lanes as one value, which LLVM splits into the registers of the processor.
Products and differences are rounded separately. Arrays must be contiguous; indices are not checked.
These functions exist in compiled code only; tests have Python equivalents.
"""

from typing import Any

from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.containers import BaseTuple
from numba.extending import register_model

from zindex.kernels._instructions import instruction, shuffle, splat
from zindex.kernels._intrinsics import WIDTH

ir = cgutils.ir

_BIT = ir.IntType(1)
_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)


class _LanesType(types.Type):
    """The numba type of a vector of float64."""


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """One LLVM vector."""

    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, _VECTOR)


_LANES = _LanesType("Lanes")


def _address(builder: Any, array: Any, at: Any) -> Any:
    """Return the address of a vector in an array."""
    return builder.bitcast(builder.gep(array, [at]), _VECTOR.as_pointer())


def _larger(builder: Any, left: Any, right: Any) -> Any:
    """Return the elementwise maximum, without NaN."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def _spread_largest(builder: Any, lanes: Any) -> Any:
    """Return lanes that all hold the maximum."""
    width = WIDTH
    while width > 8:
        width //= 2
        low = shuffle(builder, lanes, list(range(width)))
        lanes = _larger(builder, low, shuffle(builder, lanes, list(range(width, 2 * width))))
    distance = width // 2
    while distance:
        turned = shuffle(builder, lanes, [lane ^ distance for lane in range(width)])
        lanes = _larger(builder, lanes, turned)
        distance //= 2
    return shuffle(builder, lanes, [lane % width for lane in range(WIDTH)])


def _bits(builder: Any, mask: Any) -> Any:
    """Return a mask as the low bits of an int64."""
    return builder.zext(builder.bitcast(mask, ir.IntType(WIDTH)), cgutils.intp_t)


def _errors(builder: Any, weight: Any, count: Any, now: Any) -> Any:
    """Return weights times a factor, rounded, less counts, rounded."""
    return builder.fsub(builder.fmul(weight, splat(builder, now, WIDTH)), count)


@instruction(lambda array, at: _LANES(array, types.intp))
def load_lanes(builder: Any, array: Any, at: Any) -> Any:
    """Load a vector from an index on."""
    return builder.load(_address(builder, array, at), align=8)


@instruction(lambda array, at, lanes: types.void(array, types.intp, lanes))
def store_lanes(builder: Any, array: Any, at: Any, lanes: Any) -> None:
    """Store a vector from an index on."""
    builder.store(lanes, _address(builder, array, at), align=8)


find_errors: Any = instruction(lambda weight, count, now: _LANES(weight, count, types.float64))(
    _errors
)


@instruction(
    lambda error, weight, count, after: BaseTuple.from_types(
        (types.float64, types.intp, error, count)
    )(error, weight, count, types.float64)
)
def draw_largest(builder: Any, error: Any, weight: Any, count: Any, after: Any) -> list[Any]:
    """Return the largest error, the bits of its lanes, and the state after a draw from them.

    The state is the errors at the next factor and the counts.
    """
    top = _spread_largest(builder, error)
    mask = builder.fcmp_ordered("==", error, top)
    raised = builder.fadd(count, ir.Constant(_VECTOR, [1.0] * WIDTH))
    # Both outcomes are evaluated speculatively.
    changed, unchanged = (_errors(builder, weight, one, after) for one in (raised, count))
    return [
        builder.extract_element(top, cgutils.int32_t(0)),
        _bits(builder, mask),
        builder.select(mask, changed, unchanged),
        builder.select(mask, raised, count),
    ]


@instruction(lambda lanes, lane, value: _LANES(lanes, types.intp, types.float64))
def set_lane(builder: Any, lanes: Any, lane: Any, value: Any) -> Any:
    """Return lanes with one of them replaced."""
    # An insertion would go through memory.
    numbers = ir.Constant(ir.VectorType(lane.type, WIDTH), list(range(WIDTH)))
    mask = builder.icmp_signed("==", numbers, splat(builder, lane, WIDTH))
    return builder.select(mask, splat(builder, value, WIDTH), lanes)


@instruction(lambda lanes, bound: types.intp(lanes, types.float64))
def find_reaching(builder: Any, lanes: Any, bound: Any) -> Any:
    """Return the bits of the lanes that reach a bound."""
    return _bits(builder, builder.fcmp_ordered(">=", lanes, splat(builder, bound, WIDTH)))


@instruction(lambda lanes, others, bits: _LANES(lanes, others, types.intp))
def raise_lanes(builder: Any, lanes: Any, others: Any, bits: Any) -> Any:
    """Return the maximum of lanes and others, except where a bit is set."""
    word = builder.trunc(bits, ir.IntType(WIDTH))
    mask = builder.bitcast(word, ir.VectorType(_BIT, WIDTH))
    return builder.select(mask, lanes, _larger(builder, lanes, others))


@instruction(lambda lanes: types.float64(lanes))
def find_largest(builder: Any, lanes: Any) -> Any:
    """Return the maximum of the lanes."""
    return builder.extract_element(_spread_largest(builder, lanes), cgutils.int32_t(0))
