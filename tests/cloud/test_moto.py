"""Stores in moto's object store."""

from tests.cloud.contract import ObjectStoreContract


class TestMoto(ObjectStoreContract):
    """The contract, with moto."""
