"""Run a Dask cluster on the nodes of a training job; idle CPU cores build the indices.

Enter ``with zindex.cluster.alongside(folder=...) as cluster:`` on every rank of a job. It starts
one scheduler and one worker per node, gives rank 0 a client, and stops them with the job.
"""

from zindex.cluster.job import JobPlace, find_job
from zindex.cluster.launch import Cluster, alongside

__all__ = ["Cluster", "JobPlace", "alongside", "find_job"]
