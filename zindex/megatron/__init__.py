"""Megatron itself on zindex: its imports answered by ours, its command line built ahead."""
