"""Token ids and loss masks written past the caches.

A batch is megabytes that nobody reads before they are copied to a device or used much later. Stores
that go straight to memory neither read what they overwrite nor push the program out of the caches,
where the Python of the next batch then takes half the time. Places are addresses, eight values at
once: sources aligned to their values, targets to `ALIGNMENT` bytes.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ir = cgutils.ir

#: Values of one call, and what addresses of targets are multiples of.
LANES, ALIGNMENT = 8, 64

_INDEX = ir.IntType(32)
_IDS = ir.VectorType(ir.IntType(64), LANES)
_MASK = ir.VectorType(ir.FloatType(), LANES)


def _store_past_caches(builder: Any, value: Any, address: Any, alignment: int) -> None:
    store = builder.store(value, builder.inttoptr(address, value.type.as_pointer()), alignment)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INDEX, 1)]))


def _load_ids(builder: Any, bits: int, source: Any, pad: Any) -> tuple[Any, Any]:
    """Return ids as int64, 0 where they are padding, and where they are."""
    kind = ir.VectorType(ir.IntType(bits), LANES)
    narrow = builder.load(builder.inttoptr(source, kind.as_pointer()), align=bits // 8)
    ids = builder.zext(narrow, _IDS) if bits == 16 else builder.sext(narrow, _IDS)
    one = builder.insert_element(ir.Constant(_IDS, ir.Undefined), pad, ir.Constant(_INDEX, 0))
    order = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    pads = builder.shuffle_vector(one, ir.Constant(_IDS, ir.Undefined), order)
    is_pad = builder.icmp_signed("==", ids, pads)
    return builder.select(is_pad, ir.Constant(_IDS, [0] * LANES), ids), is_pad


def _id_stream(bits: int) -> Any:
    """Return the intrinsic that writes ids: source, target, the padding's id."""

    def declare(typing_context: Any, source: Any, target: Any, pad: Any) -> tuple[Any, Any]:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ids, _ = _load_ids(builder, bits, arguments[0], arguments[2])
            _store_past_caches(builder, ids, arguments[1], ALIGNMENT)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), emit

    return intrinsic(declare)


def _label_stream(bits: int) -> Any:
    """Return the intrinsic that writes ids and what they count: source, ids, mask, padding's id."""

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
#: The same, and 1.0 or 0.0 for each as float32.
stream_labels_uint16: Any = _label_stream(16)
stream_labels_int32: Any = _label_stream(32)
#: Lets other threads see what was written before anything that is written afterwards.
fence: Any = intrinsic(_declare_fence)
