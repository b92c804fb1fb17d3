"""Edits of a run: the journal, consumed samples, and the plan of the edited run."""
