"""The commands ``zindex convert`` and ``zindex export``."""
