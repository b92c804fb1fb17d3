"""Every array that zindex stores: name, dimensions, unit and meaning."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """A stored array, apart from its length and dtype."""

    name: str
    #: Zarr ``dimension_names``; the first one is the axis that is chunked and sharded.
    dims: tuple[str, ...]
    #: Unit of a value.
    unit: str
    #: One sentence for the array's attributes.
    description: str
    #: Columns of a 2-D array; 1 for a 1-D array.
    num_columns: int = 1

    def of(self, name: str) -> "ArraySpec":
        """Return the array of this kind for a name."""
        dims = tuple(dim.replace("{}", name) for dim in self.dims)
        return replace(self, name=self.name.replace("{}", name), dims=dims)


def _bounds(name: str, dim: str, unit: str, start: str) -> ArraySpec:
    """Return an array of the starts of items, followed by the end of the last one."""
    description = f"{start}; the last entry is the number of {unit}."
    return ArraySpec(name, (f"{dim}_bound",), unit, description)


TOKENS = ArraySpec("tokens", ("token",), "token id", "All tokens, sequence after sequence.")
SEQUENCE_LENGTH = ArraySpec(
    "sequence_length", ("sequence",), "tokens", "Number of tokens of each sequence."
)
SEQUENCE_OFFSET = _bounds(
    "sequence_offset", "sequence", "tokens", "Position in tokens at which each sequence starts"
)
DOCUMENT_OFFSET = _bounds(
    "document_offset", "document", "sequences", "Sequence at which each document starts"
)
SEQUENCE_MODE = ArraySpec(
    "sequence_mode", ("sequence",), "mode", "Modality of each sequence of a multimodal corpus."
)
#: Arrays of token stores: the count of their rows, the total in an additional last row, if any, and
#: their dtype, or None for that of the tokens.
TOKEN_ARRAYS: dict[str, tuple[str, str | None, str | None]] = {
    TOKENS.name: ("num_tokens", None, None),
    SEQUENCE_LENGTH.name: ("num_sequences", None, "int32"),
    SEQUENCE_OFFSET.name: ("num_sequences", "num_tokens", "int64"),
    DOCUMENT_OFFSET.name: ("num_documents", "num_sequences", "int64"),
    SEQUENCE_MODE.name: ("num_sequences", None, "int8"),
}

DOCUMENT_INDEX = ArraySpec(
    "document_index",
    ("document",),
    "document id",
    "Documents in the order in which their tokens are streamed, epoch after epoch.",
)
SAMPLE_INDEX = ArraySpec(
    "sample_index",
    ("boundary", "field"),
    "row of document_index, tokens",
    "Rows j and j + 1 enclose sample j: row in document_index, token offset in that document.",
    num_columns=2,
)
SHUFFLE_INDEX = ArraySpec(
    "shuffle_index", ("sample",), "sample id", "Sample that stands at each shuffled position."
)

DOCUMENT_ROW = ArraySpec(
    "document_row",
    ("document",),
    "row of document_index",
    "Rows of document_index that refer to each document of the split, one per epoch, ascending.",
)
SAMPLE_POSITION = ArraySpec(
    "sample_position",
    ("sample",),
    "position",
    "Position at which each sample stands: the inverse of shuffle_index or, over the "
    "concatenated datasets, of a blend.",
)

PART_INDEX = ArraySpec(
    "part_index",
    ("part", "field"),
    "document id, tokens",
    "Parts of packed samples, sample after sample: document, and token offset in that document.",
    num_columns=2,
)
SAMPLE_OFFSET = _bounds(
    "sample_offset", "sample", "parts", "Part at which each packed sample starts"
)
PARTITION_OFFSET = ArraySpec(
    "partition_offset",
    ("partition_bound", "partition_field"),
    "sample, part, token",
    "Sample, part and token at which each run of documents that is packed by itself starts.",
    num_columns=3,
)

SENTENCE_INDEX = ArraySpec(
    "sentence_index",
    ("sample", "field"),
    "sentence, sentence, tokens or document",
    "Samples in the order of documents: first sentence, sentence after the last one, and the "
    "number of tokens aimed at or, of blocks, the document.",
    num_columns=3,
)
SCAN_OFFSET = ArraySpec(
    "scan_offset",
    ("partition_bound", "partition_field"),
    "sample, target",
    "Sample and drawn target at which each run of documents that is scanned by itself starts.",
    num_columns=2,
)

DATASET_INDEX = ArraySpec(
    "dataset_index", ("sample",), "dataset id", "Dataset that each position of the run draws from."
)
DATASET_SAMPLE_INDEX = ArraySpec(
    "dataset_sample_index",
    ("sample",),
    "position in the dataset",
    "Which sample of that dataset stands at each position of the run.",
)
DATASET_WEIGHT = ArraySpec(
    "dataset_weight", ("dataset",), "share", "Weight of each dataset; all of them sum to 1."
)
DATASET_COUNT = ArraySpec(
    "dataset_count", ("dataset",), "samples", "Samples that the whole run draws of each dataset."
)

USED_WORD = ArraySpec(
    "used_word",
    ("word",),
    "64 bits",
    "Samples that an edited run has used, a bit for each, the lowest first; source after source.",
)
UNUSED_COUNT = ArraySpec(
    "unused_count",
    ("block",),
    "samples",
    "Unused samples of its source before each block of 64 words.",
)

# Arrays of each field of a record store; the field's name replaces the braces.
FIELD_VALUE = ArraySpec(
    "{}_value", ("{}_item",), "value", "Values of one field, record after record."
)
FIELD_OFFSET = _bounds(
    "{}_offset", "record", "values", "Place at which the values of each record start"
)
FIELD_FORM = ArraySpec(
    "{}_form",
    ("record",),
    "form",
    "What each record holds: 0 nothing, 1 bytes, 2 text in UTF-8, 3 JSON in UTF-8, 4 numbers.",
)
# Arrays of each field of the documents of a corpus, such as their id or url.
DOCUMENT_FIELD_VALUE = ArraySpec(
    "document_{}_value",
    ("document_{}_item",),
    "byte",
    "Values of one field of the documents' source, document after document.",
)
DOCUMENT_FIELD_OFFSET = _bounds(
    "document_{}_offset", "document", "bytes", "Place at which the value of each document starts"
)
DOCUMENT_FIELD_FORM = ArraySpec(
    "document_{}_form",
    ("document",),
    "form",
    "What each document has: 0 nothing, 1 bytes, 2 text in UTF-8, 3 JSON in UTF-8.",
)
KEY_TEXT = ArraySpec(
    "key_text", ("key_byte",), "byte", "Keys of all records in UTF-8, record after record."
)
KEY_TEXT_BOUND = _bounds(
    "key_text_bound", "record", "bytes", "Place at which the key of each record starts"
)
URL_TEXT = ArraySpec(
    "url_text", ("url_byte",), "byte", "Names of the files that the records are from, in UTF-8."
)
URL_TEXT_BOUND = _bounds(
    "url_text_bound", "url", "bytes", "Place at which the name of each file starts"
)
URL_RECORD_BOUND = _bounds("url_record_bound", "url", "records", "Record at which each file starts")
