"""Stores that grow: many writers commit generations of records, and readers follow the head.

::

    STORE/_zindex/growing.json       keys and dtypes of the records, fixed by the first append
    STORE/_zindex/log/<k>/<i>.json   commits, numbered from 1: appends, compactions, evictions
    STORE/_zindex/summary.json       the log up to some commit, so that opening reads few of them
    STORE/_zindex/files/<name>.bin   the values of one small generation
    STORE/_zindex/keys/<digest>.json the generation that an append with a key wrote
    STORE/_zindex/rounds/<reader>/   the records of each round of a reader
    STORE/records-<name>/            a Zarr store: large generations, and compacted ones

It is the commit protocol of all stores, repeated: values are written first, under a name of their
own; the commit is one small create-only file. Every commit has the next free number, so that the
file system or the object store orders all writers without locks. A generation is the number of a
commit, and means the store after it.
"""
