"""Run tasks inline, in threads, in processes or on Dask; their progress and timeline."""
