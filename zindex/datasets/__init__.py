"""Torch datasets under Megatron Core's names: replace ``megatron.core.datasets`` by this package.

Modules, classes and arguments are called as there; what they read is built by ``zindex.building``.
"""
