"""Tables and JSON of runs, blends, packing, journals and lengths; formatting only."""
