"""How long importing takes: `python -m tests.benchmarks.imports FIRST SECOND` prints seconds.

`FIRST` is imported before the clock runs and `SECOND` while it does; each is a comma-separated list.
"""

from __future__ import annotations

import importlib
import json
import sys
import time


def main() -> None:
    """Import as the command line says."""
    first, second = (names.split(",") for names in sys.argv[1:])
    for name in filter(None, first):
        importlib.import_module(name)
    began = time.perf_counter()
    for name in second:
        importlib.import_module(name)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
