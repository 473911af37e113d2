"""What can be said of the dependencies without asking anybody but the package index: `nox -s audit`.

Not said is whether one of them has a known vulnerability: that takes a database of advisories.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL-2\.0)\b")
"""Licences that ask for no more than to be named; MPL-2.0 is certifi's, which is data."""
TOOLS = {"pip", "setuptools", "wheel"}
"""What an environment has before anything is installed in it."""
PINNED_BY_ANOTHER = {"pydantic-core"}
"""Direct dependencies of which another one wants one exact version."""


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unbounded() -> list[str]:
    """Direct dependencies without an oldest version; which one is tested then, nobody knows."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in declared if ">=" not in requirement]
    return sorted({normal(name) for name in names} - PINNED_BY_ANOTHER)


def licence_of(distribution: Distribution) -> str:
    """Return what a distribution says of its licence, in one of the three places for it."""
    metadata = distribution.metadata
    classifiers = [text for text in metadata.get_all("Classifier") or () if text.startswith("License ::")]
    found = [metadata.get("License-Expression"), metadata.get("License"), *classifiers]
    return "; ".join(text.strip().partition("\n")[0] for text in found if text)


def restricted() -> list[str]:
    """Installed distributions whose licence is none of those that everybody may build on."""
    licences = {normal(each.name): licence_of(each) for each in distributions()}
    return [
        f"{name} ({licence or 'no licence named'})"
        for name, licence in sorted(licences.items())
        if name not in TOOLS and not PERMISSIVE.search(licence)
    ]


def unsafe(report: dict[str, Any]) -> list[str]:
    """What pip would install that is withdrawn, has no hash, or runs code to be installed."""
    problems: list[str] = []
    for item in report["install"]:
        name, source = item["metadata"]["name"], item["download_info"]
        if item["is_direct"]:
            # Ourselves.
            continue
        if item.get("is_yanked"):
            problems.append(f"{name} was yanked from the index")
        if not source.get("archive_info", {}).get("hashes", {}).get("sha256"):
            problems.append(f"{name} has no sha256 in the index")
        if not source["url"].partition("#")[0].endswith(".whl"):
            problems.append(f"{name} is no wheel, and would run its own code to be installed")
    return problems


def main(report: Path) -> int:
    """Print what is wrong; return how many things are."""
    problems = [f"{name} has no oldest version" for name in unbounded()]
    problems += [f"{each}: is this licence one to build on?" for each in restricted()]
    problems += unsafe(json.loads(report.read_text()))
    print("\n".join(problems) or "nothing found")
    return len(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
