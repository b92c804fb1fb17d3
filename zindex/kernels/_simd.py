"""SIMD vectors of float64 or uint32 for kernels, as numba intrinsics that stay in registers.

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
from zindex.kernels._jit import NUM_WORDS, WIDTH

ir = cgutils.ir

_BIT = ir.IntType(1)
_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
_WORD, _PAIR = ir.IntType(32), ir.IntType(64)
_WORDS, _PAIRS = ir.VectorType(_WORD, NUM_WORDS), ir.VectorType(_PAIR, NUM_WORDS // 2)


class _LanesType(types.Type):
    """The numba type of a vector."""

    def __init__(self, vector: Any) -> None:
        super().__init__(name=f"Lanes({vector})")
        self.vector = vector


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """One LLVM vector."""

    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, lanes.vector)


_LANES = _LanesType(_VECTOR)
_OF_DTYPE = {types.float64: _LANES, types.uint32: _LanesType(_WORDS)}


def _address(builder: Any, array: Any, at: Any) -> Any:
    """Return the address of a vector in an array."""
    vector = _WORDS if array.type.pointee == _WORD else _VECTOR
    return builder.bitcast(builder.gep(array, [at]), vector.as_pointer())


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


@instruction(lambda array, at: _OF_DTYPE[array.dtype](array, types.intp))
def load_lanes(builder: Any, array: Any, at: Any) -> Any:
    """Load a vector from an index on."""
    return builder.load(_address(builder, array, at), align=4)


@instruction(lambda array, at, lanes: types.void(array, types.intp, lanes))
def store_lanes(builder: Any, array: Any, at: Any, lanes: Any) -> None:
    """Store a vector from an index on."""
    builder.store(lanes, _address(builder, array, at), align=4)


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
    # Compute both outcomes speculatively.
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


def _fill(vector: Any, value: int) -> Any:
    """Return a constant vector of integers."""
    return ir.Constant(vector, [value] * vector.count)


def _mix(builder: Any, words: Any, bits: int) -> Any:
    """Return words xored with themselves shifted to the right."""
    return builder.xor(words, builder.lshr(words, _fill(_WORDS, bits)))


@instruction(lambda target, source, key, radix: target(target, source, types.uint64, types.uint32))
def add_round(builder: Any, target: Any, source: Any, key: Any, radix: Any) -> Any:
    """Return the sum of target and the round function of source, modulo a radix.

    The round function is a keyed murmur3 finaliser scaled to ``[0, radix)``.
    """
    low_key, high_key = (builder.trunc(word, _WORD) for word in (key, builder.lshr(key, _PAIR(32))))
    words = _mix(builder, builder.xor(source, splat(builder, low_key, NUM_WORDS)), 16)
    words = builder.mul(words, _fill(_WORDS, 0x85EBCA6B))
    words = builder.add(words, splat(builder, high_key, NUM_WORDS))
    words = _mix(builder, builder.mul(_mix(builder, words, 13), _fill(_WORDS, 0xC2B2AE35)), 16)
    # Even and odd words are scaled apart, and the high words of their products are joined.
    pairs = builder.bitcast(words, _PAIRS)
    scale = splat(builder, builder.zext(radix, _PAIR), NUM_WORDS // 2)
    even = builder.mul(builder.and_(pairs, _fill(_PAIRS, 0xFFFFFFFF)), scale)
    odd = builder.mul(builder.lshr(pairs, _fill(_PAIRS, 32)), scale)
    even, odd = (builder.bitcast(products, _WORDS) for products in (even, odd))
    high = ir.Constant(_WORDS, [lane + (1, NUM_WORDS)[lane % 2] for lane in range(NUM_WORDS)])
    words = builder.shuffle_vector(even, odd, high)
    total = builder.add(target, words)
    less = builder.sub(total, splat(builder, radix, NUM_WORDS))
    return builder.select(builder.icmp_unsigned("<", total, less), total, less)
