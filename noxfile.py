"""What `.ci/run` does, by part: `nox -l` lists the parts, `nox -s lint` runs one.

With `--no-venv` a part runs in the environment that there is, where what it needs is installed already.
"""

import nox

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

PYMC5, PYMC6 = "3.11", "3.13"
"""Python decides on PyMC: 6 needs 3.12."""
PARALLEL = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]


def install(session: nox.Session, extras: str) -> None:
    """Install the checkout with some of its extras."""
    if session.virtualenv.is_sandboxed:
        session.install("-e", f".[{extras}]")


@nox.session(python=[PYMC5, PYMC6])
def tests(session: nox.Session) -> None:
    """Run everyday tests, or what is given after `--`."""
    install(session, "test,jax")
    session.run("python", "-m", "pytest", *(session.posargs or PARALLEL))


# A new environment each time: uv leaves a newer version where it finds one.
@nox.session(python=PYMC5, venv_backend="uv", reuse_venv=False)
def oldest(session: nox.Session) -> None:
    """Run everyday tests with the oldest versions that pyproject.toml admits."""
    session.install("--resolution", "lowest-direct", "-e", ".[test,jax]")
    # These old versions meet deprecations in newer ones of what they need themselves.
    session.run("python", "-m", "pytest", *(session.posargs or PARALLEL), "-W", "ignore::DeprecationWarning")


@nox.session(python=PYMC6)
def slow(session: nox.Session) -> None:
    """Run all tests listed in tests/slow.txt, with more arguments after `--`."""
    install(session, "test,jax")
    session.run("python", "-m", "pytest", *PARALLEL, "-m", "slow", *session.posargs)


@nox.session(python=PYMC5)
def slow_on_both(session: nox.Session) -> None:
    """Run those listed in tests/slow.txt for both stacks, with more arguments after `--`."""
    install(session, "test,jax")
    session.run("python", "-m", "pytest", *PARALLEL, "-m", "slow and not one_stack", *session.posargs)


@nox.session(python=PYMC5)
def lint(session: nox.Session) -> None:
    """Check style, types and layers."""
    install(session, "dev")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session(python=PYMC6)
def site(session: nox.Session) -> None:
    """Build the pages in build/site; a warning is an error."""
    install(session, "site")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
