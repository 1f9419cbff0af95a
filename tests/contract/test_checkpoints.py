"""Every method that is registered goes on from its checkpoint to where it would have come without an end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from scipy import sparse

import pymc_ep as pmep
from pymc_ep.compat import group, group_names
from pymc_ep.engines.base import Report
from pymc_ep.engines.checkpoint import Checkpoint, checkpoint
from pymc_ep.forms import able_methods, compiled_form, methods, registry

QUIET = {"draws": 20, "chains": 2, "random_seed": 1, "progressbar": False}
TIMES = {"compile_time", "run_time"}
TABLE = np.random.default_rng(2).poisson(1.5, 30)
X = np.linspace(0.0, 1.0, 6)[:, None]
KERNEL = np.exp(-0.5 * ((X - X.T) / 0.4) ** 2) + 1e-6 * np.eye(6)


def process():
    amp = pm.HalfNormal("amp", 1.0)
    f = pm.MvNormal("f", np.zeros(6), amp**2 * KERNEL)  # in a third of the time that PyMC takes to write a process
    pm.StudentT("y", nu=4.0, mu=f, sigma=pm.HalfNormal("noise", 1.0), observed=[1.0, 0.0, 3.0, 2.0, 7.0, 4.0])


def field():
    b = pm.HalfNormal("b", 1.0)
    u = pmep.SparseField("u", operator=np.diff(np.eye(8), axis=0), potential=pm.Laplace.dist(0, b))
    pm.Normal("y", u, 0.3, observed=np.repeat([0.0, 1.0], 4) + 0.3 * np.random.default_rng(1).normal(size=8))


def tree():
    low, high = (
        pm.Laplace.dist(0, pm.HalfNormal(name, np.array(size), shape=2, initval=np.full(2, size)))
        for name, size in (("low", 0.1), ("high", 2.0))
    )
    noisy = np.kron(np.eye(2), np.ones((4, 4))) + 0.3 * np.random.default_rng(1).normal(size=(8, 8))
    pm.Normal("y", pmep.WaveletTree("u", shape=(8, 8), levels=2, low=low, high=high), np.array(0.3), observed=noisy)


def counts_of_pairs():
    s = pm.HalfNormal("s", 1.0)
    V, U = pm.Normal("V", 0, s, shape=(6, 2)), pm.Normal("U", 0, 1, shape=(5, 2))
    pmep.BilinearPoisson("y", V, U, *np.divmod(np.arange(30), 5), link="softplus", observed=TABLE)


def comparisons():
    users, winners = np.repeat(np.arange(4), 6), np.random.default_rng(3).integers(0, 4, 24)
    losers = (winners + np.random.default_rng(4).integers(1, 4, 24)) % 4
    kernel = np.exp(-((np.arange(4.0)[:, None] - np.arange(4.0)) ** 2)) + 0.1 * np.eye(4)
    with pm.modelcontext(None) as model:
        model.add_coords({"user": range(4), "item": list("abcd")})
        f = pmep.PreferenceUtility("f", kernel=kernel, sigma=pm.HalfNormal("sigma", 1.0), dims=("user", "item"))
        pmep.PairwiseLogit("prefers", f, users=users, winners=winners, losers=losers)


def comparisons_with_flat_priors():
    users, winners = np.repeat(np.arange(4), 6), np.random.default_rng(3).integers(0, 4, 24)
    losers = (winners + np.random.default_rng(4).integers(1, 4, 24)) % 4
    with pm.modelcontext(None) as model:
        model.add_coords({"user": range(4), "item": list("abcd"), "factor": range(2)})
        V, b = pm.Flat("V", dims=("item", "factor")), pm.Flat("b", dims="item")
        sigma = pm.HalfFlat("sigma")
        f = pmep.PreferenceUtility("f", V=V, b=b, kernel=np.eye(4), sigma=sigma, n_users=4, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)


def pairs():
    scale = pm.HalfNormal("scale", 1.0)
    U, V = pm.Normal("U", 0, scale, shape=(8, 2)), pm.Normal("V", 0, 1, shape=(6, 2))
    views = sparse.csr_array(TABLE[:24].repeat(2).reshape(8, 6))
    pmep.PairedSymbols("views", U, V, pm.Normal("bu", 0, 1, shape=8), 0, observed=views)


def sequences():
    rng = np.random.default_rng(6)
    own = [rng.integers(0, 5, n) for n in (9, 1, 14, 4, 7, 12)]
    pmep.CollaborativeRNN("visits", n_items=5, hidden=3, spread=0.5, inputs=pm.Normal.dist(0, 1), observed=own)


MODELS = {
    "LatentGaussian": process,
    "SparseLinear": field,
    "Bilinear": counts_of_pairs,
    "Preferences": comparisons,
    "PairedSymbolsForm": pairs,
    "SequencesForm": sequences,
}
"""A model of each form; its methods are looked up."""
FURTHER = {
    "perturbed": (field, "dsb", {"variance": "perturb-and-map", "n_samples": 5, "outer": 20}),
    "full": (counts_of_pairs, "vg", {"covariance": "full"}),
    "ard": (counts_of_pairs, "vbmf", {"hyper": "fixed", "ard": True}),
    "sequential": (process, "ep", {"hyper": "fixed", "schedule": "sequential"}),
    "em": (comparisons_with_flat_priors, "ep", {"learn": "em", "held_out": 0, "max_iter": 15}),
    "held out": (comparisons_with_flat_priors, "ep", {"held_out": 0.2, "max_iter": 30}),
    "trees": (tree, "dsb", {"translations": 2, "outer": 5}),
    "trees by ep": (tree, "ep", {"translations": 2, "max_iter": 20}),
    "modes": (counts_of_pairs, "vbmf", {"hyper": "fixed", "init": "modes"}),
    "adam": (sequences, "ml", {"optimizer": "adam", "users_per_batch": 2, "batch": 4, "dropout": 0.2, "epochs": 4}),
    "damped": (process, "ep", {"hyper": "optimize", "damping": 0.7}),
}
"""States that the default options do not reach."""


def model_of(make):
    with pm.Model() as model:
        make()
    return model


shared_model = cache(model_of)
"""One model for many fits, so that it is compiled once."""


def cases():
    """Every method with each treatment of hyperparameters that it has, and further options."""
    out = {}
    for method in methods():
        make = MODELS[method.form.__name__]
        if method in able_methods(compiled_form(shared_model(make)).form):
            for hyper in method.hyper:
                if hyper != "sample":
                    out[f"{method.form.__name__} {method.name} {hyper}"] = make, method.name, {"hyper": hyper}
    return out | FURTHER


CASES = cases()
CASES.pop("SparseLinear map optimize")  # refused: a mode of scales and of what they scale is at zero


class Killed(BaseException):
    """The end of a process, which nothing catches."""


def fitted(make, method, options, written=shared_model):
    """The fit, without what it has to say about a few data; `written=model_of` has a model that was never compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        return pmep.fit(method, model=written(make), **QUIET, **options)


def assert_same(found, expected):
    """All numbers of two results agree to 1e-8, and all words."""
    assert group_names(found) == group_names(expected)
    for name in group_names(expected):
        one, other = group(found, name), group(expected, name)
        assert set(one.data_vars) == set(other.data_vars)
        for key in set(other.data_vars) - TIMES:
            if other[key].dtype.kind in "fiub":
                np.testing.assert_allclose(one[key], other[key], rtol=1e-8, atol=1e-8, err_msg=f"{name} {key}")
            else:
                assert (one[key].to_numpy() == other[key].to_numpy()).all()
    for word in ("status", "method"):
        assert group(found, "fit").attrs[word] == group(expected, "fit").attrs[word]


@pytest.fixture
def always_due(monkeypatch):
    """Every state is written, however quick an iteration is, but does not wait for the disk: no machine fails here."""
    monkeypatch.setattr(checkpoint, "_now", lambda: 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def kill_at(monkeypatch, count):
    """End the fit when it reports for the `count`-th time, without another write."""
    calls = []

    def killed(*_):
        calls.append(1)
        if len(calls) == count:
            raise Killed

    for name in ("__call__", "advance"):
        monkeypatch.setattr(Report, name, killed)
    monkeypatch.setattr(Checkpoint, "_save_at_end", lambda self: None)
    return calls


@pytest.mark.parametrize("name", CASES)
def test_ten_kills_change_nothing(name, tmp_path, monkeypatch, always_due):
    make, method, options = CASES[name]
    with monkeypatch.context() as context:
        reports = kill_at(context, -1)
        expected = fitted(make, method, options)
    rng, path, total = np.random.default_rng(5), tmp_path / "fit.npz", len(reports)
    for count in range(10):
        with monkeypatch.context() as context:
            kill_at(context, int(rng.integers(1, max(2, total // 5 + 2))))
            try:
                # The first to go on has compiled nothing, as in another process: all it knows is in the file.
                written = model_of if count == 1 else shared_model
                found = fitted(make, method, options | {"checkpoint": path}, written)
            except Killed:
                assert path.exists()
                continue
            break
    else:
        found = fitted(make, method, options | {"checkpoint": path})
    assert_same(found, expected)
    if bool(group(found, "fit")["converged"]):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_fit_goes_on(name, tmp_path, monkeypatch):
    make, method, options = CASES[name]
    expected, path, calls = fitted(make, method, options), tmp_path / "fit.npz", []

    def interrupted(*_):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(Report, "__call__", interrupted)
        fitted(make, method, options | {"checkpoint": path})
    assert_same(fitted(make, method, options | {"checkpoint": path}), expected)


@pytest.mark.parametrize("name", CASES)
def test_a_file_that_was_kept_is_a_whole_fit(name, tmp_path, monkeypatch):
    make, method, options = CASES[name]
    kept = options | {"checkpoint": tmp_path / "fit.npz", "keep_checkpoint": True}
    expected = fitted(make, method, kept)
    assert [one.name for one in tmp_path.iterdir()] == ["fit.npz"]
    assert_same(fitted(make, method, kept), expected)


def test_a_foreign_method_goes_on(tmp_path, monkeypatch):
    """The method of the page on methods: one argument of the loop is all that it does for checkpoints."""
    monkeypatch.setattr(registry, "_METHODS", {(m.name, m.form): m for m in methods()})
    page = Path(__file__).parents[2] / "docs" / "adding_a_method.md"
    namespace = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(block, page.name, "exec"), namespace)
    options = {"hyper": "fixed", "model": namespace["model"], "progressbar": False}
    with pytest.warns(pmep.ConvergenceWarning):
        pmep.fit("als", max_iter=3, checkpoint=tmp_path / "fit.npz", **options)
    states, init = [], namespace["AlternatingLeastSquares"].step
    monkeypatch.setattr(namespace["AlternatingLeastSquares"], "step", lambda *values: states.append(1) or init(*values))
    resumed = pmep.fit("als", checkpoint=tmp_path / "fit.npz", **options)
    assert len(states) == len(group(resumed, "fit")["objective"]) - 3
    assert_same(resumed, namespace["idata"])
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import os, signal, sys, threading
sys.path.insert(0, {here!r})
from test_checkpoints import KILLED, fitted, numbers

make, method, options = KILLED[{name!r}]
# Compiled once: what is killed is the fit.
fitted(make, method, options)
for seconds in {seconds!r}:
    child = os.fork()
    if not child:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        fitted(make, method, options | {{"checkpoint": {path!r}}})
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
if not {seconds!r}:
    print(numbers(fitted(make, method, options | {{"checkpoint": {path!r}}})))
"""
"""A process whose children are killed, and one without, which ends what they have begun."""
KILLED = {
    "integration": (process, "ep", {"hyper": "integrate"}),
    "ascent": (counts_of_pairs, "vg", {"covariance": "full", "tol": 1e-12}),
    "draws": (field, "dsb", {"variance": "perturb-and-map", "tol": 1e-8, "outer": 100}),
}
"""Fits whose state is more than its arrays: a search and chains between fits, L-BFGS, draws of a solver."""


def numbers(found):
    """The log evidence and all means of a fit."""
    means = [values.to_numpy().ravel() for _, values in sorted(group(found, "posterior_mean").data_vars.items())]
    return np.concatenate([*means, np.atleast_1d(group(found, "fit")["objective"])]).tolist()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", KILLED)
def test_ten_processes_killed_at_random_moments_change_nothing(name, tmp_path):
    make, method, options = KILLED[name]
    fitted(make, method, options)
    began = time.perf_counter()
    expected = numbers(fitted(make, method, options))
    longest, rng = time.perf_counter() - began, np.random.default_rng(7)
    text = {"here": os.path.dirname(__file__), "path": str(tmp_path / "fit.npz"), "name": name}  # noqa: PTH120
    scripts = [SCRIPT.format(seconds=s, **text) for s in ((rng.uniform(0.02, 0.3, 10) * longest).tolist(), [])]
    killed, last = (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for script in scripts
    )
    assert killed.split().count(str(int(signal.SIGKILL))) > 0
    np.testing.assert_allclose(json.loads(last), expected, rtol=1e-8, atol=1e-8)
    assert list(tmp_path.iterdir()) == []
