"""Changing a run: its journal, what it has used of its datasets, and the run that goes on."""
