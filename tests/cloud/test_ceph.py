"""Stores in Ceph's object gateway, a server of another make."""

from collections.abc import Iterator

import pytest

from tests.cloud.ceph import ceph_server, missing_programs
from tests.cloud.contract import ObjectStoreContract
from tests.cloud.growing_contract import GrowingContract
from tests.cloud.servers import ObjectServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing_programs()),
        reason="needs Debian's ceph-mon, ceph-mgr, ceph-osd, radosgw and ceph-common",
    ),
]


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with ceph_server(tmp_path_factory.mktemp("ceph")) as server:
        yield server


class TestCeph(ObjectStoreContract, GrowingContract):
    """The contract, with Ceph."""

    @pytest.fixture
    def server(self, ceph: ObjectServer) -> ObjectServer:
        return ceph
