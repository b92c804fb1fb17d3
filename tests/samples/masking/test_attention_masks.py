"""Masks for T5's attention; their values are compared with Megatron Core's in tests/oracle."""

import sys
from types import SimpleNamespace

import pytest
import torch

from zindex.errors import ConfigError
from zindex.samples.masking.attention_masks import build_pair_mask, choose_attention_masks

TOKENS = torch.tensor([[4, 5, 0]])
MASK = torch.tensor([[1, 1, 0]])


def test_pairs() -> None:
    mask = build_pair_mask(TOKENS, TOKENS[:, 1:])
    assert mask.tolist() == [[[[False, True], [False, True], [True, True]]]]
    past = build_pair_mask(TOKENS, TOKENS, make_history_mask=True)
    assert (~past).tolist() == [[[[True, False, False], [True, True, False], [False] * 3]]]


def test_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_engine", SimpleNamespace(__version__="2.1"))
    encoder, decoder, both = choose_attention_masks(TOKENS, TOKENS, MASK, MASK)
    assert encoder.shape == (1, 1, 1, 3)
    assert decoder is None
    assert isinstance(both, tuple)
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(ConfigError, match="need its version, got none: it cannot be imported"):
        choose_attention_masks(TOKENS, TOKENS, MASK, MASK)
