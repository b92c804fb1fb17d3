"""Document, sample, shuffle, packing, mapping and blend indices, and whole runs, as tasks."""
