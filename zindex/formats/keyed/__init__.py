"""Files of tokens by key: HDF5 groups, and folders of raw arrays with a ``meta.json``."""
