"""A Dask cluster on the nodes of a training job: idle processors build what the ranks will read.

``with zindex.cluster.alongside(folder=...) as cluster:`` in every rank of a job starts one
scheduler and a worker per node, gives rank 0 a client, and ends all of them with the job.
"""

from zindex.cluster.job import JobPlace, find_job
from zindex.cluster.launch import Cluster, alongside

__all__ = ["Cluster", "JobPlace", "alongside", "find_job"]
