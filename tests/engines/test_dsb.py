"""The double loop: its bound never falls, meets a dense optimiser and lies below the evidence; modes; sampling."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.special
import scipy.stats

from pymc_ep.contracts import Call
from pymc_ep.engines.loop import run
from pymc_ep.exceptions import InvalidDataError, NumericalError, UnsupportedModelError
from pymc_ep.models.sparse_linear.engine.bounded_sites import BoundedSites
from pymc_ep.models.sparse_linear.engine.outer_loop import DoubleLoop, Start
from pymc_ep.models.sparse_linear.engine.precision_solvers import Exact, Iterative
from pymc_ep.models.sparse_linear.methods import double_loop as sparse_dsb
from pymc_ep.models.sparse_linear.methods.double_loop import find_mode, solve_by_bounds
from pymc_ep.numerics.backend.cholesky import counts
from pymc_ep.operators import Wavelet2D

from .sparse_forms import SparseForm, differences, steps


def bounds(form, hyper="fixed", **options):
    return solve_by_bounds(Call(form, form.start, hyper, None, options))


def mode(form, **options):
    return find_mode(Call(form, form.start, "fixed", None, options))


def line(potential, scales, *, n=64, likelihood="normal", seed=0, theta=()):
    """A piecewise constant signal, its differences with potentials; scales of likelihood and potentials."""
    rng = np.random.default_rng(seed)
    signal = steps(n, rng)
    y = signal + 0.3 * rng.standard_normal(n)
    if likelihood in ("logit", "binomial_logit"):
        y = rng.binomial(1 if likelihood == "logit" else 8, scipy.special.expit(signal)).astype(float)
    elif likelihood in ("negative_binomial", "softplus_poisson"):
        y = rng.poisson(np.exp(signal)).astype(float)
    return SparseForm(
        [
            (likelihood, y, scipy.sparse.eye_array(n, format="csr"), scales[0]),
            (potential, np.zeros(n - 1), differences(n), scales[1]),
        ],
        theta,
    )


def image(side, noise, width, theta=()):
    """A bright rectangle in noise, under total variation."""
    rng = np.random.default_rng(3)
    truth = np.zeros((side, side))
    truth[side // 4 : side // 2, side // 4 : 3 * side // 4] = 1.0
    y = truth.ravel() + 0.1 * rng.standard_normal(side**2)
    rows = differences(side, side)
    eye = scipy.sparse.eye_array(side**2, format="csr")
    return SparseForm([("normal", y, eye, (noise,)), ("laplace", np.zeros(rows.shape[0]), rows, (width,))], theta)


LEARN = ("theta", 0), ("theta", 1)
FORMS = {
    "laplace": lambda: line("laplace", ((0.3,), (0.2,))),
    "laplace, learned": lambda: line("laplace", ((LEARN[0],), (LEARN[1],)), theta=(-1.0, -1.0)),
    "student": lambda: line("student_t", ((0.3,), (3.0, 0.1))),
    "student, learned": lambda: line("student_t", ((LEARN[0],), (3.0, LEARN[1])), theta=(-1.0, -1.0)),
    "robust, learned": lambda: line(
        "laplace", ((3.0, LEARN[0]), (LEARN[1],)), likelihood="student_t", theta=(-1.0, -1.0)
    ),
    "logit": lambda: line("laplace", ((), (0.5,)), likelihood="logit"),
    "logit, learned": lambda: line("student_t", ((), (3.0, LEARN[0])), likelihood="logit", theta=(-1.0,)),
    "binomial": lambda: line("laplace", ((8.0,), (0.5,)), likelihood="binomial_logit"),
    "counts, learned": lambda: line(
        "laplace", ((LEARN[0],), (LEARN[1],)), likelihood="negative_binomial", theta=(1.0, -1.0)
    ),
    "bounded curvature": lambda: line("laplace", ((), (0.5,)), likelihood="softplus_poisson"),
    "image": lambda: image(32, 0.1, 0.05),
    "image, learned": lambda: image(32, LEARN[0], LEARN[1], theta=(-2.0, -2.0)),
}


@pytest.mark.parametrize("name", FORMS)
def test_bound_never_falls(name):
    form = FORMS[name]()
    found = bounds(form, "optimize" if form.start.size else "fixed", tol=1e-7, outer=80)
    assert found.status.converged
    steps_up = np.diff(found.objective)
    assert (steps_up >= -1e-9 * np.maximum(1.0, np.abs(found.objective[1:]))).all()
    assert found.log_evidence + form.factors_at(found.state.theta).log_prior == found.objective[-1]


def test_extrapolation_saves_loops_and_changes_no_result():
    form = FORMS["student, learned"]()
    sites = BoundedSites(form)

    class Plain(DoubleLoop):
        def _accelerated(self, problem, before, state, guaranteed):
            return self._tight(problem, state)

    options = {"inner": "irls", "inner_max_iter": 20, "tol": 1e-5, "learn": True}
    plain, quick = (
        run(kind(form.linear, Exact(form.linear), **options), sites, Start(form.start), max_iter=2001)
        for kind in (Plain, DoubleLoop)
    )
    assert (np.diff(plain.objective) >= -1e-9 * np.abs(plain.objective[1:])).all()
    assert quick.state.loop < 0.3 * plain.state.loop
    np.testing.assert_allclose(quick.objective[-1], plain.objective[-1], atol=1e-5)


def dense_bound(y, rows, learn, start):
    """Maximise the bound of formulas with h, for Gaussian noise and Laplace potentials, over log precisions."""
    n, m = len(y), rows.shape[0]

    def negative(v):
        pi, (log_sigma, log_b) = np.exp(v[:m]), v[m:] if learn else start
        sigma2, b = np.exp(2 * log_sigma), np.exp(log_b)
        inverse = np.linalg.inv(np.eye(n) / sigma2 + rows.T @ (pi[:, None] * rows))
        mean = inverse @ y / sigma2
        s, residual = rows @ mean, y - mean
        quadratic = residual @ residual / sigma2 + s @ (pi * s)
        # Laplace: h(pi) = 1 / (pi b^2) + 2 log(2 b).
        h = 1.0 / (pi * b**2) + 2 * np.log(2 * b)
        bound = -n / 2 * np.log(2 * np.pi * sigma2) + n / 2 * np.log(2 * np.pi)
        bound += 0.5 * np.linalg.slogdet(inverse)[1] - 0.5 * quadratic - 0.5 * h.sum()
        variance = np.einsum("ij,jk,ik->i", rows, inverse, rows)
        gradient = 0.5 * pi * (-variance - s**2 + 1.0 / (pi * b) ** 2)
        if learn:
            bound += -0.5 * v[m:] @ v[m:]
            d_sigma = -n + (np.trace(inverse) + residual @ residual) / sigma2 - log_sigma
            d_b = (1.0 / (pi * b**2)).sum() - m - log_b
            gradient = np.append(gradient, [d_sigma, d_b])
        return -bound, -gradient

    v = np.concatenate([np.full(m, 2.0), start if learn else []])
    for _ in range(4):
        options = {"maxiter": 20000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 50}
        found = scipy.optimize.minimize(negative, v, jac=True, method="L-BFGS-B", options=options)
        v = found.x
    return -found.fun, found.x


@pytest.mark.parametrize("learn", [False, True])
def test_converged_bound_is_that_of_a_dense_optimiser(learn):
    theta = np.log([0.3, 0.2])
    form = line("laplace", (LEARN[:1], LEARN[1:]), theta=theta)
    found = bounds(form, "optimize" if learn else "fixed", tol=1e-8, outer=200)
    y, _ = form.observed()
    expected, at = dense_bound(y, differences(64).toarray(), learn, theta)
    value = found.objective[-1] if learn else found.log_evidence
    np.testing.assert_allclose(value, expected, atol=1e-8)
    if learn:
        np.testing.assert_allclose(found.state.theta, at[63:], atol=1e-3)


def test_bound_is_the_evidence_where_all_sites_are_gaussian():
    rng = np.random.default_rng(1)
    rows, offset = rng.standard_normal((7, 4)), rng.standard_normal(11)
    y, sigma, width = rng.standard_normal(7), 0.4, 1.7
    form = SparseForm(
        [
            ("normal", y, scipy.sparse.csr_array(rows), (sigma,)),
            ("normal", np.zeros(4), scipy.sparse.eye_array(4, format="csr"), (width,)),
        ],
        offset=offset,
    )
    found = bounds(form, tol=1e-10)
    # offset[7:] + x has the prior N(0, width^2).
    mean = offset[:7] - rows @ offset[7:]
    covariance = sigma**2 * np.eye(7) + width**2 * rows @ rows.T
    expected = scipy.stats.multivariate_normal(mean, covariance).logpdf(y)
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-12)
    gain = width**2 * rows.T @ np.linalg.inv(covariance)
    np.testing.assert_allclose(found.state.unknowns, gain @ (y - mean) - offset[7:], rtol=1e-10)


TINY = {
    "laplace": ("normal", [0.3, -1.2], (0.5,), lambda y, f: scipy.stats.norm.logpdf(y, f, 0.5)),
    "student_t": ("student_t", [0.3, -4.2], (3.0, 0.5), lambda y, f: scipy.stats.t.logpdf(y, 3.0, f, 0.5)),
    "logit": ("logit", [1.0, 0.0], (), lambda y, f: -np.logaddexp(0.0, (1 - 2 * y) * f)),
    "negative_binomial": (
        "negative_binomial",
        [3.0, 0.0],
        (2.0,),
        lambda y, f: scipy.stats.nbinom.logpmf(y, 2.0, 2.0 / (2.0 + np.exp(f))),
    ),
    "softplus_poisson": (
        "softplus_poisson",
        [3.0, 0.0],
        (),
        lambda y, f: scipy.stats.poisson.logpmf(y, np.logaddexp(0.0, f)),
    ),
}


@pytest.mark.parametrize("name", TINY)
def test_bound_lies_below_the_evidence_and_not_far(name):
    likelihood, y, parameters, log_t = TINY[name]
    y = np.array(y)
    # Two unknowns, each with a potential, and their difference with one.
    rows = scipy.sparse.csr_array([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
    eye = scipy.sparse.eye_array(2, format="csr")
    form = SparseForm([(likelihood, y, eye, parameters), ("laplace", np.zeros(3), rows, (0.7,))])
    found = bounds(form)
    grid = np.linspace(-14.0, 14.0, 1401)
    one, other = np.meshgrid(grid, grid, indexing="ij")
    total = log_t(y[0], one) + log_t(y[1], other)
    for part in (one, other, other - one):
        total += scipy.stats.laplace.logpdf(part, 0.0, 0.7)
    # The integrand has kinks on grid lines and on diagonals of the grid: the error is of the order of its step squared.
    exact = scipy.special.logsumexp(total) + 2 * np.log(grid[1] - grid[0])
    assert exact - 0.8 < found.log_evidence < exact - 1e-3


@pytest.mark.parametrize(
    ("name", "inner"),
    [("laplace", "lbfgs"), ("logit", "lbfgs"), ("bounded curvature", "lbfgs"), ("laplace", "newton-cg")],
)
def test_inner_solvers_agree(name, inner):
    one, other = (bounds(FORMS[name](), inner=how, tol=1e-6, outer=300) for how in ("irls", inner))
    np.testing.assert_allclose(other.log_evidence, one.log_evidence, atol=1e-6)
    np.testing.assert_allclose(other.state.unknowns, one.state.unknowns, atol=1e-3)
    assert (np.diff(other.objective) >= -1e-9 * np.abs(other.objective[1:])).all()


def test_factorisations_in_an_outer_loop():
    form = FORMS["laplace"]()
    counts["factorizations"] = 0
    found = bounds(form, inner_max_iter=3)
    # One at the start; in a loop up to three for the unknowns and one for the bound, which gives the next variances, or
    # two where extrapolated ones are not taken.
    extrapolated = counts["factorizations"] - 1 - 4 * found.state.loop
    assert found.state.loop > 4
    assert extrapolated <= 2


def test_sites_give_the_posterior_back():
    form = FORMS["logit"]()
    state = bounds(form, tol=1e-8).state
    design = form.linear.matrix.toarray()
    precision = design.T @ (state.precision[:, None] * design)
    mean = np.linalg.solve(precision, design.T @ (state.shift - state.precision * form.offset))
    np.testing.assert_allclose(mean, state.unknowns, atol=1e-8)
    variance = np.einsum("ij,jk,ik->i", design, np.linalg.inv(precision), design)
    np.testing.assert_allclose(variance, state.variance, rtol=1e-6)


def test_unknowns_stay_near_the_data_where_potentials_are_narrow_and_not_log_concave():
    """Steps as long as those for log-concave sites ran off to 1e7 here, along what is not observed."""
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:16, :16] / 16
    truth = 0.5 + 0.3 * np.sin(5 * row + 2 * column) + 0.4 * ((row - 0.4) ** 2 + (column - 0.5) ** 2 < 0.06)
    seen = np.sort(rng.choice(256, 64, replace=False))
    y = truth.ravel()[seen] + 0.003 * rng.standard_normal(64)
    eye, rows = scipy.sparse.eye_array(256, format="csr"), Wavelet2D((16, 16), "db2", 3).matrix()
    width = np.exp(-5.0)
    form = SparseForm(
        [("normal", y, eye[seen], (0.003,)), ("student_t", np.zeros(len(rows.indptr) - 1), rows, (2.1, width))]
    )
    found = bounds(form)
    assert found.status.converged
    assert np.abs(found.state.unknowns).max() < 3.0
    assert (np.diff(found.objective) >= -1e-9 * np.abs(found.objective[1:])).all()


@pytest.mark.parametrize("hyper", ["fixed", "optimize"])
def test_sampled_variances_come_near_the_exact_ones(hyper):
    form = image(12, LEARN[0], LEARN[1], theta=np.log([0.1, 0.05]))
    exact = bounds(form, hyper, variance="exact")
    options = {"variance": "perturb-and-map", "n_samples": 200, "tol": 1e-3, "outer": 50}
    found, again = (bounds(form, hyper, **options) for _ in range(2))
    assert exact.status.converged
    assert found.status.converged
    assert found.log_evidence is None
    assert "standard error of 0.1;" in found.status.sentence
    np.testing.assert_allclose(found.scalars["variance_error"], np.sqrt(2 / 200))
    np.testing.assert_array_equal(found.state.unknowns, again.state.unknowns)
    deviation = np.sqrt(exact.state.variance[: 12**2])
    assert np.abs((found.state.unknowns - exact.state.unknowns) / deviation).mean() < 0.05
    assert np.abs(np.log(found.state.variance / exact.state.variance)).mean() < 0.15
    np.testing.assert_allclose(found.state.theta, exact.state.theta, atol=0.1)


def test_lanczos_variances_are_the_exact_ones_in_the_whole_space():
    form = line("laplace", ((0.3,), (0.2,)), n=24)
    one, other = bounds(form, variance="exact"), bounds(form, variance="lanczos", lanczos_steps=24, cg_tol=1e-10)
    np.testing.assert_allclose(other.state.unknowns, one.state.unknowns, atol=1e-3)
    np.testing.assert_allclose(other.state.variance, one.state.variance, rtol=1e-3)


def test_change_of_estimated_variances_is_a_root_mean_square():
    form = image(12, 0.1, 0.05)
    solver = Iterative(form.linear, n_samples=10)
    engine = DoubleLoop(form.linear, solver, inner="irls", inner_max_iter=20, tol=1e-3)
    problem = BoundedSites(form)
    before = engine.init(problem)
    after = engine.step(problem, before)
    moved = form.linear.matrix @ (after.unknowns - before.unknowns) / np.sqrt(after.variance)
    widened = np.log(after.variance / before.variance) / 2
    expected = np.sqrt(max(np.mean(moved**2), np.mean(widened**2)))
    np.testing.assert_allclose(engine.change(after), expected, rtol=1e-12)
    assert expected < 0.5 * np.abs(moved).max()


def test_few_conjugate_gradients_are_told_of():
    form = FORMS["laplace"]()
    found = bounds(form, variance="perturb-and-map", cg_max_iter=2, outer=3)
    assert not found.status.converged
    assert "raise cg_max_iter" in found.status.sentence


def test_loops_that_run_out_are_told_of():
    found = bounds(FORMS["laplace"](), outer=2)
    assert not found.status.converged
    assert "stopped after 2 outer loops" in found.status.sentence
    assert len(found.objective) == 3


def test_start_at_an_earlier_fit():
    form = FORMS["laplace"]()
    first = bounds(form, tol=1e-6)
    state = {"unknowns": first.state.unknowns, "variance": first.state.variance}
    again = solve_by_bounds(Call(form, form.start, "fixed", state, {"tol": 1e-5}))
    assert again.state.loop == 1
    np.testing.assert_allclose(again.log_evidence, first.log_evidence, rtol=1e-9)
    smaller = line("laplace", ((0.3,), (0.2,)), n=32)
    with pytest.raises(ValueError, match="start= holds 64 unknowns and 127 factors, but the model now has 32 and 63"):
        solve_by_bounds(Call(smaller, smaller.start, "fixed", state, {}))


def test_mode_is_the_soft_threshold():
    y = np.array([-2.0, -0.3, 0.1, 0.9, 5.0])
    eye = scipy.sparse.eye_array(5, format="csr")
    form = SparseForm([("normal", y, eye, (0.5,)), ("laplace", np.zeros(5), eye, (0.4,))])
    found = mode(form)
    assert found.status.converged
    assert found.log_evidence is None
    expected = np.sign(y) * np.maximum(np.abs(y) - 0.5**2 / 0.4, 0.0)
    # The potential is rounded over 1e-4 times its scale.
    np.testing.assert_allclose(found.state.unknowns, expected, atol=5e-5)


@pytest.mark.parametrize(("affordable", "tol"), [(np.inf, 1e-4), (0.0, 1e-5)], ids=["factors", "products"])
def test_mode_of_a_line_has_flat_pieces_and_the_highest_density(affordable, tol, monkeypatch):
    monkeypatch.setattr(sparse_dsb, "_AFFORDABLE", affordable)
    form = FORMS["laplace"]()
    found = mode(form, tol=tol)
    assert found.status.converged
    y, _ = form.observed()

    # The dual of total variation: y - x = sigma^2 / b D^T w with |w| <= 1, so that a box-bounded quadratic is solved.
    rows = differences(64).toarray()
    reach = 0.3**2 / 0.2
    dual = scipy.optimize.lsq_linear(reach * rows.T, y, bounds=(-1.0, 1.0), tol=1e-14, method="bvls")
    expected = y - reach * rows.T @ dual.x
    np.testing.assert_allclose(found.state.unknowns, expected, atol=1e-4)
    density = scipy.stats.norm.logpdf(y, expected, 0.3).sum()
    density += scipy.stats.laplace.logpdf(rows @ expected, scale=0.2).sum()
    np.testing.assert_allclose(found.objective[-1], density, atol=5e-3)


def test_a_mode_of_an_image_by_products_has_the_density_of_that_by_factors(monkeypatch):
    form = FORMS["image"]()
    exact = mode(form, tol=1e-7)
    monkeypatch.setattr(sparse_dsb, "_AFFORDABLE", 0.0)
    found = mode(form)
    assert found.status.converged
    # Where a loop gains n tol^2 / 2 = 1.5e-5 nats, few such gains are left.
    assert -1e-4 < found.objective[-1] - exact.objective[-1] < 1e-5
    np.testing.assert_allclose(found.state.unknowns, exact.state.unknowns, atol=1e-3)


@pytest.mark.parametrize("name", ["laplace", "student"])
def test_the_way_to_the_mode_rises_and_ends_at_the_smoothing_asked_for(name):
    form = FORMS[name]()
    found = mode(form)
    assert found.status.converged
    # Values rise as potentials are rounded less.
    assert np.diff(found.objective).min() > -1e-9 * abs(found.objective[-1])
    np.testing.assert_array_equal(found.state.variance, found.state.least)
    early = mode(form, outer=3)
    assert not early.status.converged
    assert early.state.variance.min() > 1e3 * found.state.variance.min()
    state = {what: getattr(found.state, what) for what in ("unknowns", "variance")}
    again = find_mode(Call(form, form.start, "fixed", state, {}))
    assert again.state.loop == 1


@pytest.mark.parametrize(("seed", "lower_from_zero"), [(0, True), (1, False), (2, True), (3, False)])
def test_a_mode_among_several_is_as_high_as_any_that_is_found_at_once(seed, lower_from_zero):
    """Student-t potentials: SciPy's BFGS on the density itself, from zero and from the data."""
    form = line("student_t", ((0.3,), (3.0, 0.1)), seed=seed)
    (y, _), rows = form.observed(), differences(64).toarray()

    def minus_log_density(x):
        jumps, nu, width = rows @ x, 3.0, 0.1
        value = -scipy.stats.norm.logpdf(y, x, 0.3).sum() - scipy.stats.t.logpdf(jumps, nu, scale=width).sum()
        return value, (x - y) / 0.3**2 + rows.T @ ((nu + 1) * jumps / (nu * width**2 + jumps**2))

    at_once = [scipy.optimize.minimize(minus_log_density, x, jac=True).fun for x in (np.zeros(64), y)]
    found = mode(form)
    np.testing.assert_allclose(found.objective[-1], -minus_log_density(found.state.unknowns)[0], atol=1e-5)
    assert found.objective[-1] >= -min(at_once) - 1e-5
    assert (found.objective[-1] > -at_once[0] + 0.1) == lower_from_zero


def test_mode_refuses_to_learn_scales():
    form = FORMS["laplace, learned"]()
    with pytest.raises(ValueError, match="method='map' holds hyperparameters"):
        find_mode(Call(form, form.start, "optimize", None, {}))


def test_constant_rows_do_no_harm():
    rows = scipy.sparse.vstack([differences(64), scipy.sparse.csr_array((1, 64))]).tocsr()
    plain = FORMS["laplace"]()
    y, _ = plain.observed()
    eye = scipy.sparse.eye_array(64, format="csr")
    padded = SparseForm([("normal", y, eye, (0.3,)), ("laplace", np.zeros(64), scipy.sparse.csr_array(rows), (0.2,))])
    one, other = bounds(plain), bounds(padded)
    np.testing.assert_allclose(other.state.unknowns, one.state.unknowns, atol=1e-4)
    np.testing.assert_allclose(other.log_evidence, one.log_evidence - np.log(0.4), rtol=1e-9)


def test_refusals():
    eye = scipy.sparse.eye_array(2, format="csr")
    form = SparseForm([("rectified_poisson", [1.0, 2.0], eye, ()), ("laplace", np.zeros(2), eye, (1.0,))])
    with pytest.raises(UnsupportedModelError, match=r"'rectified_poisson_0' has a rectified_poisson .* method='ep'"):
        bounds(form)
    form = SparseForm([("laplace", np.zeros(3), differences(4), (1.0,))])
    with pytest.raises(InvalidDataError, match="'laplace_0' do not determine all unknowns"):
        bounds(form)
    form = SparseForm([("logit", [1.0, 2.0], eye, ())])
    with pytest.raises(InvalidDataError, match=r"'logit_0' has the value 2\.0 at index 1"):
        bounds(form)
    form = SparseForm([("normal", [1.0, 2.0], eye, (1.0,))], offset=np.array([0.0, np.nan]))
    with pytest.raises(NumericalError, match="'normal_0' has the constant nan at index 1"):
        bounds(form)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"variance": "diagonal"}, "variance='diagonal' must be one of 'auto', 'exact'"),
        ({"inner": "newton"}, "inner='newton' must be one of 'irls'"),
        ({"n_samples": 0}, "n_samples=0 must be a whole number of at least 1"),
        ({"tol": 0.0}, "tol=0.0 must be positive"),
        ({"cg_tol": None}, "cg_tol=None must be positive"),
        ({"cg_tol": 2.0}, "cg_tol=2.0 must be below 1"),
    ],
)
def test_options_out_of_range(option, message):
    with pytest.raises(ValueError, match=message):
        bounds(FORMS["laplace"](), **option)


@pytest.mark.parametrize("variance", ["exact", "perturb-and-map"])
def test_a_scale_that_runs_to_zero_is_told_of(variance):
    """More normalised potentials than unknowns, as here, have densities without bound as their scale falls."""
    form = image(8, ("theta", 0), ("theta", 1), theta=(3.0, -4.0))
    with pytest.raises(NumericalError, match="the scale of a site may have run to zero"):
        bounds(form, "optimize", outer=300, variance=variance)


def test_lanczos_does_not_learn_scales():
    with pytest.raises(ValueError, match="variance='lanczos' finds variances that are too small"):
        bounds(FORMS["laplace, learned"](), "optimize", variance="lanczos")
