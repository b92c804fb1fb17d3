"""Epochs and sample counts of one dataset and split, in integers.

Notation: a run streams ``num_epochs * tokens_per_epoch`` tokens; sample j is tokens
``[j*S, j*S + S + x)`` of that stream, with S the sequence length and x the extra token.
Source: Megatron Core ``GPTDataset``; where it rounds in float32 we do not.
"""

from dataclasses import dataclass

from zindex.errors import PlanError

#: A last epoch of which a smaller share is needed is shuffled separately.
SEPARATE_SHARE = 0.80


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The epochs of a split, and the samples that they give."""

    num_epochs: int
    #: Whether the last epoch is shuffled separately, so that its surplus is at the end of the run.
    separate_final_epoch: bool
    #: Samples of all epochs: at least the number requested.
    num_samples: int
    #: Tokens of one epoch.
    tokens_per_epoch: int

    def count_sans_final(self, sequence_length: int, extra_token: int) -> int:
        """Return the samples that all epochs but the last give; 0 with a single epoch."""
        num_tokens = (self.num_epochs - 1) * self.tokens_per_epoch - extra_token
        return max(0, num_tokens) // sequence_length


def plan_epochs(
    tokens_per_epoch: int,
    num_samples: int | None,
    *,
    sequence_length: int,
    extra_token: int,
    drop_last: bool = True,
) -> EpochPlan:
    """Return the epochs that ``num_samples`` samples need.

    Parameters
    ----------
    tokens_per_epoch
        Tokens of the split, > 0.
    num_samples
        Samples requested; None means one epoch.
    sequence_length
        Tokens per sample, > 0.
    extra_token
        1 if each sample holds one token more than ``sequence_length``, else 0.
    drop_last
        Whether to drop a last sample with fewer tokens.

    Raises
    ------
    PlanError
        If the split has no tokens or the numbers are out of range.

    Examples
    --------
    27 tokens, samples of 4 + 1: one epoch gives 6 samples. Nine samples need 3 of a second epoch,
    which is therefore shuffled separately.

    >>> plan_epochs(27, 9, sequence_length=4, extra_token=1)
    EpochPlan(num_epochs=2, separate_final_epoch=True, num_samples=13, tokens_per_epoch=27)
    """
    if sequence_length < 1:
        raise PlanError(f"sequence_length must be at least 1, got {sequence_length}; set it")
    if num_samples is not None and num_samples < 0:
        raise PlanError(f"num_samples must be at least 0, got {num_samples}; leave it out for all")
    if tokens_per_epoch < 1:
        raise PlanError(
            f"a split must hold tokens, got {tokens_per_epoch} for {num_samples} samples; "
            "give it a larger share or ask for no samples of it"
        )
    wanted = (num_samples or 0) * sequence_length + extra_token
    num_epochs = max(1, -(-wanted // tokens_per_epoch))
    num_tokens = num_epochs * tokens_per_epoch - extra_token
    separate = False
    if num_samples is not None and num_epochs > 1:
        sans_final = ((num_epochs - 1) * tokens_per_epoch - extra_token) // sequence_length
        per_epoch = (tokens_per_epoch - extra_token) // sequence_length
        separate = num_samples - sans_final < int(SEPARATE_SHARE * per_epoch)
    num_full = num_tokens // sequence_length
    return EpochPlan(
        num_epochs=num_epochs,
        separate_final_epoch=separate,
        num_samples=num_full if drop_last else -(-num_tokens // sequence_length),
        tokens_per_epoch=tokens_per_epoch,
    )
