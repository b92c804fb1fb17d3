"""Megatron itself on zindex: its imports answered by ours, its command line built ahead."""

from zindex.megatron.install import install

__all__ = ["install"]
