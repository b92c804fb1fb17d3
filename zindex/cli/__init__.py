"""The command line: a module for each family of commands, joined in ``commands``."""

from zindex.cli.commands import main

__all__ = ["main"]
