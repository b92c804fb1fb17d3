"""The blends that a run asks for, and the samples that epochs of its datasets give."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from zindex.plan.build_plan import Order
from zindex.plan.epochs import plan_epochs

#: The shares by which the datasets of a run are blended.
BlendKind = Literal["weight", "tokens", "epochs", "sizes"]


@dataclass(frozen=True, slots=True)
class BlendRequest:
    """The blends that a run asks for; datasets with a share of 0 are left out."""

    kind: BlendKind
    #: Names of the datasets, for errors.
    datasets: tuple[str, ...]
    #: Weights, tokens or epochs of the datasets as given, each > 0; all 1 for ``"sizes"``.
    shares: tuple[float, ...]
    #: Most epochs of train to draw from each dataset; None for no limit.
    max_epochs: tuple[float | None, ...]
    #: Samples of the blend of each split; None or missing where the datasets decide.
    samples: Mapping[str, int | None]
    sequence_length: int
    #: 1 if a sample holds one token more than ``sequence_length``, else 0.
    extra_token: int
    order: Order = "megatron"
    #: Share of extra samples that are built beyond what the weights need.
    surplus: float = 0.005
    #: Whether valid drops a last, shorter sample.
    drop_last_partial_validation_sequence: bool = True

    def count_samples(self, num_epochs: float, tokens_per_epoch: int) -> int:
        """Return the most samples that a whole or fractional number of epochs gives.

        Notes
        -----
        The number is parsed as the decimal that was written: 0.7 epochs of 10 tokens are 7.
        """
        num_tokens = math.floor(Fraction(str(num_epochs)) * tokens_per_epoch)
        return max(0, (num_tokens - self.extra_token) // self.sequence_length)

    def count_epoch(self, split: str, tokens_per_epoch: int) -> int:
        """Return the samples of one epoch of a split, including a partial one that is kept."""
        if tokens_per_epoch == 0:
            return 0
        return plan_epochs(
            tokens_per_epoch,
            None,
            sequence_length=self.sequence_length,
            extra_token=self.extra_token,
            drop_last=split != "valid" or self.drop_last_partial_validation_sequence,
        ).num_samples
