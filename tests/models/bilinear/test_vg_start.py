"""The start of the variational Gaussian: labels of rows, columns and sides, units, and priors that overflow."""

import numpy as np
import pymc as pm
import pytest
import scipy.linalg

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.engines.loop import run
from pymc_ep.models.bilinear.engine.bound import BilinearBound
from pymc_ep.models.bilinear.engine.spectral_start import first_sides
from pymc_ep.models.bilinear.engine.values import BilinearPrior, Cells, MatrixPrior
from pymc_ep.models.bilinear.engine.variational_gaussian import VariationalGaussian, first_state
from pymc_ep.sites.cells.likelihoods import BernoulliCells, NormalCells, PoissonCells, SoftplusPoissonCells

SITES = {
    "poisson": PoissonCells(),
    "truncated": PoissonCells(truncated=True),
    "softplus": SoftplusPoissonCells(),
    "bernoulli": BernoulliCells(),
    "normal": NormalCells(),
}


class Problem:
    """Cells of a matrix, with fixed priors of either side: mean and standard deviation of all entries, or of a row."""

    def __init__(self, site, y, rows, cols, shape, d, biases=(0, 0), means=(0.0, 0.0), sds=(0.8, 0.8)):
        self.site, self.y, self.places, self.shape, self.d, self.biases = site, y, (rows, cols), shape, d, biases
        self.priors = [
            MatrixPrior(*(np.array(np.broadcast_to(part, (n, d + bias)), dtype=float) for part in (mean, sd**2)))
            for n, bias, mean, sd in zip(shape, biases, means, sds)
        ]

    def prior(self, _):
        parameters = tuple(np.full(len(self.y), 0.5) for _ in self.site.parameters)
        return BilinearPrior(*self.priors, np.zeros(len(self.y)), parameters, 0.0)

    def relabelled(self, seed, swapped):
        """The same cells in another order, with rows and columns renumbered, and the sides swapped."""
        rng = np.random.default_rng(seed)
        order, numbers = rng.permutation(len(self.y)), [rng.permutation(n) for n in self.shape]
        other = Problem(self.site, self.y[order], None, None, self.shape, self.d, self.biases)
        other.places = tuple(new[old][order] for new, old in zip(numbers, self.places))
        other.priors = [MatrixPrior(*(x[np.argsort(n)] for x in own[:2])) for own, n in zip(self.priors, numbers)]
        if swapped:
            for name in ("places", "priors", "shape", "biases"):
                setattr(other, name, getattr(other, name)[::-1])
        return other

    def start(self, seed=0):
        cells = Cells.of(self.y, *self.places, self.shape, self.site)
        points = tuple(np.zeros(self.d + bias, dtype=bool) for bias in self.biases)
        bound, prior = BilinearBound(cells, self.d, points), self.prior(None)
        return bound, prior, first_sides(bound, prior, seed)

    def fit(self, seed=0, tol=1e-8):
        bound, _, sides = self.start(seed)
        ascent = VariationalGaussian(bound, learn=False, tol=tol)
        return run(ascent, self, first_state(sides, np.zeros(0)), max_iter=300)


def drawn(name, shape=(13, 9), d=2, n=60, seed=1, **options):
    """A problem with cells at random places, some of them twice."""
    rng = np.random.default_rng(seed)
    rows, cols = (rng.integers(0, size, n) for size in shape)
    f = (rng.normal(size=(shape[0], d))[rows] * rng.normal(size=(shape[1], d))[cols]).sum(axis=1)
    y = {
        "bernoulli": lambda: (f + rng.logistic(size=n) > 0) * 1.0,
        "normal": lambda: f + rng.normal(0, 0.5, n),
        "softplus": lambda: rng.poisson(np.logaddexp(0, f)) * 1.0,
    }.get(name, lambda: (name == "truncated") + rng.poisson(np.exp(np.minimum(f, 3))) * 1.0)()
    return Problem(SITES[name], y, rows, cols, shape, d, **options)


CASES = {name: drawn(name) for name in SITES} | {
    "biases": drawn("poisson", biases=(1, 1)),
    "one bias": drawn("softplus", shape=(9, 9), biases=(0, 1)),
    "means": drawn("poisson", means=(1.0, 0.3)),
    "scales of rows": drawn("truncated", sds=(np.linspace(0.1, 1.5, 13)[:, None], 0.8)),
    "rows without cells": drawn("poisson", n=12, biases=(1, 0)),
    "one row": drawn("poisson", shape=(1, 9), n=9),
    "one cell": drawn("bernoulli", n=1),
    "more factors than rows": drawn("normal", shape=(4, 3), d=5, n=12),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_do_not_decide_the_bound(case):
    problem = CASES[case]
    expected = problem.fit().state.log_bound
    for seed, swapped in ((1, False), (2, True)):
        assert problem.relabelled(seed, swapped).fit().state.log_bound == pytest.approx(expected, abs=1e-5)


IDENTITY, HADAMARD = 4.0 * np.eye(6), 2.0 * (1 + scipy.linalg.hadamard(8))
BLOCKS = np.array([3.0, 0.0, 0.0, 3.0] * 4), np.repeat(np.arange(8), 2), np.tile([0, 1], 8) + np.repeat([0, 2, 4, 6], 4)
SYMMETRIC = {
    "identity": Problem(PoissonCells(), IDENTITY.ravel(), *np.divmod(np.arange(36), 6), (6, 6), 3),
    "hadamard": Problem(PoissonCells(), HADAMARD.ravel(), *np.divmod(np.arange(64), 8), (8, 8), 2),
    "blocks": Problem(SoftplusPoissonCells(), *BLOCKS, (8, 8), 2),
}


@pytest.mark.parametrize("case", SYMMETRIC)
def test_labels_do_not_decide_among_singular_vectors_that_tie(case):
    """Neither do ascents end at a saddle, as they would from vectors of the matrix's symmetry."""
    problem = SYMMETRIC[case]
    expected = problem.fit().state.log_bound
    for seed in (1, 2):
        assert problem.relabelled(seed, seed == 2).fit().state.log_bound == pytest.approx(expected, abs=1e-3)
    assert expected > max(problem.fit(seed).state.log_bound for seed in (1, 2, 3)) - 1e-3


def test_labels_do_not_decide_the_start_of_a_large_matrix():
    """Its singular vectors are those of a subspace iteration."""
    problem = drawn("bernoulli", shape=(1500, 300), d=3, n=20_000, biases=(1, 0))
    values = []
    for one in (problem, problem.relabelled(1, False), problem.relabelled(2, True)):
        bound, prior, sides = one.start()
        values.append(bound.value(prior, sides))
    np.testing.assert_allclose(values, values[0], rtol=1e-11)


@pytest.mark.parametrize("name", ["poisson", "normal"])
@pytest.mark.parametrize("unit", [1e6, 1e-6])
def test_units_of_factors_do_not_decide_the_bound(name, unit):
    """Factors in another unit, and their partners in its inverse, take the same steps."""
    plain, scaled = (drawn(name, seed=3, sds=(0.8 * one, 0.8 / one)).fit() for one in (1.0, unit))
    assert scaled.state.log_bound == pytest.approx(plain.state.log_bound, abs=1e-8)
    assert len(scaled.objective) == len(plain.objective)


@pytest.mark.parametrize("means", [(200.0, 0.0), (30.0, 30.0)])
def test_rates_that_overflow_at_the_prior_means_are_started_below(means):
    found = drawn("poisson", means=means, sds=(1.0, 1.0)).fit(tol=1e-4)
    assert np.isfinite(found.objective).all() and found.status.converged


@pytest.fixture(scope="module")
def shared():
    """A model whose cells are shared data."""
    given = drawn("softplus", biases=(1, 0))
    with pm.Model() as model:
        rows, cols = (pm.Data(name, place) for name, place in zip(("rows", "cols"), given.places))
        V, U = (pm.Normal(name, 0, 0.8, shape=(n, 2)) for name, n in zip("VU", given.shape))
        offset = pm.Normal("b", 0, pm.HalfNormal("sb", 1.0), shape=given.shape[0])[rows]
        pmep.BilinearPoisson("y", V, U, rows, cols, offset=offset, link="softplus", observed=pm.Data("counts", given.y))
    return model, given


def test_fits_of_models_do_not_depend_on_labels(shared):
    model, given = shared
    bounds = []
    for one in (given, given.relabelled(1, False), given.relabelled(2, False)):
        with model:
            pm.set_data(dict(zip(("rows", "cols", "counts"), (*one.places, one.y))))
            fit = group(pmep.fit("vg", hyper="optimize", draws=0, tol=1e-9, progressbar=False), "fit")
        bounds.append(float(fit["objective"][-1]))
    np.testing.assert_allclose(bounds, bounds[0], atol=1e-4)


@pytest.mark.parametrize(("hyper", "least"), [("fixed", -128_620.0), ("optimize", -127_661.0)])
def test_a_large_matrix_with_a_bias_is_started_well(hyper, least):
    """Starts of random numbers ended at -128618 and -127659."""
    rng = np.random.default_rng(0)
    shape, d, n = (2000, 1000), 5, 100_000
    V0, U0 = (rng.normal(size=(size, d)) for size in shape)
    rows, cols = (rng.integers(0, size, n) for size in shape)
    b = rng.normal(size=shape[0])
    y = rng.poisson(np.log1p(np.exp(0.6 * (V0[rows] * U0[cols]).sum(axis=1) + b[rows])))
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        V, U = pm.Normal("V", 0, s, shape=(shape[0], d)), pm.Normal("U", 0, 1, shape=(shape[1], d))
        offset = pm.Normal("a", 0, 1, shape=shape[0])[rows]
        pmep.BilinearPoisson("y", V, U, rows, cols, offset=offset, link="softplus", observed=y)
    fit = group(pmep.fit("vg", model=model, hyper=hyper, draws=0, progressbar=False), "fit")
    assert bool(fit["converged"]) and float(fit["objective"][-1]) > least
