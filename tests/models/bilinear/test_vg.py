"""The variational Gaussian of bilinear models: bound, derivatives, fixed points, points, and learning."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from pymc_ep.engines.loop import run
from pymc_ep.models.bilinear.engine.bound import BilinearBound
from pymc_ep.models.bilinear.engine.row_parameters import factored, independent, packed, unpacked
from pymc_ep.models.bilinear.engine.spectral_start import first_sides
from pymc_ep.models.bilinear.engine.values import BilinearPrior, Cells, MatrixPrior
from pymc_ep.models.bilinear.engine.variational_gaussian import VariationalGaussian, first_state
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.sites.cells.likelihoods import (
    BernoulliCells,
    NegativeBinomialCells,
    NormalCells,
    PoissonCells,
    SoftplusPoissonCells,
)

I, J, D = 5, 4, 2  # noqa: E741
BIASED = {"none": (0, 0), "both": (1, 1), "left": (1, 0), "right": (0, 1)}
SITES = {
    "poisson": PoissonCells(),
    "truncated": PoissonCells(truncated=True),
    "negative binomial": NegativeBinomialCells(),
    "truncated negative binomial": NegativeBinomialCells(truncated=True),
    "bernoulli": BernoulliCells(),
    "softplus": SoftplusPoissonCells(),
    "normal": NormalCells(),
}
every_site = pytest.mark.parametrize("name", SITES)
both_covariances = pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])


class Problem:
    """Cells with a prior whose scale of the left matrix, offset and dispersion are hyperparameters.

    The factors of its rows are independent, or correlated.
    """

    def __init__(self, site, biased=(1, 1), n=14, seed=0, correlated=False):
        rng = np.random.default_rng(seed)
        rows, cols = rng.integers(0, I - 1, n), rng.integers(0, J, n)
        y = rng.integers(0, 2, n) if site.name == "bernoulli" else 1 + rng.poisson(2.0, n)
        self.cells, self.biased = Cells.of(y, rows, cols, (I, J), site), biased
        self.base = 0.2 * rng.normal(size=n)
        self.correlation = 0.4 * np.ones((D, D)) + 0.6 * np.eye(D) if correlated else None

    def prior(self, theta):
        widths = np.exp(2 * theta[0]), 0.8
        matrices = [
            MatrixPrior(np.full((size, D + bias), 0.1), np.full((size, D + bias), width))
            for size, bias, width in zip((I, J), self.biased, widths)
        ]
        if self.correlation is not None:
            matrices[0] = matrices[0]._replace(covariance=widths[0] * self.correlation)
        parameters = tuple(np.full(len(self.base), np.exp(theta[2])) for _ in self.cells.site.parameters)
        return BilinearPrior(*matrices, self.base + theta[1], parameters, -0.5 * float(theta @ theta))

    def pullback(self, theta, of_prior, of_offset, of_parameters):
        of_width = of_prior[0].variance.sum()
        if self.correlation is not None:
            of_width += (of_prior[0].covariance * self.correlation).sum()
        of_width *= 2 * np.exp(2 * theta[0])
        of_alpha = sum(np.exp(theta[2]) * part.sum() for part in of_parameters)
        return np.array([of_width, of_offset.sum(), of_alpha]) - theta

    def bound(self, points=((), ())):
        return BilinearBound(self.cells, D, tuple(of_columns(p, bias) for p, bias in zip(points, self.biased)))


def of_columns(points, bias):
    out = np.zeros(D + bias, dtype=bool)
    out[list(points)] = True
    return out


THETA = np.array([-0.3, 0.1, 0.4])


def fitted(problem, theta=THETA, points=((), ()), learn=False, tol=1e-13, max_iter=300, full=False):
    bound = problem.bound(points)
    engine = VariationalGaussian(bound, learn=learn, tol=tol, full=full)
    first = first_state(first_sides(bound, problem.prior(theta)), theta)
    return bound, run(engine, problem, first, max_iter=max_iter + 1)


@every_site
@both_covariances
@pytest.mark.parametrize("biased", BIASED)
def test_the_bound_rises_in_every_step(name, biased, full):
    problem = Problem(SITES[name], BIASED[biased])
    _, found = fitted(problem, learn=True, full=full)
    assert found.status.converged
    assert np.all(np.diff(found.objective) >= -1e-10)
    assert np.abs(problem_gradient(problem, found.state)).max() < 1e-3


def problem_gradient(problem, state):
    bound = problem.bound()
    found = bound.derivatives(problem.prior(state.theta), state.sides)
    return problem.pullback(state.theta, found.of_prior, found.of_offset, found.of_parameters)


def rows_of(rng, shape, full):
    """Rows of which pairs are feasible."""
    mean, spread = rng.normal(size=shape), rng.uniform(0.1, 0.7, shape)
    if not full:
        return Rows(mean, spread)
    factor = 0.3 * np.tril(rng.normal(size=(*shape, shape[1])), -1) + np.sqrt(spread)[:, :, None] * np.eye(shape[1])
    return FactoredRows(mean, factor)


@every_site
@both_covariances
@pytest.mark.parametrize("biased", ["none", "both", "right"])
def test_derivatives_of_the_bound(name, biased, full):
    _require_derivatives(Problem(SITES[name], BIASED[biased]), full)


@both_covariances
def test_derivatives_where_factors_are_correlated(full):
    _require_derivatives(Problem(SITES["bernoulli"], correlated=True), full)


def _require_derivatives(problem, full):
    bound, rng = problem.bound(), np.random.default_rng(1)
    shapes = [(size, D + bias) for size, bias in zip((I, J), problem.biased)]
    sides = tuple(rows_of(rng, shape, full) for shape in shapes)
    prior = problem.prior(THETA)
    found = bound.derivatives(prior, sides)
    assert found.value == pytest.approx(bound.value(prior, sides))
    at = [packed(rows, own) for rows, own in zip(sides, bound.points)]
    of_sides = tuple(np.empty(part.shape) for part in at)
    bound.of_sides(prior, sides, found, of_sides)
    for k in range(2):
        for index in np.ndindex(at[k].shape):

            def value(step, k=k, index=index):
                moved = at[k].copy()
                moved[index] += step
                rows = unpacked(moved, bound.points[k], type(sides[k]))
                return bound.value(prior, (rows, sides[1]) if k == 0 else (sides[0], rows))

            difference = (value(1e-6) - value(-1e-6)) / 2e-6
            assert of_sides[k][index] == pytest.approx(difference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["poisson", "truncated", "negative binomial", "bernoulli", "softplus", "normal"])
def test_the_bounds_lie_below_the_evidence(name):
    """Two cells in one row, one factor and a bias on the right: by quadrature in all five unknowns."""
    site = SITES[name]
    y = np.array([1.0, 0.0]) if name == "bernoulli" else np.array([2.0, 1.0])
    cells = Cells.of(y, [0, 0], [0, 1], (1, 2), site)
    parameters = tuple(np.full(2, 1.3) for _ in site.parameters)
    prior = BilinearPrior(
        MatrixPrior(np.full((1, 1), 0.3), np.full((1, 1), 0.5)),
        MatrixPrior(np.zeros((2, 2)), np.tile([0.6, 0.4], (2, 1))),
        np.array([0.1, -0.2]),
        parameters,
        0.0,
    )
    bound = BilinearBound(cells, 1, (np.zeros(1, dtype=bool), np.zeros(2, dtype=bool)))

    class Given:
        def prior(self, theta):
            return prior

    bounds = []
    for full in (False, True):
        engine = VariationalGaussian(bound, learn=False, tol=1e-12, full=full)
        found = run(engine, Given(), first_state(first_sides(bound, prior), np.zeros(0)), max_iter=300)
        bounds.append(found.state.log_bound)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    v = 0.3 + np.sqrt(0.5) * nodes
    per_cell = []
    for c in range(2):
        # u and c_j of either cell are apart given v.
        f = v[:, None, None] * np.sqrt(0.6) * nodes[:, None] + np.sqrt(0.4) * nodes + prior.offset[c]
        own = [p[c] for p in parameters]
        per_cell.append(np.einsum("vuc,u,c->v", np.exp(site.log_density(y[c], f, *own)), weights, weights))
    evidence = np.log(weights @ (per_cell[0] * per_cell[1]))
    assert evidence - 0.4 < bounds[0] < bounds[1] - 1e-4 < evidence


@every_site
@pytest.mark.parametrize("biased", BIASED)
def test_covariances_raise_the_bound(name, biased):
    problem = Problem(SITES[name], BIASED[biased], n=25)
    bounds = [fitted(problem, full=full)[1].state.log_bound for full in (False, True)]
    assert bounds[1] > bounds[0] + 1e-3


def test_fixed_points_of_the_diagonal_posterior():
    """Of Poisson cells without biases: the two equations of Ko and Khan (2014), with the prior's moments."""
    problem = Problem(SITES["poisson"], (0, 0))
    _, found = fitted(problem)
    prior, cells = problem.prior(THETA), problem.cells
    for own, other, given, pairs in (
        (*found.state.sides, prior.left, cells.by_left),
        (*found.state.sides[::-1], prior.right, cells.by_right),
    ):
        for i in range(len(own.mean)):
            here = slice(pairs.ends[i], pairs.ends[i + 1])
            n, b, y = other.mean[pairs.others[here]], other.variance[pairs.others[here]], cells.y[pairs.order[here]]
            m, a = own.mean[i], own.variance[i]
            r = 1 - a * b
            log_mean = (-0.5 * np.log(r) + (m * n + (a * n**2 + b * m**2) / 2) / r).sum(axis=1)
            rate = np.exp(log_mean + prior.offset[pairs.order[here]])[:, None]
            g = (n + b * m) / r
            np.testing.assert_allclose(1 / a, 1 / given.variance[i] + (rate * (b / r + g**2)).sum(axis=0), rtol=1e-4)
            pull = (y[:, None] * n - rate * g).sum(axis=0)
            np.testing.assert_allclose(pull, (m - given.mean[i]) / given.variance[i], atol=1e-4)


def test_fixed_points_of_the_full_posterior():
    """Of Poisson cells with biases on the right: the equations of Ko and Khan (2014), by inverses of covariances."""
    problem = Problem(SITES["poisson"], (0, 1))
    _, found = fitted(problem, full=True)
    prior, cells = problem.prior(THETA), problem.cells
    left, right = (rows.full for rows in found.state.sides)
    ones = np.concatenate([left.mean, np.ones((I, 1))], axis=1)
    for j in range(J):
        here = cells.by_right.order[cells.by_right.ends[j] : cells.by_right.ends[j + 1]]
        total, pull = (
            np.diag(1 / prior.right.variance[j]),
            (prior.right.mean[j] - right.mean[j]) / prior.right.variance[j],
        )
        for c, i in zip(here, cells.by_right.others[cells.by_right.ends[j] : cells.by_right.ends[j + 1]]):
            # The left row has a third entry of one, whose variance is next to nothing.
            own = np.diag([0.0, 0.0, 1e-12])
            own[:2, :2] = left.covariance[i]
            precision = np.linalg.inv(own)
            reduced = precision - right.covariance[j]
            t = right.mean[j] + precision @ ones[i]
            tilted = np.linalg.solve(reduced, t)
            log_mean = 0.5 * (t @ tilted - ones[i] @ precision @ ones[i])
            log_mean -= 0.5 * np.linalg.slogdet(np.eye(3) - own @ right.covariance[j])[1]
            rate = np.exp(log_mean + prior.offset[c])
            total = total + rate * (np.linalg.inv(reduced) + np.outer(tilted, tilted))
            pull = pull + cells.y[c] * ones[i] - rate * tilted
        np.testing.assert_allclose(np.linalg.inv(right.covariance[j]), total, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(pull, 0.0, atol=1e-3)


@every_site
@both_covariances
@pytest.mark.parametrize("points", [(range(D), range(D)), (range(D + 1), range(D + 1)), (range(D), ())])
def test_points_are_modes(name, points, full):
    """With all points the mode of the joint density by SciPy; with one matrix a bound that rises and is stationary."""
    problem = Problem(SITES[name])
    bound, found = fitted(problem, points=points, full=full)
    assert np.all(np.diff(found.objective) >= -1e-10)
    for rows, own in zip(found.state.sides, bound.points):
        assert not rows.variance[:, own].any() and (rows.variance[:, ~own] > 0).all()
    if len(points[1]) != D + 1:
        return
    prior, cells = problem.prior(THETA), problem.cells
    rows, cols = np.empty(len(cells.y), dtype=int), np.empty(len(cells.y), dtype=int)
    rows[cells.by_left.order], cols[cells.by_left.order] = cells.by_left.own, cells.by_left.others

    def fall(flat):
        v, u = (part.reshape(-1, D + 1) for part in np.split(flat, [I * (D + 1)]))
        f = (v[rows, :D] * u[cols, :D]).sum(axis=1) + v[rows, D] + u[cols, D] + prior.offset
        priors = [
            scipy.stats.norm(own.mean, np.sqrt(own.variance)).logpdf(x).sum()
            for own, x in ((prior.left, v), (prior.right, u))
        ]
        return -cells.site.log_density(cells.y, f, *prior.parameters).sum() - sum(priors)

    start = np.concatenate([rows.mean.ravel() for rows in found.state.sides])
    best = scipy.optimize.minimize(fall, start, method="BFGS", options={"gtol": 1e-6})
    assert found.state.log_bound == pytest.approx(-best.fun, abs=1e-6)


@both_covariances
def test_rows_without_cells_have_their_prior(full):
    problem = Problem(SITES["poisson"])
    _, found = fitted(problem, full=full)
    prior = problem.prior(THETA)
    assert problem.cells.by_left.ends[-1] == problem.cells.by_left.ends[-2]
    np.testing.assert_allclose(found.state.left.mean[-1], prior.left.mean[-1], atol=1e-6)
    np.testing.assert_allclose(found.state.left.variance[-1], prior.left.variance[-1], rtol=1e-5)


@both_covariances
def test_priors_that_make_the_start_infeasible_are_started_within_it(full):
    problem = Problem(SITES["poisson"])
    wide = np.array([1.5, 0.0, 0.0])
    _, found = fitted(problem, theta=wide, full=full)
    assert found.status.converged
    assert np.isfinite(found.objective).all()
    pairs, (left, right) = problem.cells.by_left, found.state.sides
    covariances = [factored(rows).full.covariance[:, :D, :D] for rows in (left, right)]
    assert np.linalg.eigvals(covariances[0][pairs.own] @ covariances[1][pairs.others]).real.max() < 1.0
    assert (problem.prior(wide).left.variance * problem.prior(wide).right.variance[0]).max() > 1.0


def test_all_starts_end_at_one_bound():
    problem = Problem(SITES["poisson"], n=25)
    ends = []
    for seed in range(4):
        bound = problem.bound()
        engine = VariationalGaussian(bound, learn=False, tol=1e-12)
        start = first_state(first_sides(bound, problem.prior(THETA), seed), THETA)
        ends.append(run(engine, problem, start, max_iter=1000).state.log_bound)
    np.testing.assert_allclose(ends, max(ends), atol=1e-4)


def test_an_iteration_that_is_cut_short_says_so():
    _, found = fitted(Problem(SITES["poisson"]), max_iter=2)
    assert not found.status.converged
    assert "stopped after 2 steps" in found.status.sentence and "raise max_iter" in found.status.sentence


def test_rows_by_factors_and_by_entries():
    """Without a covariance nothing changes; with one the nearest entries have the variances given all others."""
    rng = np.random.default_rng(4)
    entries, rows = (rows_of(rng, (3, 4), full) for full in (False, True))
    entries.variance[:, 1] = 0.0
    back = independent(factored(entries))
    np.testing.assert_allclose(back.variance, entries.variance, rtol=1e-12)
    rows.factor[:, 2] = rows.factor[:, :, 2] = 0.0
    kept = [0, 1, 3]
    precision = np.linalg.inv(rows.full.covariance[:, kept][:, :, kept])
    found = independent(rows)
    np.testing.assert_allclose(found.variance[:, kept], 1 / np.einsum("idd->id", precision), rtol=1e-10)
    assert not found.variance[:, 2].any()
