"""The commands ``zindex merge`` and ``zindex count``: ``.bin/.idx`` pairs as files."""
