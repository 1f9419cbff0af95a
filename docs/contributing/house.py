"""Counts of the house: files and rooms that a fit enters, lines a room, names that two files share, bare ``Any``.

    python -m docs.contributing.house

It needs Python 3.12.
The layers are those of the import contract in ``pyproject.toml``. A climb is a call from a file into a layer above.
"""

import ast
import inspect
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_ep as pmep

ROOT = Path(pmep.__file__).parent


def main() -> None:
    """Print all counts."""
    print("| model | first fit: files | climbs | again: files | climbs |\n|---|---|---|---|---|")
    for name, (first, again) in entered().items():
        print(f"| {name} | {first.files} | {first.climbs} | {again.files} | {again.climbs} |")
    print("\n| room | files | lines |\n|---|---|---|")
    paths = sorted(ROOT.rglob("*.py"))
    for room in sorted({_room(path) for path in paths}):
        own = [path for path in paths if _room(path) == room]
        print(f"| {room} | {len(own)} | {sum(len(path.read_text().splitlines()) for path in own)} |")
    twice = Counter(name for path in paths for name in _top_level_names(path))
    shared = sorted(name for name, count in twice.items() if count > 1)
    print(f"\n{len(shared)} public names are defined in two files or more: {', '.join(shared)}")
    bare = sum(_bare_any(path) for path in paths)
    print(f"{bare} annotations are a bare Any")


class Entered(NamedTuple):
    """Files of the package that a fit enters, and pairs of files of which one calls one in a higher room."""

    files: int
    climbs: int


def entered() -> dict[str, tuple[Entered, Entered]]:
    """Return the counts of a first fit, recognition and compilation included, and of the same fit again, by model."""
    floors, out = _floors(), {}
    for name, (build, method) in MODELS.items():
        model = build()
        fit = partial(pmep.fit, method, model=model, progressbar=False, draws=10, chains=1, random_seed=1)
        counts = []
        for _ in range(2):
            calls = list(_calls(fit))
            climbs = {(a, b) for a, b in calls if floors[_room(b)] > floors[_room(a)]}
            counts.append(Entered(len({file for call in calls for file in call}), len(climbs)))
        out[name] = counts[0], counts[1]
    return out


def _floors() -> dict[str, int]:
    """Return the layer of each room, counted from the bottom."""
    contracts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers" and c["containers"] == ["pymc_ep"])
    out = {"__init__": len(layers)}
    for height, layer in enumerate(reversed(layers)):
        out |= {room.strip(" ()"): height for room in layer.split("|")}
    return out


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _calls(run: Callable[[], Any]) -> Iterator[tuple[Path, Path]]:
    """Yield the different pairs of files of which one calls a function of the other."""
    found: dict[tuple[str, str], None] = {}
    own = str(ROOT)

    def note(code: CodeType, _: int) -> Any:
        if not _is_function(code) or not code.co_filename.startswith(own):
            return sys.monitoring.DISABLE
        caller = sys._getframe(2)
        while caller is not None and not caller.f_code.co_filename.startswith(own):
            caller = caller.f_back
        # What is called while a module is imported belongs to no fit.
        if caller is not None and _is_function(caller.f_code) and caller.f_code.co_filename != code.co_filename:
            found[caller.f_code.co_filename, code.co_filename] = None
        return None

    events = sys.monitoring.events.PY_START
    sys.monitoring.use_tool_id(sys.monitoring.PROFILER_ID, "house")
    sys.monitoring.register_callback(sys.monitoring.PROFILER_ID, events, note)
    sys.monitoring.set_events(sys.monitoring.PROFILER_ID, events)
    try:
        run()
    finally:
        sys.monitoring.set_events(sys.monitoring.PROFILER_ID, 0)
        sys.monitoring.free_tool_id(sys.monitoring.PROFILER_ID)
    return ((Path(a), Path(b)) for a, b in found)


def _is_function(code: CodeType) -> bool:
    """Whether code is that of a function, and not the body of a module or a class."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def _top_level_names(path: Path) -> list[str]:
    kinds = ast.FunctionDef | ast.ClassDef
    names = (node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds))
    return [name for name in names if not name.startswith("_")]


def _bare_any(path: Path) -> int:
    """Count annotations of arguments, results and fields that are ``Any`` alone."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            found.append(node.returns)
    return sum(isinstance(one, ast.Name) and one.id == "Any" for one in found)


def _gaussian_process() -> pm.Model:
    x = np.linspace(0.0, 1.0, 30)[:, None]
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        scale = pm.InverseGamma("scale", 3.0, 1.0)
        f = pm.gp.Latent(cov_func=sd**2 * pm.gp.cov.Matern52(1, scale)).prior("f", x)
        pm.Poisson("y", pm.math.exp(f), observed=np.arange(30) % 5)
    return model


def _image() -> pm.Model:
    rng = np.random.default_rng(0)
    picture = np.kron(np.arange(16.0).reshape(4, 4) / 16.0, np.ones((8, 8)))
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        scale = pm.HalfNormal("scale", 1.0)
        potential = pm.Laplace.dist(0.0, scale)
        field = pmep.SparseField("u", operator=pmep.operators.Gradient2D((32, 32)), potential=potential)
        pm.Normal("y", field, sigma, observed=picture + 0.1 * rng.normal(size=picture.shape))
    return model


def _matrix() -> pm.Model:
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 40, 400), rng.integers(0, 30, 400)
    with pm.Model() as model:
        left = pm.Normal("left", 0.0, 1.0, shape=(40, 3))
        right = pm.Normal("right", 0.0, 1.0, shape=(30, 3))
        pmep.BilinearPoisson("y", left, right, rows=rows, cols=cols, observed=rng.poisson(1.0, 400))
    return model


def _preferences() -> pm.Model:
    rng = np.random.default_rng(0)
    users, winners = rng.integers(0, 20, 200), rng.integers(0, 8, 200)
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        utilities = pmep.PreferenceUtility("f", sigma=sigma, b=np.zeros(8), n_users=20)
        losers = (winners + rng.integers(1, 8, 200)) % 8
        pmep.PairwiseProbit("prefers", utilities, users=users, winners=winners, losers=losers)
    return model


def _pairs() -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        users, items = pm.Normal("U", 0.0, 1.0, shape=(40, 3)), pm.Normal("V", 0.0, 1.0, shape=(30, 3))
        pmep.PairedSymbols("seen", users, items, observed=rng.integers(0, 30, size=(300, 2)))
    return model


MODELS: dict[str, tuple[Callable[[], pm.Model], str]] = {
    "Gaussian process": (_gaussian_process, "ep"),
    "image": (_image, "dsb"),
    "matrix": (_matrix, "vg"),
    "preferences": (_preferences, "ep"),
    "pairs": (_pairs, "paired_vb"),
}

if __name__ == "__main__":
    main()
