"""What a fit takes, in counts, which no machine's speed and no other work on it change."""

import warnings
from collections import Counter, OrderedDict
from functools import partial

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_ep as pmep
from pymc_ep import concurrency
from pymc_ep.compat import group
from pymc_ep.numerics.backend import cholesky
from pymc_ep.numerics.gaussian import coefficient_space, observation_space, sparse_coefficient_space
from tests.contract.test_symmetries import SAME, comparisons, counts_of_pairs, field, pairs, robust_regression, tree


def model_of(write):
    """Let a function that writes variables return their model."""

    def written():
        with pm.Model() as model:
            write()
        return model

    return written


@model_of
def eight_schools():
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Normal("theta", mu, tau, shape=8)
    pm.Normal("y", theta, [15, 10, 16, 11, 9, 11, 10, 18], observed=[28, 8, -3, 7, -1, 1, 18, 12])


@model_of
def logistic():
    x = np.random.default_rng(0).normal(size=(60, 3))
    b, level = pm.Normal("b", 0, 2, shape=3), pm.Normal("level", 0, 2)
    pm.Bernoulli("y", logit_p=x @ b + level, observed=(x @ [1.0, -1.0, 0.0] > 0.3).astype(int))


@model_of
def counts_of_groups():
    rng, of = np.random.default_rng(1), np.arange(80) % 10
    v = pm.Normal("v", pm.Normal("level", 0, 2), pm.HalfNormal("spread", 1), shape=10)
    pm.Poisson("y", pm.math.exp(v[of]), observed=rng.poisson(np.exp(rng.normal(1, 0.5, 10)[of])))


@model_of
def walk():
    path = pm.GaussianRandomWalk("path", sigma=pm.HalfNormal("step", 1), init_dist=pm.Normal.dist(0, 2), shape=50)
    pm.Poisson("y", pm.math.exp(path), observed=np.arange(50) // 10)


@model_of
def process():
    x = np.linspace(0, 1, 40)
    kernel = pm.HalfNormal("amplitude", 2) ** 2 * pm.gp.cov.Matern52(1, pm.InverseGamma("length", 5, 1))
    f = pm.gp.Latent(cov_func=kernel).prior("f", x[:, None])
    pm.Bernoulli("y", logit_p=f, observed=(np.sin(9 * x) > 0).astype(int))


@model_of
def separated():
    x = np.linspace(-1, 1, 12)
    pm.Bernoulli("y", logit_p=pm.Cauchy("b", 0, 2.5) * x + pm.Normal("level", 0, 5), observed=(x > 0).astype(int))


FITS = {
    "eight schools": (eight_schools, None, {}, (17, 32, 147, 147)),
    "logistic": (logistic, None, {}, (15, 7, 9, 9)),
    "counts of groups": (counts_of_groups, None, {}, (21, 52, 287, 287)),
    "random walk": (walk, None, {}, (16, 24, 230, 229)),
    "process": (process, None, {}, (16, 36, 467, 466)),
    "separated": (separated, None, {}, (17, 46, 401, 401)),
    "robust regression": (partial(robust_regression, SAME), None, {}, (22, 65, 674, 674)),
    "field": (partial(field, SAME), "ep", {}, (18, 23, 0, 190)),
    "field by bounds": (partial(field, SAME), "dsb", {}, (18, 6, 0, 22)),
    "tree": (partial(tree, SAME), "dsb", {"hyper": "fixed"}, (14, 9, 0, 0)),
    "pairs": (partial(counts_of_pairs, SAME), None, {}, (14, 6, 0, 0)),
    "preferences": (partial(comparisons, SAME), None, {}, (14, 18, 0, 0)),
    "symbols": (partial(pairs, SAME), None, {"hyper": "fixed"}, (7, 15, 0, 0)),
}
"""A model, method, options, and what the fit takes: functions that PyTensor compiles, fits at hyperparameters or
iterations, Gaussian posteriors (of latent Gaussian models alone), and cubic factorisations."""
_ROUNDING = 1.1
"""Share by which rounding may change a count where it decides when a search ends."""


@pytest.fixture
def counted(monkeypatch):
    """Counts of compiled functions, of which none is known, and of Gaussian posteriors, as they are made."""
    found = Counter()
    monkeypatch.setattr(concurrency, "_SHARED", OrderedDict())

    def count(owner, attribute, name):
        original = getattr(owner, attribute)

        def counting(*args, **kwargs):
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, counting)

    count(pytensor, "function", "functions")
    for owner in (
        observation_space.DensePrior,
        coefficient_space.FactorPrior,
        sparse_coefficient_space.SparseFactorPrior,
    ):
        count(owner, "posterior", "posteriors")
    return found


@pytest.mark.parametrize("name", FITS)
def test_a_fit_takes_no_more_than_it_did(name, counted):
    write, method, options, most = FITS[name]
    before = cholesky.counts["factorizations"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = group(pmep.fit(method, model=write(), random_seed=1, progressbar=False, **options), "fit")
    evaluations = int(found["n_evaluations" if "n_evaluations" in found else "n_iter"])
    factorisations = cholesky.counts["factorizations"] - before
    took = counted["functions"], evaluations, counted["posteriors"], factorisations
    assert took[0] <= most[0]
    assert np.all(took <= _ROUNDING * np.array(most)), f"{took}, and no more than {most} before"
