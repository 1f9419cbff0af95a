"""The package as a whole: its names, its version, and what importing it costs."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import pymc_ep

PACKAGE = Path(pymc_ep.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path):
    """Yield the dotted name of every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_public_names_exist_and_are_unique():
    assert len(set(pymc_ep.__all__)) == len(pymc_ep.__all__)
    assert all(hasattr(pymc_ep, name) for name in pymc_ep.__all__)


def test_nothing_public_beside_all():
    """What is neither in ``__all__`` nor a room of the package has no business at its top."""
    rooms = {path.stem for path in PACKAGE.iterdir()}
    public = {name for name in vars(pymc_ep) if not name.startswith("_")}
    assert public - rooms <= set(pymc_ep.__all__)


def test_every_public_name_is_documented():
    without = [name for name in pymc_ep.__all__ if not (getattr(pymc_ep, name).__doc__ or "").strip()]
    assert not without


def test_version_is_that_of_the_distribution():
    assert pymc_ep.__version__ == version("pymc-ep")
    assert f"version: {pymc_ep.__version__}\n" in (PACKAGE.parent / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("library", ["jax", "numba"])
def test_accelerators_are_imported_in_their_rooms_only(library):
    """JAX and Numba, and PyTensor's dispatch that imports them, appear in files called after them, nowhere else."""
    roots = (library, f"pytensor.link.{library}.dispatch")
    strangers = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if path.stem != library and not path.stem.endswith(f"_{library}")
        if any(name == root or name.startswith(f"{root}.") for name in imported(path) for root in roots)
    ]
    assert not strangers


def test_slow_tests_exist():
    """By file and function: what a list of names says of tests that are gone would go unnoticed."""
    root = PACKAGE.parent
    lines = (root / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    listed = {line.partition("[")[0] for line in lines if line and not line.startswith("#")}
    files = {name.partition("::")[0] for name in listed}
    functions = {
        f"{file}::{node.name}"
        for file in files
        for node in ast.parse((root / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert listed <= functions | files


# PyMC and ArviZ import some of these on their own account, so that it counts who asks for them; of those that they
# leave alone it counts that they are not there.
WHO_IMPORTS = """
import builtins, sys
plain_import = builtins.__import__
def watched(name, globals=None, *rest, **more):
    importer = (globals or {{}}).get("__name__", "")
    if name.split(".")[0] in {libraries} or name.startswith("pytensor.link.jax.dispatch"):
        if importer.split(".")[0] == "pymc_ep":
            print(importer, "imports", name)
    return plain_import(name, globals, *rest, **more)
builtins.__import__ = watched
import pymc_ep
for room in {rooms}:
    plain_import("pymc_ep." + room)
pymc_ep.plots.plot_convergence
print(*({{"jax", "pylops"}} & sys.modules.keys()), end="")
"""


def test_importing_the_package_imports_no_heavy_library():
    """Neither what is optional nor what takes long; of every room of the package, and of its functions that plot."""
    rooms = sorted(path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py")
    # A module of Numba functions is imported where one is called.
    rooms = [room for room in rooms if not room.startswith("_") and not room.endswith("_numba")]
    code = WHO_IMPORTS.format(libraries={"jax", "matplotlib", "numba", "pylops", "skimage"}, rooms=rooms)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout == ""


LOADED = """
import sys
import pymc
before = set(sys.modules)
import pymc_ep
print(*sorted(set(sys.modules) - before))
"""
SYSTEMS = [path.parent.name for path in PACKAGE.glob("models/*/registration.py")]
PARTS = ("compiled", "engine", "form", "methods", "predict", "recognise", "registration")
"""Of a system: all but what a user writes in a model block, and the kernel that this may need."""
HEAVY = (
    *("dask", "distributed", "jax", "joblib", "matplotlib", "numba", "pyarrow", "pylops", "pywt", "skimage"),
    *(f"scipy.{room}" for room in ("integrate", "interpolate", "ndimage", "optimize", "spatial", "stats")),
    *(f"pymc_ep.models.{system}.{part}" for system in SYSTEMS for part in PARTS),
)
"""What the first function that needs it imports: libraries, and the forms with the engines that only they use."""


def test_importing_the_package_loads_nothing_unasked():
    """In a new process, beyond what `import pymc` loads by itself."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    loaded = done.stdout.split()
    assert "pymc_ep.fit" in loaded
    assert not [name for name in loaded if name.startswith(tuple(f"{heavy}." for heavy in HEAVY)) or name in HEAVY]
