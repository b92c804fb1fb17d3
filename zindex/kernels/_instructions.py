"""Instructions that numba lacks, as intrinsics: prefetch, raw memory, pread, streaming stores.

Addresses are int64 and must lie in memory that the kernel's caller keeps alive. Batches of token
ids and loss masks are megabytes that are next read by a copy to a device, or much later, so they
are written past the caches: such stores neither read the old contents nor evict the program, whose
Python for the next batch would then take twice as long. They move eight values at once, from
sources aligned to their values to targets aligned to `ALIGNMENT` bytes.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from numba import carray as carray
from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple
from numba.extending import intrinsic

from zindex.kernels._jit import ALIGNMENT, LANES

ir = cgutils.ir

_READ, _KEEP, _DATA = 0, 3, 1


def instruction(sign: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an intrinsic of a function that emits its instructions.

    The function gets the builder and the arguments, of arrays the address of their data. It returns
    the result, a list for a tuple, or None.

    Parameters
    ----------
    sign
        Returns the numba signature for the types of the arguments.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = [
                context.make_array(kind)(context, builder, value).data
                if isinstance(kind, types.Array)
                else value
                for kind, value in zip(signature.args, arguments, strict=True)
            ]
            result = emit(builder, *values)
            if isinstance(result, list):
                return context.make_tuple(builder, signature.return_type, result)
            return context.get_dummy_value() if result is None else result

        # Numba takes the names of the arguments from the signature, without the first parameter.
        @wraps(emit)
        def declare(typing_context: Any, *kinds: Any) -> tuple[Any, Any]:
            return sign(*kinds), lower

        return intrinsic(declare)

    return decorate


@instruction(lambda array, index: types.void(array, index))
def prefetch(builder: Any, array: Any, index: Any) -> None:
    """Prefetch the cache line of ``array[index]``, of a contiguous 1-D array.

    A prefetch changes no value and cannot fault, so a wrong index only costs time.
    """
    address = builder.bitcast(builder.gep(array, [index]), cgutils.voidptr_t)
    word = cgutils.int32_t
    hint = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [address.type, word, word, word]),
        "llvm.prefetch.p0",
    )
    builder.call(hint, [address, word(_READ), word(_KEEP), word(_DATA)])


def _declare_loan(typing_context: Any, arrays: Any) -> tuple[Any, Any]:
    """Return the numba signature and the instructions of `lend`."""

    def lend_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, BaseTuple):
            items = zip(kind, cgutils.unpack_tuple(builder, value), strict=True)
            lent = [lend_value(context, builder, *item) for item in items]
            return context.make_tuple(builder, kind, lent)
        loan = context.make_array(kind)(context, builder, value)
        loan.meminfo = loan.meminfo.type(None)
        loan.parent = loan.parent.type(None)
        return loan._getvalue()

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return lend_value(context, builder, arrays, arguments[0])

    return arrays(arrays), emit


#: Views of an array, or of a tuple of arrays, without reference counting. Atomic counts would cost
#: more than the work of a kernel that passes a dozen arrays through small functions once per
#: element. The caller must keep the originals alive.
lend: Any = intrinsic(_declare_loan)


def _point(builder: Any, address: Any, kind: Any) -> Any:
    """Return an address as a pointer to values of an LLVM type."""
    return builder.inttoptr(address, kind.as_pointer())


def _loader(kind: Any) -> Any:
    """Return the intrinsic that loads a value, aligned or not."""

    @instruction(lambda address: kind(types.int64))
    def load(builder: Any, address: Any) -> Any:
        return builder.load(_point(builder, address, ir.IntType(kind.bitwidth)), align=1)

    return load


def _storer(kind: Any) -> Any:
    """Return the intrinsic that stores a value, aligned or not."""

    @instruction(lambda address, value: types.void(types.int64, kind))
    def store(builder: Any, address: Any, value: Any) -> None:
        builder.store(value, _point(builder, address, value.type), align=1)

    return store


load_int64: Any = _loader(types.int64)
load_int32: Any = _loader(types.int32)
load_uint32: Any = _loader(types.uint32)
load_uint8: Any = _loader(types.uint8)
store_int64: Any = _storer(types.int64)
store_uint8: Any = _storer(types.uint8)


@instruction(lambda address: types.voidptr(types.int64))
def pointer(builder: Any, address: Any) -> Any:
    """Return an address as a pointer."""
    return builder.inttoptr(address, cgutils.voidptr_t)


@instruction(lambda address: types.int64(types.int64))
def claim(builder: Any, address: Any) -> Any:
    """Increment an int64 atomically; return its old value."""
    one = cgutils.intp_t(1)
    return builder.atomic_rmw("add", _point(builder, address, one.type), one, "seq_cst")


@instruction(lambda bits: types.intp(types.intp))
def count_bits(builder: Any, bits: Any) -> Any:
    """Count the set bits."""
    return builder.ctpop(bits)


@instruction(lambda bits: types.intp(types.intp))
def find_bit(builder: Any, bits: Any) -> Any:
    """Return the index of the lowest set bit."""
    return builder.cttz(bits, ir.Constant(ir.IntType(1), 0))


#: pread(2), as an external symbol instead of a ctypes function so that kernels can be cached.
pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.voidptr, types.uintp, types.int64)
)

#: memcpy(3), in the same way.
memcpy: Any = types.ExternalFunction(
    "memcpy", types.voidptr(types.voidptr, types.voidptr, types.uintp)
)


def _call(builder: Any, result: Any, function: Any, arguments: Any) -> Any:
    """Call the C function at an address; pointers and sizes are int64."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)


@instruction(lambda *kinds: types.int64(*[types.int64] * 6))
def call_decompress(
    builder: Any, function: Any, context: Any, target: Any, room: Any, source: Any, nbytes: Any
) -> Any:
    """Call ``ZSTD_decompressDCtx`` at an address; return the decoded bytes, negative on errors."""
    return _call(builder, cgutils.intp_t, function, [context, target, room, source, nbytes])


@instruction(lambda *kinds: types.uint32(*[types.int64] * 3))
def call_checksum(builder: Any, function: Any, source: Any, nbytes: Any) -> Any:
    """Call ``crc32c_value`` at an address."""
    return _call(builder, cgutils.int32_t, function, [source, nbytes])


_INDEX = cgutils.int32_t
_IDS = ir.VectorType(cgutils.intp_t, LANES)
_MASK = ir.VectorType(ir.FloatType(), LANES)


def splat(builder: Any, value: Any, width: int) -> Any:
    """Return a vector that holds one value in all lanes."""
    vector = ir.VectorType(value.type, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INDEX(0))
    return shuffle(builder, first, [0] * width)


def shuffle(builder: Any, lanes: Any, order: list[int]) -> Any:
    """Return the lanes of a vector in another order."""
    mask = ir.Constant(ir.VectorType(_INDEX, len(order)), order)
    return builder.shuffle_vector(lanes, ir.Constant(lanes.type, ir.Undefined), mask)


def _store_past_caches(builder: Any, value: Any, address: Any, alignment: int) -> None:
    store = builder.store(value, _point(builder, address, value.type), alignment)
    store.set_metadata("nontemporal", builder.module.add_metadata([_INDEX(1)]))


def _load_ids(builder: Any, kind: Any, source: Any, pad: Any) -> tuple[Any, Any]:
    """Return ids as int64, 0 at padding, and the mask of padding."""
    vector = ir.VectorType(ir.IntType(kind.bitwidth), LANES)
    narrow = builder.load(_point(builder, source, vector), align=kind.bitwidth // 8)
    ids = builder.sext(narrow, _IDS) if kind.signed else builder.zext(narrow, _IDS)
    is_pad = builder.icmp_signed("==", ids, splat(builder, pad, LANES))
    return builder.select(is_pad, ir.Constant(_IDS, [0] * LANES), ids), is_pad


def _id_stream(kind: Any) -> Any:
    """Return the intrinsic that writes ids; arguments: source, target, padding id."""

    @instruction(lambda *kinds: types.void(types.int64, types.int64, types.int64))
    def stream(builder: Any, source: Any, target: Any, pad: Any) -> None:
        ids, _ = _load_ids(builder, kind, source, pad)
        _store_past_caches(builder, ids, target, ALIGNMENT)

    return stream


def _label_stream(kind: Any) -> Any:
    """Return the intrinsic that writes ids and loss weights."""

    @instruction(lambda *kinds: types.void(types.int64, types.int64, types.int64, types.int64))
    def stream(builder: Any, source: Any, labels: Any, mask: Any, pad: Any) -> None:
        ids, is_pad = _load_ids(builder, kind, source, pad)
        _store_past_caches(builder, ids, labels, ALIGNMENT)
        none, full = ir.Constant(_MASK, [0.0] * LANES), ir.Constant(_MASK, [1.0] * LANES)
        _store_past_caches(builder, builder.select(is_pad, none, full), mask, ALIGNMENT // 2)

    return stream


#: uint16 and int32 ids to int64.
stream_uint16: Any = _id_stream(types.uint16)
stream_int32: Any = _id_stream(types.int32)
#: The same, with loss weights 1.0 or 0.0 as float32.
stream_labels_uint16: Any = _label_stream(types.uint16)
stream_labels_int32: Any = _label_stream(types.int32)


@instruction(lambda: types.void())
def fence(builder: Any) -> None:
    """Make all earlier writes visible to other threads before all later ones."""
    builder.fence("seq_cst")
