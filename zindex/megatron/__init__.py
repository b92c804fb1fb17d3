"""Run unmodified Megatron scripts on zindex's datasets, and build their indices ahead of time."""

from zindex.megatron.install import install

__all__ = ["install"]
