"""Instructions that numba lacks, as intrinsics: prefetch, raw memory, pread, streaming stores.

Addresses are int64 and must lie in memory that the kernel's caller keeps alive. Batches of token
ids and loss masks are megabytes that are next read by a copy to a device, or much later, so they
are written past the caches: such stores neither read the old contents nor evict the program, whose
Python for the next batch would then take twice as long. They move eight values at once, from
sources aligned to their values to targets aligned to `ALIGNMENT` bytes.
"""

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic, overload

ir = cgutils.ir

_READ, _KEEP, _DATA = 0, 3, 1


def _declare_prefetch(typing_context: Any, array: Any, index: Any) -> tuple[Any, Any]:
    """Return the numba signature and the instruction of a prefetch."""

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


#: Prefetch the cache line of ``array[index]``, of a contiguous 1-D array. A prefetch changes no
#: value and cannot fault, so a wrong index only costs time.
prefetch: Any = intrinsic(_declare_prefetch)


def lend(array: Any) -> Any:
    """Return a view of an array without reference counting.

    Atomic counts would cost more than the work of a kernel that passes a dozen arrays through small
    functions once per element. The caller must keep the original alive.
    """
    return array


def _declare_loan(typing_context: Any, array: Any) -> tuple[Any, Any]:
    """Return the numba signature and the instructions of `lend`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loan = context.make_array(signature.args[0])(context, builder, arguments[0])
        loan.meminfo = loan.meminfo.type(None)
        loan.parent = loan.parent.type(None)
        return loan._getvalue()

    return array(array), emit


_loan: Any = intrinsic(_declare_loan)


def _compile_loan(array: Any) -> Any:
    """Return the compiled implementation of `lend`."""

    def compiled(array: Any) -> Any:
        return _loan(array)

    return compiled


overload(lend)(_compile_loan)


def _loader(kind: Any, bits: int) -> Any:
    """Return the intrinsic that loads a value, aligned or not."""

    def declare(typing_context: Any, address: Any) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return kind(types.int64), emit

    return intrinsic(declare)


def _storer(kind: Any, bits: int) -> Any:
    """Return the intrinsic that stores a value, aligned or not."""

    def declare(typing_context: Any, address: Any, value: Any) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), emit

    return intrinsic(declare)


def _declare_pointer(typing_context: Any, address: Any) -> tuple[Any, Any]:
    """Return the numba signature and the instruction of a cast to a pointer."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


def _declare_claim(typing_context: Any, address: Any) -> tuple[Any, Any]:
    """Return the numba signature and the instruction of an atomic increment."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        place = builder.inttoptr(arguments[0], one.type.as_pointer())
        return builder.atomic_rmw("add", place, one, "seq_cst")

    return types.int64(types.int64), emit


load_int64: Any = _loader(types.int64, 64)
load_int32: Any = _loader(types.int32, 32)
load_uint8: Any = _loader(types.uint8, 8)
store_int64: Any = _storer(types.int64, 64)
store_uint8: Any = _storer(types.uint8, 8)
pointer: Any = intrinsic(_declare_pointer)
#: Atomically increments an int64, and returns its old value.
claim: Any = intrinsic(_declare_claim)

#: pread(2). An external symbol and no ctypes function, so that the kernel can be cached.
pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.voidptr, types.uintp, types.int64)
)

#: Values of one call, and the alignment of target addresses.
LANES, ALIGNMENT = 8, 64

_INDEX = ir.IntType(32)
_IDS = ir.VectorType(ir.IntType(64), LANES)
_MASK = ir.VectorType(ir.FloatType(), LANES)


def _store_past_caches(builder: Any, value: Any, address: Any, alignment: int) -> None:
    store = builder.store(value, builder.inttoptr(address, value.type.as_pointer()), alignment)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INDEX, 1)]))


def _load_ids(builder: Any, bits: int, source: Any, pad: Any) -> tuple[Any, Any]:
    """Return ids as int64, 0 at padding, and the mask of padding."""
    kind = ir.VectorType(ir.IntType(bits), LANES)
    narrow = builder.load(builder.inttoptr(source, kind.as_pointer()), align=bits // 8)
    ids = builder.zext(narrow, _IDS) if bits == 16 else builder.sext(narrow, _IDS)
    one = builder.insert_element(ir.Constant(_IDS, ir.Undefined), pad, ir.Constant(_INDEX, 0))
    order = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    pads = builder.shuffle_vector(one, ir.Constant(_IDS, ir.Undefined), order)
    is_pad = builder.icmp_signed("==", ids, pads)
    return builder.select(is_pad, ir.Constant(_IDS, [0] * LANES), ids), is_pad


def _id_stream(bits: int) -> Any:
    """Return the intrinsic that writes ids; arguments: source, target, padding id."""

    def declare(typing_context: Any, source: Any, target: Any, pad: Any) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ids, _ = _load_ids(builder, bits, arguments[0], arguments[2])
            _store_past_caches(builder, ids, arguments[1], ALIGNMENT)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), emit

    return intrinsic(declare)


def _label_stream(bits: int) -> Any:
    """Return the intrinsic that writes ids and loss weights."""

    def declare(
        typing_context: Any, source: Any, labels: Any, mask: Any, pad: Any
    ) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ids, is_pad = _load_ids(builder, bits, arguments[0], arguments[3])
            _store_past_caches(builder, ids, arguments[1], ALIGNMENT)
            none, full = ir.Constant(_MASK, [0.0] * LANES), ir.Constant(_MASK, [1.0] * LANES)
            counts = builder.select(is_pad, none, full)
            _store_past_caches(builder, counts, arguments[2], ALIGNMENT // 2)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), emit

    return intrinsic(declare)


def _declare_fence(typing_context: Any) -> tuple[Any, Any]:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


#: uint16 and int32 ids to int64.
stream_uint16: Any = _id_stream(16)
stream_int32: Any = _id_stream(32)
#: The same, with loss weights 1.0 or 0.0 as float32.
stream_labels_uint16: Any = _label_stream(16)
stream_labels_int32: Any = _label_stream(32)
#: Orders all writes before it before all later ones, for other threads.
fence: Any = intrinsic(_declare_fence)
