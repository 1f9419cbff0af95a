"""Sparse linear fits in other units and from other origins: the same result, and modes as high as the highest known."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.stats

from pymc_ep.contracts import Call
from pymc_ep.models.sparse_linear.engine import inner_loop
from pymc_ep.models.sparse_linear.methods.double_loop import find_mode, solve_by_bounds

from .sparse_forms import SparseForm, differences, steps

N, NOISE, NU, WIDTH = 20, 0.5, 2.5, 0.3
ROWS = differences(N).toarray()
NOISES = {"normal": (), "student_t": (4.0,), "laplace": ()}
"""Parameters of each likelihood before its scale."""


def observations(seed=0):
    """A piecewise constant signal in noise, some of it far away."""
    rng = np.random.default_rng(seed)
    return 4.0 * steps(N, rng) + NOISE * rng.standard_normal(N) + 8.0 * rng.standard_normal(N) * (rng.random(N) < 0.1)


def line(noise, *, unit=1.0, origin=0.0, seed=0):
    """The signal and all scales times a unit, with Student-t potentials on its differences."""
    y, eye = observations(seed) + origin, scipy.sparse.eye_array(N, format="csr")
    likelihood = noise, unit * y, eye, (*NOISES[noise], unit * NOISE)
    return SparseForm([likelihood, ("student_t", np.zeros(N - 1), differences(N), (NU, unit * WIDTH))])


def fitted(solve, form, **options):
    return solve(Call(form, form.start, "fixed", None, options))


def log_density(noise, x, y):
    away = {
        "normal": lambda: scipy.stats.norm.logpdf(y, x, NOISE),
        "student_t": lambda: scipy.stats.t.logpdf(y, NOISES["student_t"][0], x, NOISE),
        "laplace": lambda: scipy.stats.laplace.logpdf(y, x, NOISE),
    }[noise]()
    return away.sum() + scipy.stats.t.logpdf(ROWS @ x, NU, scale=WIDTH).sum()


def slope(noise, x, y):
    r, jumps, nu = x - y, ROWS @ x, NOISES["student_t"][0]
    away = -r / NOISE**2 if noise == "normal" else -(nu + 1) * r / (nu * NOISE**2 + r**2)
    return away - ROWS.T @ ((NU + 1) * jumps / (NU * WIDTH**2 + jumps**2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", ["normal", "student_t"])
def test_the_mode_in_any_unit_is_as_high_as_any_of_many_starts(noise, seed):
    y, rng = observations(seed), np.random.default_rng(1)
    starts = [y, np.zeros(N), *(y + scale * rng.standard_normal((20, N)) for scale in (0.3, 1.0, 3.0))]
    best = -min(
        scipy.optimize.minimize(
            lambda x: -log_density(noise, x, y), start, jac=lambda x: -slope(noise, x, y), method="L-BFGS-B"
        ).fun
        for start in np.vstack(starts)
    )
    modes = {unit: fitted(find_mode, line(noise, unit=unit, seed=seed)) for unit in (1.0, 1e-6, 1e6)}
    for unit, found in modes.items():
        assert found.status.converged
        np.testing.assert_allclose(found.state.unknowns / unit, modes[1.0].state.unknowns, atol=1e-12)
    assert log_density(noise, modes[1.0].state.unknowns, y) > best - 1e-5


@pytest.mark.parametrize("inner", ["lbfgs", "newton-cg"])
def test_scipys_minimisers_stop_at_the_same_height_in_any_unit(inner):
    y, expected = observations(), fitted(find_mode, line("normal")).state.unknowns
    for unit in (1.0, 1e-6, 1e6):
        found = fitted(find_mode, line("normal", unit=unit), inner=inner)
        assert found.status.converged
        height = log_density("normal", found.state.unknowns / unit, y)
        np.testing.assert_allclose(height, log_density("normal", expected, y), atol=1e-5)


@pytest.mark.parametrize("noise", ["student_t", "laplace"])
@pytest.mark.parametrize("solve", [find_mode, solve_by_bounds])
def test_the_origin_of_the_data_is_of_no_account(solve, noise):
    """The smoothing is that of the site alone, wherever its centre is."""
    plain = fitted(solve, line(noise), tol=1e-6)
    moved = fitted(solve, line(noise, origin=1e6), tol=1e-6)
    np.testing.assert_allclose(moved.state.unknowns - 1e6, plain.state.unknowns, atol=2e-4)


@pytest.mark.parametrize("noise", NOISES)
def test_the_bound_in_another_unit_is_less_by_its_log_for_each_factor_beyond_the_unknowns(noise):
    expected = fitted(solve_by_bounds, line(noise))
    for unit in (1e-6, 1e6):
        found = fitted(solve_by_bounds, line(noise, unit=unit))
        np.testing.assert_allclose(found.state.unknowns / unit, expected.state.unknowns, atol=1e-10)
        np.testing.assert_allclose(found.state.variance / unit**2, expected.state.variance, rtol=1e-9)
        # A flat density of the N unknowns has the unit of N predictors.
        shift = -(N - 1) * np.log(unit)
        np.testing.assert_allclose(found.log_evidence, expected.log_evidence + shift, atol=1e-8)


def test_a_search_that_stalls_on_a_slope_has_not_converged(monkeypatch):
    def stuck(problem, unknowns, solver, max_iter, tol):
        fitted_there = problem.forward(unknowns)
        return inner_loop.Inner(unknowns, fitted_there, problem.bounded(problem.offset + fitted_there), True)

    monkeypatch.setitem(inner_loop.INNER, "irls", stuck)
    found = fitted(find_mode, line("normal"))
    assert not found.status.converged
    assert "stopped after" in found.status.sentence
