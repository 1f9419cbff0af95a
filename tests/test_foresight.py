"""What a fit takes is told before anything large is formed, whatever its form and method."""

import logging
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from pytensor.sparse import as_sparse_variable

import pymc_ep as pmep
from pymc_ep.calls import cost_of
from pymc_ep.contracts.method import Call
from pymc_ep.forms import compiled_form, get_method
from pymc_ep.numerics import memory
from pymc_ep.operators import Convolution2D, Gradient2D

PEAK = """
import sys
from pathlib import Path
import pymc_ep as pmep
sys.path.insert(0, sys.argv[1])
from test_foresight import cost_of_fit, {make}

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

pmep.fit({method!r}, model={make}(*{small}), draws=0, progressbar=False, hyper="fixed", **{options})
before, model = peak(), {make}(*{large})
pmep.fit({method!r}, model=model, draws=0, progressbar=False, hyper="fixed", **{options})
print((peak() - before) / cost_of_fit(model, {method!r}, **{options}).memory)
"""


def cells(n_rows, n_cols, d, n):
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, n_rows, n), rng.integers(0, n_cols, n)
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(n_rows, d)), pm.Normal("U", 0, 1, shape=(n_cols, d))
        pmep.BilinearPoisson("y", V, U, rows, cols, link="softplus", observed=rng.poisson(1.0, n))
    return model


def pairs(n_users, n_items, d, n):
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        U, V = pm.Normal("U", 0, 1, shape=(n_users, d)), pm.Normal("V", 0, 1, shape=(n_items, d))
        observed = np.stack([rng.integers(0, n_users, n), rng.integers(0, n_items, n)], axis=1)
        pmep.PairedSymbols("y", U, V, observed=observed)
    return model


def image(n):
    blur = Convolution2D((n, n), np.full((3, 3), 1 / 9), boundary="periodic")
    with pm.Model() as model:
        b = pm.HalfNormal("b", 1.0)
        u = pmep.SparseField("u", operator=Gradient2D((n, n)), potential=pm.Laplace.dist(0, b))
        y = np.random.default_rng(0).normal(size=(n, n))
        pm.Normal("y", pmep.apply_operator(blur, u), 1.0, observed=y)
    return model


def walk(n):
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        path = pm.GaussianRandomWalk("path", mu=0.0, sigma=sigma, init_dist=pm.Normal.dist(0.0, 2.0), shape=n)
        pm.Poisson("y", pm.math.exp(path), observed=np.arange(n) % 3)
    return model


def cost_of_fit(model, method, hyper="fixed", sampling=None, **options):
    form = compiled_form(model)
    return cost_of(get_method(method, form.form), Call(form, form.start, hyper, options=options), sampling or {})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak memory as Linux tells it")
@pytest.mark.parametrize(
    ("make", "small", "large", "method", "options"),
    [
        ("cells", (1000, 900, 5, 60_000), (2000, 2000, 20, 20_000), "vg", {"covariance": "full", "max_iter": 5}),
        ("cells", (1000, 900, 5, 60_000), (3000, 2000, 5, 600_000), "vbmf", {"max_iter": 2}),
        ("pairs", (1000, 900, 20, 60_000), (30_000, 10_000, 20, 60_000), "paired_vb", {"max_iter": 4}),
        ("image", (24,), (96,), "dsb", {"outer": 2}),
        ("image", (24,), (256,), "dsb", {"outer": 1, "variance": "perturb-and-map"}),
        ("image", (24,), (64,), "ep", {"max_iter": 3}),
    ],
    ids=["cells_with_covariances", "cells_by_vbmf", "pairs", "images_by_factors", "images_by_draws", "images_by_ep"],
)
def test_memory_is_told_within_a_factor_of_two(make, small, large, method, options):
    """Peak of a process over what a smaller fit by the same compiled functions took."""
    script = PEAK.format(make=make, small=small, large=large, method=method, options=options)
    command = [sys.executable, "-W", "ignore", "-c", script, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.5 < float(done.stdout) < 2.0


@pytest.mark.parametrize(
    ("make", "method", "options", "message"),
    [
        (
            lambda: cells(30, 20, 2, 100),
            "vg",
            {},
            r"'y' with 100 cells of 30 rows and 20 columns needs 0\.0 GB.*fewer factors",
        ),
        (
            lambda: cells(30, 20, 2, 100),
            "vg",
            {"covariance": "full"},
            r"rows of 2 factors with covariances.*'diagonal'",
        ),
        (lambda: cells(30, 20, 2, 100), "vbmf", {}, r"'y' with 100 cells .*rows of 2 factors and 100 cells"),
        (
            lambda: pairs(30, 20, 2, 100),
            "paired_vb",
            {},
            r"'y' with 100 rows of pairs and 50 symbols needs.*partitions=",
        ),
        (lambda: image(8), "dsb", {"variance": "perturb-and-map"}, r"A fit of 64 unknowns needs.*30 draws.*n_samples="),
        (lambda: image(8), "map", {}, r"A fit of 64 unknowns needs|Exact variances of 64 unknowns need"),
        (
            lambda: walk(10),
            "ep",
            {"hyper": "sample"},
            r"A fit of 10 observations needs.*matrices of 10 x 10 in each of 2 proc",
        ),
    ],
    ids=["vg", "vg_with_covariances", "vbmf", "paired_vb", "dsb", "map", "chains"],
)
def test_a_fit_that_exceeds_the_memory_is_refused_before_it_begins(make, method, options, message, monkeypatch):
    monkeypatch.setattr(memory, "_free_memory", lambda: 1000)
    options = {"hyper": "fixed"} | options
    if options["hyper"] == "sample":
        options["sample_kwargs"] = {"cores": 2}
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.fit(method, model=make(), **options)


@pytest.mark.parametrize(
    ("make", "sizes"), [(cells, (30, 20, 2, 100)), (pairs, (30, 20, 2, 100)), (image, (8,)), (walk, (10,))]
)
def test_explain_tells_the_cost(make, sizes):
    assert re.search(r"\ncost +about 1 MB of memory and \d s\n", pmep.explain(make(*sizes)))


def test_explain_tells_that_a_fit_would_be_refused(monkeypatch):
    monkeypatch.setattr(memory, "_free_memory", lambda: 1000)
    assert re.search(
        r"\ncost +A fit of 10 observations needs 0\.0 GB, and .* are free: 12 matr", pmep.explain(walk(10))
    )


def test_an_autoregression_is_explained_without_its_matrices():
    """A matrix of 3000 x 3000 values has 72 MB, and several of them told that the mean is zero."""
    with pm.Model() as model:
        path = pm.AR("path", rho=[0.5, 0.2], sigma=1.0, init_dist=pm.Normal.dist(0.0, 1.0, shape=2), shape=3000)
        pm.Poisson("y", pm.math.exp(path), observed=np.zeros(3000))
    tracemalloc.start()
    pmep.explain(model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e7


@pytest.mark.parametrize("sparse", [True, False])
def test_dense_precisions_are_refused_before_they_are_formed(sparse, monkeypatch):
    monkeypatch.setattr(memory, "_free_memory", lambda: 10_000)
    chain = scipy.sparse.diags([np.ones(99), np.ones(99)], [-1, 1])
    with pm.Model() as model:
        weights = as_sparse_variable(chain.tocsr()) if sparse else chain.toarray()
        areas = pm.CAR("areas", mu=np.zeros(100), W=weights, alpha=0.9, tau=1.0)
        pm.Poisson("y", pm.math.exp(areas), observed=np.zeros(100))
    needs = r"fit of 100 observations needs .* GB.*12 matrices of 100 x 100"
    assert re.search(needs, pmep.explain(model))
    with pytest.raises(pmep.InvalidDataError, match=needs):
        pmep.fit(model=model)


def test_time_of_a_chain_is_that_of_a_fit_at_each_step():
    """Twice the draws and steps take twice the time; two processes halve it and hold both fits."""
    model = walk(200)
    one = cost_of_fit(model, "ep")
    chains = {"chains": 2, "draws": 500, "tune": 500}
    few, many, shared = (
        cost_of_fit(model, "ep", "sample", chains | more)
        for more in ({"cores": 1}, {"cores": 1, "draws": 1500}, {"cores": 2})
    )
    assert few.seconds > 2 * 1000 * one.seconds
    assert many.seconds == pytest.approx(2 * few.seconds)
    assert shared.seconds == pytest.approx(few.seconds / 2)
    assert (few.memory, shared.memory) == (one.memory, 2 * one.memory)


def test_a_long_chain_is_told(monkeypatch, caplog):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pm, "sample", stop)
    monkeypatch.setattr(memory, "_free_memory", lambda: None)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        pmep.fit(model=walk(500), hyper="sample", sample_kwargs={"cores": 1})
    assert "64000 fits, one for each step of NUTS" in caplog.text and "hyper='optimize'" in caplog.text


def test_a_method_without_an_estimate_is_not_refused():
    class Silent:
        cost = None

    assert cost_of(Silent(), None, {}) is None
