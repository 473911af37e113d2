"""What is checked before a change lands: `nox` runs all of it, `nox -s tests` one session."""

from __future__ import annotations

import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.reuse_venv = "yes"
# Cheap ones first; all run, also after one has failed. Asked for by name: `mutants`, `sdk_suite`, `fuzz`,
# `compare` and `bench`, which say more of the tests and of others than of a change.
nox.options.sessions = [
    "lint",
    "typing",
    "typing_legacy",
    "docs",
    "minimal",
    "audit",
    "package",
    "tests",
    "simulate",
    "conformance",
]

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml("pyproject.toml")
PACKAGE = "trio_mcp_resilient"
PLUGIN = "pytest_trio_mcp_resilient"
EXAMPLES = "docs/examples"
TYPED = [PACKAGE, f"{PLUGIN}.py", "tests/typing/api.py"]

OLD_SDK = "mcp==1.30.0"
"""The last SDK of the 1.x line, whose servers are still everywhere."""
TESTED_SDK = "mcp==2.3.0"
"""The one whose tests `tests/sdk_suite/suite.toml` knows."""
FASTMCP = "fastmcp==4.2.3"
NPM_SERVERS = [
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/sdk@1.32.2",
    "fastmcp@4.20.16",
    # Our server on fastmcp describes its tools by it.
    "zod@4.6.7",
]

# The suite needs a newer node than many machines have; npm has that too.
CONFORMANCE_SUITE = ["node@22", "@modelcontextprotocol/conformance@0.2.0-alpha.12"]

FLAKE8_ASYNC = [
    "flake8",
    "--select=ASYNC",
    # The 9xx rules are off unless each is named.
    "--enable=ASYNC,ASYNC900,ASYNC910,ASYNC911,ASYNC912,ASYNC913",
]
NOT_OURS = [
    # It says to leave httpx for its continuation. httpx is our public interface (`httpx.Auth`,
    # `httpx.AsyncClient`) and is what applications have; its default transport, the reason
    # for the rule, is not used unless the application brings it.
    "ASYNC127",
    # It wants each startable function in a list, by bare name, for ASYNC113; with two methods
    # called `run`, of which one is startable, the list would lie about the other.
    "ASYNC114",
]
# These ask that each way out of a function is a checkpoint. That is a promise to users, so it is
# held where users call in. Inside, a function that finds its work done returns at once: a
# checkpoint in each layer would cost every call several turns of the scheduler.
ONLY_AT_THE_FACE = ["ASYNC910", "ASYNC911"]
# Callbacks have to be async whether they wait or not, and one example is told by a server that it
# hands its `task_status` to.
NOT_IN_EXAMPLES = ["ASYNC124", "ASYNC128"]
FACE = [
    f"{PACKAGE}/{module}.py"
    for module in ("_client", "_open", "_pool", "_sdk_transport", "_httpx_transport", "testing")
]


def group(name: str) -> list[str]:
    """The requirements of one dependency group."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


@nox.session
def lint(session: nox.Session) -> None:
    """Style, common mistakes, and Trio's rules for async code."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run(*FLAKE8_ASYNC, f"--disable={','.join(NOT_OURS + ONLY_AT_THE_FACE)}", PACKAGE)
    session.run(*FLAKE8_ASYNC, f"--disable={','.join(NOT_OURS)}", *FACE)
    not_here = NOT_OURS + ONLY_AT_THE_FACE + NOT_IN_EXAMPLES
    session.run(*FLAKE8_ASYNC, f"--disable={','.join(not_here)}", EXAMPLES)


@nox.session
def typing(session: nox.Session) -> None:
    """Both type checkers, on the package and on every public spelling; nothing public untyped."""
    session.install("-e", ".[cli]", *group("typing"))
    # The examples by one of them: what they import of others is not all strict enough for pyright.
    session.run("mypy", *TYPED, EXAMPLES)
    # The command from the package index is a wrapper: it runs the checker by the machine's node.
    python = f"--pythonpath={session.bin}/python"
    session.run("pyright", python, *TYPED)
    # This one heeds no --pythonpath and knows installed packages only: away from the source, it
    # asks the `python` on the path, which is the session's.
    session.install("--no-deps", "--force-reinstall", ".")
    session.chdir(session.create_tmp())
    session.run("pyright", "--verifytypes", PACKAGE, "--ignoreexternal")


@nox.session
def typing_legacy(session: nox.Session) -> None:
    """Applications that still check with trio-typing, and so with mypy 1.8, can check against us."""
    session.install(".", *group("typing-legacy"))
    # From elsewhere, so that mypy meets the installed package, as an application's would.
    session.chdir(session.create_tmp())
    typing_tests = ROOT / "tests" / "typing"
    session.run("mypy", "--config-file", str(typing_tests / "legacy.ini"), str(typing_tests / "legacy.py"))


@nox.session
def docs(session: nox.Session) -> None:
    """The manual builds without a warning, every reference resolves, and its examples run."""
    session.install("-e", ".", *group("docs"))
    for builder in ("html", "doctest"):
        session.run(
            "sphinx-build", "-n", "-W", "--keep-going", "-q", "-b", builder, "docs", f"docs/_build/{builder}"
        )


@nox.session
def minimal(session: nox.Session) -> None:
    """The oldest version that we allow of each dependency passes the fast tests."""
    project = PYPROJECT["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["cli"]]
    oldest = [requirement.split(",")[0].replace(">=", "==") for requirement in required]
    session.install("-e", ".", *group("test"), *oldest)
    session.run("pip", "list", "--format=freeze")
    session.run("python", "-m", "pytest", "-q", "-m", "not real", *session.posargs)


@nox.session
def audit(session: nox.Session) -> None:
    """The dependencies, as far as the package index alone can tell: SECURITY.md says what that leaves out."""
    session.install(".")
    session.run("pip", "check")
    report = Path(session.create_tmp()).absolute() / "report.json"
    session.run("pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report), ".")
    session.run("python", "tests/audit.py", str(report))


@nox.session
def package(session: nox.Session) -> None:
    """What users install: build it, look at what is in it, and test it far from this folder."""
    session.install(*group("package"))
    tmp = Path(session.create_tmp()).absolute()
    dist, far = tmp / "dist", tmp / "far"
    for folder in (dist, far):
        shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist))
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_contents(session, wheel, sdist)
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.install(str(wheel), *group("test"))
    # A folder without the package, so that `trio_mcp_resilient` can only be the installed one.
    for folder in ("tests", "docs", "changelog.d"):
        shutil.copytree(ROOT / folder, far / folder, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(ROOT / file, far)
    session.chdir(far)
    session.run("python", "-c", f"import {PACKAGE} as p; assert 'site-packages' in p.__file__, p.__file__")
    # Without the extra: the first thing that people try.
    session.run("python", "-m", PACKAGE, "demo")
    session.run("trio-mcp", "--version")
    session.install(f"{wheel}[cli]")
    check_plugin(session, tmp / "alone")
    session.run("python", "-m", "pytest", "-q", "-m", "not real", *session.posargs)


def check_plugin(session: nox.Session, folder: Path) -> None:
    """In a project that says nothing of it, pytest finds the plugin, and without pytest-trio too."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "examples", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "test_plain.py").write_text("def test_plain(): pass\n", encoding="utf-8")
    # Settings of its own, or pytest would find ours further up.
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    with session.chdir(folder):
        session.run("python", "-m", "pytest", "-q", "-o", "trio_mode=true")
        session.run("python", "-m", "pytest", "-q", "-p", "no:trio", "test_plain.py")


INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def check_contents(session: nox.Session, wheel: Path, sdist: Path) -> None:
    """The wheel holds the package and nothing else; the sdist also what is needed to test it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    info = f"{PACKAGE}-{version}.dist-info"
    modules = {f"{PACKAGE}/{path.name}" for path in (ROOT / PACKAGE).glob("*.py")}
    modules |= {f"{PACKAGE}/py.typed", f"{PLUGIN}.py"}
    metadata = {f"{info}/{name}" for name in INFO}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    if in_wheel != modules | metadata:
        session.error(f"the wheel differs from the list by {sorted(in_wheel ^ (modules | metadata))}")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    needed = modules | {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        ".pre-commit-config.yaml",
        "changelog.d/README.md",
        "docs/index.md",
        "docs/examples/agent.py",
        "docs/images/cost.svg",
        "SECURITY.md",
        "noxfile.py",
        "pyproject.toml",
        "tests/conftest.py",
    }
    if missing := needed - in_sdist:
        session.error(f"the sdist lacks {sorted(missing)}")
    if stray := {name for name in in_sdist if name.endswith((".pyc", ".coverage")) or "/_build" in name}:
        session.error(f"the sdist has {sorted(stray)} in it")


@nox.session
def tests(session: nox.Session) -> None:
    """Every test, against the newest dependencies and against other people's real servers."""
    session.install("-e", ".[cli]", *group("coverage"))
    servers = {
        "MCP1_PYTHON": python_with(session, "mcp1", OLD_SDK, "uvicorn"),
        "FASTMCP_PYTHON": python_with(session, "fastmcp", FASTMCP),
        "NPM_FOLDER": str(npm_install(session, "npm", NPM_SERVERS)),
    }
    session.run("coverage", "run", "-m", "pytest", *session.posargs, env=servers)
    session.run("coverage", "report")


def python_with(session: nox.Session, name: str, *requirements: str) -> str:
    """Make an environment for servers that cannot share ours; return its Python."""
    folder = Path(session.create_tmp()).absolute() / name
    python = folder / "bin" / "python"
    if not python.exists():
        session.run("python", "-m", "venv", str(folder))
    session.run(str(python), "-m", "pip", "install", "--quiet", *requirements, external=True)
    return str(python)


@nox.session
def simulate(session: nox.Session) -> None:
    """Seeded worlds full of faults: `nox -s simulate -- --runs N --seed S`, or `-- --faults 1000000`.

    The default is over twelve thousand sessions, the same on every machine: most against the scripted
    server, the rest against the SDK's own, behind an HTTP server that runs on Trio.
    """
    session.install("-e", ".", *group("test"))
    if session.posargs:
        session.run("python", "-m", "tests.simulation", *session.posargs)
        return
    session.run("python", "-m", "tests.simulation", "--runs", "7200")
    session.run("python", "-m", "tests.simulation", "--runs", "800", "--real")
    session.run("python", "-m", "tests.simulation", "--runs", "1000", "--eras")


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Bytes that no server means to send: `nox -s fuzz -- --seconds 600`, or `-- --seed N TARGET`.

    A slice of it, from one seed, is among the tests.
    """
    session.install("-e", ".", *group("test"))
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Deliberate faults in the package, each of which a test or the simulation has to notice."""
    session.install("-e", ".[cli]", *group("test"))
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """The public conformance suite, on the client and on the scripted server."""
    session.install("-e", ".")
    folder = npm_install(session, "suite", CONFORMANCE_SUITE)
    session.run("python", "tests/conformance/run.py", str(folder), *session.posargs)


@nox.session(default=False)
def sdk_suite(session: nox.Session) -> None:
    """The tests of the SDK's own client, from its source distribution, against ours."""
    session.install("-e", ".", *group("sdk-suite"))
    folder = Path(session.create_tmp()).absolute() / "sdist"
    if not list(folder.glob("mcp-*.tar.gz")):
        source = ["--no-deps", "--no-binary=mcp", "-d", str(folder)]
        session.run("pip", "download", "--quiet", *source, TESTED_SDK)
    session.run("python", "tests/sdk_suite/run.py", str(folder), *session.posargs)


def npm_install(session: nox.Session, name: str, packages: list[str]) -> Path:
    """Install npm packages of exact versions into a folder of the session's own; return the folder."""
    folder = Path(session.create_tmp()).absolute() / name
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    session.run(
        "npm", "install", *quiet, "--prefer-offline", "--prefix", str(folder), *packages, external=True
    )
    return folder


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure every peer and ourselves, in one run: `nox -s bench`, or `nox -s bench -- --quick`.

    Prints the tables and saves them below docs/_build/benchmarks. Wants an idle machine.
    """
    session.install("-e", ".", *group("bench"))
    session.run("python", "-m", "tests.benchmarks", *pythons(session), *session.posargs)


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """Lose sessions under every client, and print what became of the calls: `nox -s compare`."""
    session.install("-e", ".", *group("bench"))
    session.run("python", "-m", "tests.benchmarks.comparison", *pythons(session), *session.posargs)


def pythons(session: nox.Session) -> list[str]:
    """Make the environments of peers that each want a version of the SDK of their own; return options."""
    peers = {"mcp1": OLD_SDK, "fastmcp": FASTMCP}
    return [f"--python={name}={python_with(session, name, peer)}" for name, peer in peers.items()]
