"""Every example, run as its first line says: a file of tests for each, as they take long."""
