"""Torch datasets under Megatron Core's names: replace ``megatron.core.datasets`` by this package.

Modules, classes and arguments have Megatron's names; a name that is imported ``as`` itself is one
that Megatron has in that module. The indices are built by ``zindex.indexing``,
and `zindex.samples` turns positions into tensors.
"""
