"""The tokenizer base class that Megatron's datasets expect, under Megatron's module name."""

from zindex.text.tokenizers.base import MegatronTokenizer

__all__ = ["MegatronLegacyTokenizer", "MegatronTokenizer"]

#: Megatron Core's current name of this class, since its own tokenizers moved.
MegatronLegacyTokenizer = MegatronTokenizer
