"""The picture of the cost table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
# The same figures give the same file, and its words stay words.
matplotlib.rcParams.update({"svg.hashsalt": "trio_mcp_resilient", "svg.fonttype": "none"})

from matplotlib import pyplot  # noqa: E402

from tests.benchmarks.peers import PEERS  # noqa: E402

TITLES = {"json": "JSON answers", "sse": "SSE answers"}
EMPHASIZED = "ours"


def plot(cost: dict[str, Any], path: Path) -> None:
    """Draw CPU per call against concurrency, a line for each peer."""
    figure, panels = pyplot.subplots(1, len(cost), figsize=(9.5, 4.2), sharey=True, layout="constrained")
    for panel, (mode, by_width) in zip(panels, cost.items(), strict=True):
        widths = list(by_width)
        for peer in by_width[widths[0]]:
            costs = [by_width[width][peer].get("cpu_us") for width in widths]
            emphasis = {"linewidth": 3.0, "color": "black"} if peer == EMPHASIZED else {"linewidth": 1.3}
            panel.plot(widths, costs, marker="o", label=PEERS[peer].title, **emphasis)
        panel.set_title(TITLES[mode])
        panel.set_yscale("log")
        panel.set_xlabel("calls at a time")
        panel.grid(visible=True, axis="y", which="both", alpha=0.3)
    panels[0].set_ylabel("CPU microseconds per call")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
