"""The command line: a module for each family of commands, joined in ``commands``."""

import signal

try:
    from zindex.cli.commands import main
except KeyboardInterrupt:  # commands that run say themselves what an interrupt leaves
    raise SystemExit(128 + signal.SIGINT) from None

__all__ = ["main"]
