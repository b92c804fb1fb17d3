"""SIMD vectors of float64 for kernels, as numba intrinsics that stay in registers.

A kernel handles all lanes as one value, which LLVM splits into the registers of the processor.
Products and differences are rounded separately. Arrays must be contiguous; indices are not checked.
These functions exist in compiled code only; tests have Python equivalents.
"""

from typing import Any

from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.containers import BaseTuple
from numba.extending import intrinsic, register_model

ir = cgutils.ir

_DOUBLE, _BIT = ir.DoubleType(), ir.IntType(1)


class _LanesType(types.Type):
    """The numba type of a vector of float64."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"Lanes({width})")


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """One LLVM vector."""

    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, ir.VectorType(_DOUBLE, lanes.width))


def _lowered(declare: Any) -> Any:
    """Return an intrinsic of a type and instructions; widths must be literals."""
    return intrinsic(prefer_literal=True)(declare)


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any, pointer: Any) -> Any:
    """Return the address of an element of a contiguous array, as one of another type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), pointer.as_pointer())


def _splat(builder: Any, value: Any, width: int) -> Any:
    """Return lanes that all hold one value."""
    vector = ir.VectorType(value.type, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, cgutils.int32_t(0))
    return _shuffle(builder, first, [0] * width)


def _shuffle(builder: Any, lanes: Any, order: list[int]) -> Any:
    """Return lanes in another order."""
    mask = ir.Constant(ir.VectorType(cgutils.int32_t, len(order)), order)
    return builder.shuffle_vector(lanes, ir.Constant(lanes.type, ir.Undefined), mask)


def _larger(builder: Any, left: Any, right: Any) -> Any:
    """Return the elementwise maximum, without NaN."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def _spread_largest(builder: Any, lanes: Any) -> Any:
    """Return lanes that all hold the maximum."""
    width, full = lanes.type.count, lanes.type.count
    while width > 8:
        width //= 2
        low = _shuffle(builder, lanes, list(range(width)))
        lanes = _larger(builder, low, _shuffle(builder, lanes, list(range(width, 2 * width))))
    distance = width // 2
    while distance:
        turned = _shuffle(builder, lanes, [lane ^ distance for lane in range(width)])
        lanes = _larger(builder, lanes, turned)
        distance //= 2
    return _shuffle(builder, lanes, [lane % width for lane in range(full)])


def _count_up(builder: Any, first: Any, width: int) -> Any:
    """Return lanes that hold consecutive integers."""
    numbers = ir.Constant(ir.VectorType(first.type, width), list(range(width)))
    return builder.add(_splat(builder, first, width), numbers)


def _bits(builder: Any, mask: Any) -> Any:
    """Return a mask as the low bits of an int64."""
    word = builder.bitcast(mask, ir.IntType(mask.type.count))
    return builder.zext(word, cgutils.intp_t)


def _mask(builder: Any, bits: Any, width: int) -> Any:
    """Return the low bits of an int64 as a mask."""
    word = builder.trunc(bits, ir.IntType(width))
    return builder.bitcast(word, ir.VectorType(_BIT, width))


def _errors(builder: Any, weight: Any, count: Any, now: Any) -> Any:
    """Return weights times now, rounded, less counts, rounded."""
    return builder.fsub(builder.fmul(weight, now), count)


@_lowered
def load_lanes(typing_context: Any, array: Any, at: Any, width: Any) -> Any:
    """Load a vector from an index on."""
    lanes = _LanesType(width.literal_value)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_DOUBLE, lanes.width)
        array_, at_, _ = arguments
        address = _address(context, builder, array, array_, at_, vector)
        return builder.load(address, align=8)

    return lanes(array, types.intp, width), emit


@_lowered
def find_errors(typing_context: Any, weight: Any, count: Any, now: Any) -> Any:
    """Return the errors of lanes: weights times a factor, rounded, less counts, rounded."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weight_, count_, now_ = arguments
        return _errors(builder, weight_, count_, _splat(builder, now_, weight.width))

    return weight(weight, count, types.float64), emit


@_lowered
def draw_largest(typing_context: Any, error: Any, weight: Any, count: Any, after: Any) -> Any:
    """Return the largest error, the bits of its lanes, and the state after a draw from them.

    The state is the errors at the next factor and the counts.
    """
    result = BaseTuple.from_types((types.float64, types.intp, error, error))

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        error_, weight_, count_, after_ = arguments
        top = _spread_largest(builder, error_)
        mask = builder.fcmp_ordered("==", error_, top)
        after_ = _splat(builder, after_, error.width)
        raised = builder.fadd(count_, ir.Constant(error_.type, [1.0] * error.width))
        # Both outcomes are evaluated speculatively.
        error_ = builder.select(
            mask,
            _errors(builder, weight_, raised, after_),
            _errors(builder, weight_, count_, after_),
        )
        count_ = builder.select(mask, raised, count_)
        largest = builder.extract_element(top, cgutils.int32_t(0))
        items = [largest, _bits(builder, mask), error_, count_]
        return context.make_tuple(builder, signature.return_type, items)

    return result(error, weight, count, types.float64), emit


@_lowered
def set_lane(typing_context: Any, lanes: Any, lane: Any, value: Any) -> Any:
    """Return lanes with one of them replaced."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes_, lane_, value_ = arguments
        # An insertion would go through memory.
        numbers = _count_up(builder, cgutils.intp_t(0), lanes.width)
        mask = builder.icmp_signed("==", numbers, _splat(builder, lane_, lanes.width))
        return builder.select(mask, _splat(builder, value_, lanes.width), lanes_)

    return lanes(lanes, types.intp, types.float64), emit


@_lowered
def store_lanes(typing_context: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Store a vector from index ``at`` on."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_, at_, lanes_ = arguments
        address = _address(context, builder, array, array_, at_, lanes_.type)
        builder.store(lanes_, address, align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), emit


@_lowered
def find_reaching(typing_context: Any, lanes: Any, bound: Any) -> Any:
    """Return the bits of the lanes that reach a bound."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bound_ = _splat(builder, arguments[1], lanes.width)
        return _bits(builder, builder.fcmp_ordered(">=", arguments[0], bound_))

    return types.intp(lanes, types.float64), emit


@_lowered
def raise_lanes(typing_context: Any, lanes: Any, others: Any, bits: Any) -> Any:
    """Return the maximum of lanes and others, except where a bit is set."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes_, others_, bits_ = arguments
        larger = _larger(builder, lanes_, others_)
        return builder.select(_mask(builder, bits_, lanes.width), lanes_, larger)

    return lanes(lanes, others, types.intp), emit


@_lowered
def find_largest(typing_context: Any, lanes: Any) -> Any:
    """Return the maximum of the lanes."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(_spread_largest(builder, arguments[0]), cgutils.int32_t(0))

    return types.float64(lanes), emit


@_lowered
def count_bits(typing_context: Any, bits: Any) -> Any:
    """Count the set bits."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.intp(types.intp), emit


@_lowered
def find_bit(typing_context: Any, bits: Any) -> Any:
    """Return the index of the lowest set bit."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(_BIT, 0))

    return types.intp(types.intp), emit
