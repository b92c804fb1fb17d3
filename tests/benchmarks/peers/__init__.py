"""The peers: other libraries that shuffle, blend and divide samples, each in an environment apart.

They do not fit into one environment (MosaicML Streaming asks for an older numpy), so each has its
own, with the versions in ``<name>.txt``; ``python -m tests.benchmarks.peers`` makes them. What a
contender does is one file of ``run_*.py``, which imports its library, numpy and `measuring` only.
"""
