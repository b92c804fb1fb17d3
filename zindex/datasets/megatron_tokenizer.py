"""The tokenizer base class that Megatron's datasets expect, under Megatron's module name."""

from zindex.text.tokenizers.base import MegatronTokenizer

__all__ = ["MegatronLegacyTokenizer", "MegatronTokenizer"]

#: Megatron Core's name of the same class since its own tokenizers moved.
MegatronLegacyTokenizer = MegatronTokenizer
