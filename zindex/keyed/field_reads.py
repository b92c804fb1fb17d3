"""Reads of the tensors that a batch has of declared fields, and their dtypes."""

from typing import NamedTuple

import numpy as np
import torch

from zindex.arrays import AnyArray
from zindex.formats.keyed.schema_field import Field
from zindex.keyed.columns import Column
from zindex.keyed.file_values import ColumnRead, CopySpans


class FieldRead(NamedTuple):
    """One tensor of a batch, and the spans of its column that it holds."""

    field: Field
    column: Column
    spans: CopySpans
    #: C order.
    array: AnyArray
    #: Added to the starts and stops of the spans.
    shift: int = 0

    @property
    def request(self) -> ColumnRead:
        """The read, for `zindex.keyed.columns.read_columns`."""
        return self.column.read(self.spans, self.array, self.shift)


def tensor_dtype(field: Field, stored: np.dtype[np.generic]) -> torch.dtype:
    """Return the dtype of the tensor of a field, given that of the stored values."""
    if field.tensor_dtype is not None:
        return torch.from_numpy(np.empty(0, field.tensor_dtype)).dtype
    if field.values == "ids":
        return torch.int64
    if stored.kind == "f":
        return torch.from_numpy(np.empty(0, stored)).dtype
    if field.values == "floats":
        return torch.float32
    return torch.bool if field.values == "weights" or stored.kind == "b" else torch.int64
