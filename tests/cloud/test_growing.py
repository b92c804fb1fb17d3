"""Growing stores in moto's object store."""

from tests.cloud.growing_contract import GrowingContract


class TestMoto(GrowingContract):
    """The contract, with moto."""
