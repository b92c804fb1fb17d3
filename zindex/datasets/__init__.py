"""Torch datasets under Megatron Core's names: replace ``megatron.core.datasets`` by this package.

Modules, classes and arguments have Megatron's names; a name that is imported ``as`` itself exists
in Megatron's module of that name. ``zindex.indexing`` builds the indices, and `zindex.samples`
turns positions into tensors.
"""
