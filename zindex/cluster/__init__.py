"""Run a Dask cluster on the nodes of a training job; idle CPU cores build the indices.

Enter ``with zindex.cluster.alongside(folder=...) as cluster:`` on every rank of a job. It starts
one scheduler and one worker per node, gives rank 0 a client, and stops them with the job.
"""

from typing import TYPE_CHECKING

from zindex.lazy import lazy_names

if TYPE_CHECKING:
    from zindex.cluster.job import JobPlace as JobPlace
    from zindex.cluster.job import find_job as find_job
    from zindex.cluster.launch import Cluster as Cluster
    from zindex.cluster.launch import alongside as alongside

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
