"""``python -m tests.benchmarks``: all benchmarks, one after another; see `suite`."""

import sys

from tests.benchmarks.suite import main

if __name__ == "__main__":
    sys.exit(main())
