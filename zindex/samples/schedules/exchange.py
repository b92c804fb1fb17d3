"""Send sub-samples between ranks, on GPUs or, with Gloo, on CPUs."""

import importlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zindex.errors import ConfigError
from zindex.samples.collectives import gather_objects

Sample = dict[str, torch.Tensor]

#: Lengths of a sub-sample without and with padding, of shape (1,).
LENGTHS = ("original_seq_len", "padded_seq_len")

# Functions of Megatron Core's parallel_state that return the groups, and their arguments.
_GETTERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "dp_cp": ("get_data_parallel_group", {"with_context_parallel": True}),
    "dp": ("get_data_parallel_group", {}),
    "tp": ("get_tensor_model_parallel_group", {}),
    "pp": ("get_pipeline_model_parallel_group", {}),
    "cp": ("get_context_parallel_group", {}),
}


def find_class(module: str, name: str, default: Any) -> Any:
    """Return a class of Megatron Core, or another one if Megatron Core is not installed."""
    try:
        return getattr(importlib.import_module(f"megatron.core.{module}"), name)
    except ImportError:
        return default


def find_groups(collection: Any, names: Sequence[str], user: str) -> list[Any]:
    """Return process groups by Megatron Core's names.

    Parameters
    ----------
    collection
        Has them as attributes; None takes those of Megatron Core's ``parallel_state``.
    names
        Of the groups: ``dp_cp``, ``dp``, ``tp``, ``pp`` or ``cp``.
    user
        Who needs them, for messages.

    Raises
    ------
    ConfigError
        If one is missing.
    """
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    if collection is None:
        try:
            state = importlib.import_module("megatron.core.parallel_state")
        except ImportError as error:
            raise ConfigError(
                f"{user} needs process groups, megatron-core has none without being installed; "
                f"pass pg_collection with {listed}"
            ) from error
        groups = []
        for name in names:
            getter, settings = _GETTERS[name]
            groups.append(getattr(state, getter)(**settings))
    else:
        groups = [getattr(collection, name) for name in names]
    if any(group is None for group in groups):
        raise ConfigError(
            f"{user} needs the process groups {listed}, got {', '.join(map(str, groups))}; make "
            "all of them"
        )
    return groups


def find_device(group: Any) -> torch.device:
    """Return the device of the tensors that a process group sends."""
    if "nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class SampleLengths(NamedTuple):
    """The lengths of the sub-samples of all ranks, which are numbered rank by rank."""

    #: Tokens of each.
    lengths: list[int]
    #: Shape (ranks + 1,), int32: number of the first one of each rank, and of all.
    offsets: torch.Tensor

    def of_rank(self, rank: int) -> range:
        """Return the numbers of the sub-samples of a rank."""
        start, stop = self.offsets[rank : rank + 2].tolist()
        return range(start, stop)


def gather_lengths(lengths: Sequence[int], group: Any) -> SampleLengths:
    """Return the lengths of the sub-samples of all ranks of a group; a collective call."""
    gathered = gather_objects(list(lengths), group)
    offsets = torch.tensor([0, *accumulate(map(len, gathered))], dtype=torch.int32)
    return SampleLengths([*chain.from_iterable(gathered)], offsets)


def exchange(
    samples: Mapping[int, Sample],
    wanted: Sequence[Sequence[int]],
    sizes: SampleLengths,
    dp_group: Any,
    dp_cp_group: Any,
) -> dict[int, Sample]:
    """Send sub-samples to the ranks that process them, and return those received.

    A collective call. Ranks with other shares of the context have the same sub-samples, and send
    them to their own peers.

    Parameters
    ----------
    samples
        Sub-samples of this rank, at least one, by number. All ranks have the same names of tensors.
    wanted
        For each rank of ``dp_cp_group`` the numbers of its sub-samples.
    sizes
        Lengths of all sub-samples, in the order of the ranks of ``dp_group``.
    dp_group, dp_cp_group
        The data-parallel ranks with the same share of the context, and all of them.

    Returns
    -------
    received
        The sub-samples of this rank by number.
    """
    peers = [
        dist.get_group_rank(dp_cp_group, rank) for rank in dist.get_process_group_ranks(dp_group)
    ]
    num_ranks, device = dp_cp_group.size(), find_device(dp_cp_group)
    sent: list[list[int]] = [[] for _ in range(num_ranks)]
    for rank in peers:
        sent[rank] = [number for number in sorted(wanted[rank]) if number in samples]
    own = torch.tensor(sorted(wanted[dp_cp_group.rank()]), dtype=torch.int32)
    readers = torch.searchsorted(sizes.offsets, own, right=True) - 1
    received: list[list[int]] = [[] for _ in range(num_ranks)]
    for number, reader in zip(own.tolist(), readers.tolist(), strict=True):
        received[peers[reader]].append(number)
    outgoing, incoming = [*chain.from_iterable(sent)], [*chain.from_iterable(received)]
    found: dict[int, Sample] = {number: {} for number in incoming}
    for name, like in next(iter(samples.values())).items():
        rows = [1] * len(sizes.lengths) if name in LENGTHS else sizes.lengths
        none = torch.empty((0, *like.shape[1:]), dtype=like.dtype, device=device)
        parts = [samples[number][name].to(device, non_blocking=True) for number in outgoing]
        splits = [[sum(rows[n] for n in numbers) for numbers in side] for side in (received, sent)]
        values = none.new_empty((sum(splits[0]), *like.shape[1:]))
        dist.all_to_all_single(
            output=values,
            input=torch.cat([none, *parts]),
            output_split_sizes=splits[0],
            input_split_sizes=splits[1],
            group=dp_cp_group,
        )
        arrived = torch.split(values, [rows[number] for number in incoming])
        for number, value in zip(incoming, arrived, strict=True):
            found[number][name] = value
    return found
