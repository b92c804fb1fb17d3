"""A Dask cluster beside training: each node's idle processors build what its ranks will read.

``with zindex.cluster.alongside(folder=...) as cluster:`` in every rank of a job starts a scheduler
once and a worker per node, gives rank 0 a client, and ends everything with the job.
"""

from zindex.cluster.alongside import Cluster, alongside
from zindex.cluster.job import JobPlace, find_job

__all__ = ["Cluster", "JobPlace", "alongside", "find_job"]
