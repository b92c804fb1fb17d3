"""Build every index of a Megatron training job ahead of time, from its command line.

Blends, sizes and dataset settings follow Megatron's rules. Source: ``megatron.training``, its
``arguments``, ``training`` and ``pretrain_*`` scripts.
"""

import argparse
import json
import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from zindex.datasets.bert_dataset import BERTMaskedWordPieceDataset
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.t5_dataset import T5MaskedWordPieceDataset
from zindex.datasets.utils import Blend, Split, get_blend_from_list
from zindex.errors import ConfigError
from zindex.execution.reconnecting_client import connect_client
from zindex.io.files import read_text
from zindex.megatron.install import set_defaults
from zindex.plan.split import SPLIT_NAMES

logger = logging.getLogger(__name__)

#: Kind of the model, which determines the class of the datasets.
Kind: TypeAlias = Literal["gpt", "bert", "t5"]

#: Requested samples of train, valid and test.
Sizes: TypeAlias = tuple[int, int | None, int]

# Megatron's --split for one blend without the argument.
_LEGACY_SPLIT = "969, 30, 1"


@dataclass(frozen=True, slots=True)
class TrainingArguments:
    """The arguments of a Megatron training script that determine its data."""

    kind: Kind
    #: Megatron's arguments by Megatron's names.
    values: argparse.Namespace
    blend: Blend | None
    blend_per_split: list[Blend | None] | None
    split: str | None
    #: Sizes of each phase of the training, in order; usually one phase.
    sizes: tuple[Sizes, ...]


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of exiting the process."""

    def error(self, message: str) -> NoReturn:
        """Raise for invalid arguments."""
        raise ConfigError(f"the Megatron arguments must be as for the training script: {message}")


def check_script(words: Sequence[str], kind: Kind | None = None) -> None:
    """Check that a command line names its training script; warn if there is no such file.

    Raises
    ------
    ConfigError
        If it names none, and the kind of the model is not given either.
    """
    script = _find_script(words)
    if script is None and kind is None:
        raise ConfigError(
            "the command line must name the training script, such as pretrain_gpt.py, got "
            f"{' '.join(words[:1]) or 'nothing'}; put the script first, or give kind (--kind)"
        )
    if script is not None and not os.path.exists(script):
        logger.warning(
            "there is no script %s here; unless kind (--kind) is given, it is taken from the name",
            script,
        )


def _find_script(words: Sequence[str]) -> str | None:
    """Return the script of a command line, which may begin with a launcher."""
    return next((word for word in words if word.endswith(".py")), None)


def parse_arguments(words: Sequence[str], kind: Kind | None = None) -> TrainingArguments:
    """Return the data arguments of a Megatron command line.

    Parameters
    ----------
    words
        The command line of the training job: the script and its arguments, optionally after a
        launcher and its options. Arguments that do not concern data are ignored.
    kind
        Kind of the model; None derives it from the script's name, by default ``"gpt"``.

    Raises
    ------
    ConfigError
        If a required argument is missing, or two contradict each other.
    FileNotFoundError
        If a file of data paths is missing.
    """
    words = list(words)
    script = _find_script(words)
    name = os.path.basename(script or "")
    if kind is None:
        kind = "bert" if "bert" in name else "t5" if "t5" in name else "gpt"
    given = words if script is None else words[words.index(script) + 1 :]
    values, _ = _make_parser().parse_known_args(given)
    _refuse_unprepared(values)
    blend, blend_per_split = _find_blends(values)
    split = values.split
    if blend is not None and split is None:
        split = _LEGACY_SPLIT
    return TrainingArguments(kind, values, blend, blend_per_split, split, _find_sizes(values))


def _make_parser() -> argparse.ArgumentParser:
    """Return a parser of the arguments that concern data, with Megatron's defaults."""
    parser = _Parser(prog="zindex prepare", allow_abbrev=False, add_help=False)
    for name in ("--data-path", *(f"--{split}-data-path" for split in SPLIT_NAMES)):
        parser.add_argument(name, nargs="*")
    for name in (
        *("--data-args-path", "--per-split-data-args-path", "--per-dataset-sequences-path"),
        *("--data-cache-path", "--object-storage-cache-path", "--yaml-cfg"),
        *("--split", "--phase-transition-iterations", "--dataloader-type"),
    ):
        parser.add_argument(name)
    for name in (
        *("--seq-length", "--encoder-seq-length", "--decoder-seq-length", "--vocab-size"),
        *("--train-iters", "--train-samples", "--global-batch-size", "--eval-global-batch-size"),
    ):
        parser.add_argument(name, type=int)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--eval-iters", type=int, default=100)
    parser.add_argument("--eval-interval", type=int, default=1000)
    parser.add_argument("--num-dataset-builder-threads", type=int, default=1)
    parser.add_argument("--mid-level-dataset-surplus", type=float, default=0.005)
    parser.add_argument("--mask-prob", type=float, default=0.15)
    parser.add_argument("--short-seq-prob", type=float, default=0.1)
    parser.add_argument("--rampup-batch-size", nargs="*")
    parser.add_argument("--bert-no-binary-head", action="store_false", dest="bert_binary_head")
    for name in (
        *("--mock-data", "--sft", "--full-validation", "--multiple-validation-sets"),
        "--no-mmap-bin-files",  # files are not memory-mapped without it either
    ):
        parser.add_argument(name, action="store_true")
    return parser


def _refuse_unprepared(values: argparse.Namespace) -> None:
    """Raise for a training job whose data need no index or are configured elsewhere."""
    reasons = {
        "--yaml-cfg": (values.yaml_cfg, "its settings are in a file; write them as arguments"),
        "--mock-data": (values.mock_data, "made-up data are never stored"),
        "--sft": (values.sft, "dialogues are read without an index"),
        "--dataloader-type external": (
            values.dataloader_type == "external",
            "its data do not come from Megatron's datasets",
        ),
    }
    for flag, (given, reason) in reasons.items():
        if given:
            raise ConfigError(f"a training with {flag} has no index to prepare: {reason}")


def _find_blends(values: argparse.Namespace) -> tuple[Blend | None, list[Blend | None] | None]:
    """Return one blend of all splits, or one per split."""
    own = [getattr(values, f"{split}_data_path") for split in SPLIT_NAMES]
    ways = {
        "--data-path": values.data_path,
        "--data-args-path": values.data_args_path,
        "--train-data-path, --valid-data-path and --test-data-path": next(
            (paths for paths in own if paths is not None), None
        ),
        "--per-split-data-args-path": values.per_split_data_args_path,
    }
    given = [way for way, value in ways.items() if value is not None]
    if len(given) != 1:
        raise ConfigError(
            f"data must be named in one way, got {' and '.join(given) or 'none'}; give one of "
            f"{'; '.join(ways)}"
        )
    if values.data_path is not None:
        return get_blend_from_list(values.data_path), None
    if values.data_args_path is not None:
        return get_blend_from_list(read_text(Path(values.data_args_path)).split()), None
    if values.per_split_data_args_path is not None:
        own = _read_own_paths(values.per_split_data_args_path)
    return None, [get_blend_from_list(paths) for paths in own]


def _read_own_paths(path: str) -> list[list[str] | None]:
    """Return the data paths of each split from a JSON file; a text is split at its spaces."""
    named = _read_json(path, "a list of paths for each split")
    missing = [split for split in SPLIT_NAMES if not isinstance(named, dict) or split not in named]
    if missing:
        raise ConfigError(
            f"{path} must have the keys {', '.join(SPLIT_NAMES)}, it lacks {', '.join(missing)}; "
            "write null for a split without data"
        )
    paths = [named[split] for split in SPLIT_NAMES]
    return [entry.split() if isinstance(entry, str) else entry for entry in paths]


def _read_json(path: str, content: str) -> Any:
    """Return the value of a JSON file; ``content`` is its description for the message."""
    try:
        return json.loads(read_text(Path(path)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} must be JSON, got {error}; write {content}") from error


def _find_sizes(values: argparse.Namespace) -> tuple[Sizes, ...]:
    """Return the requested samples of each split, for each phase."""
    batch_size = values.global_batch_size
    if batch_size is None:
        raise ConfigError(
            "--global-batch-size must be given, got none; Megatron would take it from the number "
            "of ranks, which is not known here"
        )
    if (values.train_iters is None) == (values.train_samples is None):
        raise ConfigError(
            "the length of the training must be given by --train-iters or by --train-samples, got "
            f"{'neither' if values.train_iters is None else 'both'}"
        )
    if values.train_samples is None:
        if values.rampup_batch_size is not None:
            raise ConfigError(
                "--rampup-batch-size must come with --train-samples, got --train-iters; say the "
                "samples"
            )
        iterations, train = values.train_iters, values.train_iters * batch_size
    else:
        iterations, train = _count_iterations(values), values.train_samples
    eval_batch_size = values.eval_global_batch_size or batch_size
    num_evaluations = iterations // values.eval_interval + 1 if values.eval_interval else 0
    valid = num_evaluations * values.eval_iters * eval_batch_size
    test = values.eval_iters * eval_batch_size
    of_valid = None if values.full_validation else valid
    return tuple((part, of_valid, test) for part in _split_phases(values, train, batch_size))


def _count_iterations(values: argparse.Namespace) -> int:
    """Return the iterations over the training samples, with a batch size that may ramp up."""
    samples, batch_size = values.train_samples, values.global_batch_size
    if values.rampup_batch_size is None:
        return int(samples // batch_size)
    try:
        first, step, ramp = map(int, values.rampup_batch_size)
        num_steps, rest = divmod(batch_size - first, step)
    except (ValueError, ZeroDivisionError):
        num_steps, rest = -1, 0
    if num_steps < 0 or rest:
        raise ConfigError(
            "--rampup-batch-size must be a first size, a step that leads from it to "
            f"--global-batch-size {batch_size}, and samples, got {values.rampup_batch_size}"
        )
    iterations = consumed = 0
    while consumed <= ramp:
        grown = num_steps if not num_steps else int(consumed / (ramp / num_steps))
        consumed += min(first + grown * step, batch_size)
        iterations += 1
    return int(iterations + max(samples - consumed, 0) // batch_size)


def _split_phases(values: argparse.Namespace, train: int, batch_size: int) -> list[int]:
    """Return the training samples of each phase."""
    if not values.phase_transition_iterations:
        return [train]
    try:
        ends = [int(part) for part in values.phase_transition_iterations.split(",")]
    except ValueError:
        raise ConfigError(
            "--phase-transition-iterations must be whole numbers with commas, got "
            f"{values.phase_transition_iterations!r}"
        ) from None
    bounds = [0, *(end * batch_size for end in sorted(ends)), train]
    phases = [after - before for before, after in pairwise(bounds)]
    if min(phases) <= 0:
        raise ConfigError(
            "--phase-transition-iterations must lie within the training of "
            f"{train // batch_size:,} iterations and differ, got {ends}"
        )
    return phases


def as_config(arguments: TrainingArguments, tokenizer: Any) -> Any:
    """Return the configuration that the training script would construct.

    Parameters
    ----------
    arguments
        The script's arguments.
    tokenizer
        Its tokenizer, or a placeholder if no item is read: indices do not depend on it.

    Returns
    -------
    config
        Configuration of GPT, BERT or T5 datasets.

    Raises
    ------
    ConfigError
        If the sequence length is missing, or a setting is out of range.
    """
    values = arguments.values
    common: dict[str, Any] = {
        "random_seed": values.seed,
        "blend": arguments.blend,
        "blend_per_split": arguments.blend_per_split,
        "split": arguments.split,
        "multiple_validation_sets": values.multiple_validation_sets or None,
        "full_validation": values.full_validation or None,
        "num_dataset_builder_threads": values.num_dataset_builder_threads,
        "path_to_cache": values.data_cache_path,
        "mid_level_dataset_surplus": values.mid_level_dataset_surplus,
        "tokenizer": tokenizer,
    }
    length = values.seq_length or values.encoder_seq_length
    if length is None:
        raise ConfigError("--seq-length must be given, got none; say the tokens of a sample")
    if arguments.kind == "gpt":
        from zindex.datasets.gpt_config import GPTDatasetConfig

        path = values.per_dataset_sequences_path
        counts = None if path is None else _read_json(path, "two numbers for each dataset")
        return GPTDatasetConfig(
            sequence_length=length,
            **common,
            # Settings of items; indices do not depend on them.
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            object_storage_cache_path=values.object_storage_cache_path,
            sequences_per_dataset=counts,
        )
    masking = {
        "sequence_length": values.encoder_seq_length or length,
        "masking_probability": values.mask_prob,
        "short_sequence_probability": values.short_seq_prob,
        "masking_do_full_word": True,
        "masking_do_permutation": False,
        "masking_use_longer_ngrams": False,
    }
    if arguments.kind == "bert":
        from zindex.datasets.bert_dataset import BERTMaskedWordPieceDatasetConfig

        return BERTMaskedWordPieceDatasetConfig(
            **common | masking,
            masking_max_ngram=3,
            masking_use_geometric_distribution=False,
            classification_head=values.bert_binary_head,
        )
    if values.decoder_seq_length is None:
        raise ConfigError("--decoder-seq-length must be given for T5, got none; say the tokens")
    from zindex.datasets.t5_dataset import T5MaskedWordPieceDatasetConfig

    return T5MaskedWordPieceDatasetConfig(
        **common | masking,
        masking_max_ngram=10,
        masking_use_geometric_distribution=True,
        sequence_length_decoder=values.decoder_seq_length,
    )


# Fill-in-the-middle datasets use GPT's index.
_CLASSES: dict[Kind, Any] = {
    "gpt": GPTDataset,
    "bert": BERTMaskedWordPieceDataset,
    "t5": T5MaskedWordPieceDataset,
}


@dataclass(frozen=True, slots=True)
class PreparedSplit:
    """A split of a training phase, whose stores are built."""

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

    A training job with the same arguments on zindex (`zindex.megatron.install`) then finds them in
    ``--data-cache-path``, except for small ones, which it computes; see ``max_computed_rows`` of
    `GPTDatasetConfig`.

    Parameters
    ----------
    words
        The command line: the script and its arguments, optionally after a launcher.
    kind
        ``"gpt"``, ``"bert"`` or ``"t5"``; None derives it from the script's name.
    client
        A ``distributed.Client`` or the address of a scheduler; None uses the process's current
        client, or this machine.
    defaults
        As for `zindex.megatron.install`; the training job must use the same.

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
            "--data-cache-path must be given, got none: prepared indices are stored there, and the "
            "training must be given the same"
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
