"""Format runs, blends, packing, journals and lengths as tables and JSON."""
