"""The command line: `python -m trio_mcp_resilient`, and `trio-mcp`."""

from __future__ import annotations

import sys

from trio_mcp_resilient._cli import main

if __name__ == "__main__":
    sys.exit(main())
