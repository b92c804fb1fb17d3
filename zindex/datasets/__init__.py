"""Torch datasets under Megatron Core's names: replace ``megatron.core.datasets`` by this package.

Modules, classes and arguments have Megatron's names. The indices are built by ``zindex.indexing``,
and `zindex.samples` turns positions into tensors.
"""
