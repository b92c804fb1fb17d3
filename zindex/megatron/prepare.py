"""Build every index of a Megatron training ahead, from its own command line."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from zindex.datasets.bert_dataset import BERTMaskedWordPieceDataset
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.t5_dataset import T5MaskedWordPieceDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError
from zindex.execution.reconnecting_client import connect_client
from zindex.megatron.arguments import Kind, Sizes, TrainingArguments, as_config, parse_arguments
from zindex.megatron.install import set_defaults

# Fill-in-the-middle datasets use GPT's index.
_CLASSES: dict[Kind, Any] = {
    "gpt": GPTDataset,
    "bert": BERTMaskedWordPieceDataset,
    "t5": T5MaskedWordPieceDataset,
}


@dataclass(frozen=True, slots=True)
class PreparedSplit:
    """A split of a training phase whose stores are built."""

    phase: int
    split: str
    num_samples: int
    num_datasets: int


class _NoTokenizer:
    """Placeholder of the tokenizer; no item is read."""

    eod = cls = sep = mask = bos = eos = 0
    inv_vocab: dict[int, str] = {}  # noqa: RUF012
    additional_special_tokens_ids: Sequence[int] = (0,)

    def __init__(self, vocab_size: int | None) -> None:
        self.vocab_size = vocab_size
        self.unique_identifiers: dict[str, Any] = {}


def prepare(
    words: Sequence[str], *, kind: Kind | None = None, client: Any = None, **defaults: Any
) -> list[PreparedSplit]:
    """Build every index, mapping and blend of a Megatron command line.

    A training with the same arguments on zindex (`zindex.megatron.install`) then finds them in
    ``--data-cache-path``, apart from small ones, which it computes; see ``max_computed_rows`` of
    `GPTDatasetConfig`.

    Parameters
    ----------
    words
        The command line: the script and its arguments, optionally after a launcher.
    kind
        ``"gpt"``, ``"bert"`` or ``"t5"``; None takes it from the script's name.
    client
        A ``distributed.Client`` or the address of a scheduler; None takes the process's current
        client, or this machine.
    defaults
        As for `zindex.megatron.install`; the training must use the same.

    Returns
    -------
    splits
        The built splits, phase by phase.

    Raises
    ------
    ConfigError
        If an argument is missing or contradicts another one.
    ZindexError
        If data are missing or damaged.
    """
    arguments = parse_arguments(words, kind)
    if arguments.values.data_cache_path is None:
        raise ConfigError(
            "--data-cache-path must be given, got none: what is prepared goes there, and the "
            "training must be told the same"
        )
    set_defaults(defaults)
    if isinstance(client, str):
        with connect_client(client) as connected, connected.as_current():
            return _build_phases(arguments)
    with nullcontext() if client is None else client.as_current():
        return _build_phases(arguments)


def _build_phases(arguments: TrainingArguments) -> list[PreparedSplit]:
    """Build the datasets of each phase."""
    config = as_config(arguments, _NoTokenizer(arguments.values.vocab_size))
    phases = [
        _build_phase(arguments.kind, config, sizes, phase)
        for phase, sizes in enumerate(arguments.sizes)
    ]
    return [split for splits in phases for split in splits]


def _build_phase(kind: Kind, config: Any, sizes: Sizes, phase: int) -> list[PreparedSplit]:
    """Build the datasets of a phase; indices that two phases share are built once."""
    datasets = BlendedMegatronDatasetBuilder(_CLASSES[kind], sizes, lambda: True, config).build()
    made = []
    for split, built in zip(Split, datasets, strict=True):
        for dataset in built if isinstance(built, list) else [built]:
            if dataset is None:
                continue
            members = dataset.datasets if isinstance(dataset, BlendedDataset) else [dataset]
            made.append(PreparedSplit(phase, split.name, len(dataset), len(members)))
    return made
