"""Make attention masks of T5 batches in the shapes that attention kernels expect.

Source: Megatron Core ``T5MaskedWordPieceDataset.config_attention_mask``.
"""

import importlib
import importlib.metadata
import os
from typing import TypeAlias

import torch
from packaging.version import Version

from zindex.errors import ConfigError

#: Mask of the decoder's attention to the encoder: for all pairs of tokens, or for one side.
CrossMask: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

# First versions of Transformer Engine whose fused kernels, and then all, take padding masks.
_FUSED, _ALL = Version("1.7.0"), Version("1.10.0")


def build_pair_mask(
    source_block: torch.Tensor, target_block: torch.Tensor, make_history_mask: bool = False
) -> torch.Tensor:
    """Return the pairs of tokens that must not attend to each other.

    Parameters
    ----------
    source_block
        Shape (samples, queries): tokens, below 1 in padding.
    target_block
        Shape (samples, keys): tokens, below 1 in padding.
    make_history_mask
        Whether keys after the query are masked too; then there are as many keys as queries.

    Returns
    -------
    mask
        Shape (samples, 1, queries, keys), bool, True where masked.
    """
    is_seen = (source_block >= 1)[:, :, None] & (target_block >= 1)[:, None, :]
    if make_history_mask:
        is_seen = is_seen.tril()
    return ~is_seen.unsqueeze(1)


def choose_attention_masks(
    encoder_tokens: torch.Tensor,
    decoder_tokens: torch.Tensor,
    encoder_mask: torch.Tensor,
    decoder_mask: torch.Tensor,
    use_local: bool = False,
    test_te_version: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, CrossMask]:
    """Return the attention masks of a T5 batch for the model's attention.

    Parameters
    ----------
    encoder_tokens, decoder_tokens
        Shape (samples, tokens): ``text_enc`` and ``text_dec``.
    encoder_mask, decoder_mask
        Shape (samples, tokens): ``enc_mask`` and ``dec_mask``, in the dtype wanted.
    use_local
        Whether the model uses Megatron's own attention instead of Transformer Engine's.
    test_te_version
        The version of Transformer Engine; None uses the installed one.

    Returns
    -------
    encoder_mask, decoder_mask, encoder_decoder_mask
        Megatron's own attention: three masks of pairs, see `build_pair_mask`. Transformer Engine:
        the encoder's padding mask of shape (samples, 1, 1, tokens), None for the decoder, whose
        attention is causal, and a tuple of the decoder's and the encoder's padding masks. Before
        1.10, without fused or flash attention, the first and the last are masks of pairs.

    Raises
    ------
    ConfigError
        If Transformer Engine before 1.7 is to use fused or flash attention, or it is not installed
        and no version is given.
    """
    if use_local:
        return (
            build_pair_mask(encoder_tokens, encoder_tokens),
            build_pair_mask(decoder_tokens, decoder_tokens, make_history_mask=True),
            build_pair_mask(decoder_tokens, encoder_tokens),
        )
    version = Version(test_te_version) if test_te_version is not None else _installed_version()
    encoder_mask = encoder_mask.unsqueeze(1).unsqueeze(1)
    decoder_mask = decoder_mask.unsqueeze(1).unsqueeze(1)
    is_fused = any(os.getenv(name) == "1" for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"))
    if is_fused and version < _FUSED:
        raise ConfigError(
            "flash and fused attention need Transformer Engine 1.7 or later for T5, got "
            f"{version}; set NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=0, or take a later one"
        )
    if is_fused or version >= _ALL:
        return encoder_mask, None, (decoder_mask, encoder_mask)
    return (
        build_pair_mask(encoder_tokens, encoder_tokens),
        None,
        build_pair_mask(decoder_tokens, encoder_tokens),
    )


def _installed_version() -> Version:
    """Return the version of Transformer Engine."""
    try:
        module = importlib.import_module("transformer_engine")
        known = getattr(module, "__version__", None)
        return Version(str(known or importlib.metadata.version("transformer-engine")))
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        raise ConfigError(
            "attention masks for Transformer Engine need its version, got none: it cannot be "
            "imported; install it, or set use_local=True for Megatron's own attention"
        ) from error
