"""Closed forms of Gaussian matrix factorisation, against coordinate ascent, minimisers and published numbers."""

import numpy as np
import pytest
import scipy.optimize

from pymc_ep.numerics.factorisation.singular_value_shrinkage import (
    best_variances,
    shrink,
    shrink_empirically,
    shrink_to_points,
    threshold,
)

CASES = {
    "wide": ((7, 12), 0.8, [2.0, 0.9, 0.4], [1.0, 0.7, 0.5], 3.0),
    "tall": ((11, 6), 0.5, [0.5, 1.2, 0.8], [1.5, 0.6, 0.7], 2.0),
    "square": ((8, 8), 1.3, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 4.0),
    "weak": ((9, 7), 1.0, [0.3, 0.2, 0.1], [0.3, 0.2, 0.1], 0.5),
}
every_case = pytest.mark.parametrize("name", CASES)


def made(name, seed=0):
    shape, noise, left, right, size = CASES[name]
    rng = np.random.default_rng(seed)
    product = rng.normal(size=(shape[0], 2)) @ np.diag([1.0, 0.5]) @ rng.normal(size=(2, shape[1])) * size
    return product + np.sqrt(noise) * rng.normal(size=shape), shape, noise, np.array(left), np.array(right)


def free_energy(matrix, noise, left, right, mean_l, var_l, mean_r, var_r):
    """Expected minus log joint density less the entropy, entry by entry."""
    second_l, second_r = mean_l**2 + var_l, mean_r**2 + var_r
    fitted = mean_l @ mean_r.T
    square = matrix**2 - 2 * matrix * fitted + fitted**2 + second_l @ second_r.T - mean_l**2 @ (mean_r**2).T
    energy = (0.5 * np.log(2 * np.pi * noise) + square / (2 * noise)).sum()
    for second, var, prior in ((second_l, var_l, left), (second_r, var_r, right)):
        energy += 0.5 * (np.log(prior / var) + second / prior - 1).sum()
    return energy


def coordinate_ascent(matrix, noise, left, right, seed, sweeps):
    """Mean-field updates, one column of one side at a time, from random means."""
    rng = np.random.default_rng(seed)
    means = [rng.normal(size=(size, len(left))) for size in matrix.shape]
    variances = [np.full(m.shape, 0.5) for m in means]
    for _ in range(sweeps):
        for side, (own, data) in enumerate(((left, matrix), (right, matrix.T))):
            m, v, other, w = means[side], variances[side], means[1 - side], variances[1 - side]
            for k in range(len(left)):
                rest = data - m @ other.T + np.outer(m[:, k], other[:, k])
                v[:, k] = 1 / (1 / own[k] + (other[:, k] ** 2 + w[:, k]).sum() / noise)
                m[:, k] = v[:, k] * (rest @ other[:, k]) / noise
    return free_energy(matrix, noise, left, right, means[0], variances[0], means[1], variances[1])


def closed(matrix, shape, noise, left, right, kind="vb"):
    """Posterior of the columns by the closed form, with the largest singular values where c is largest."""
    a, values, b = np.linalg.svd(matrix, full_matrices=False)
    order = np.argsort(-left * right, kind="stable")
    left, right, values = left[order], right[order], values[: len(left)]
    found = shrink(values, shape, noise, left, right) if kind == "vb" else shrink_to_points(values, noise, left, right)
    means = a[:, : len(left)] * found.left, b[: len(left)].T * found.right
    variances = [np.tile(v, (size, 1)) for v, size in zip((found.left_variance, found.right_variance), shape)]
    return left, right, means, variances, values, found


@every_case
def test_no_coordinate_ascent_ends_lower(name):
    matrix, shape, noise, left, right = made(name)
    left_, right_, means, variances, *_ = closed(matrix, shape, noise, left, right)
    best = free_energy(matrix, noise, left_, right_, means[0], variances[0], means[1], variances[1])
    ends = [coordinate_ascent(matrix, noise, left_, right_, seed, 300) for seed in range(12)]
    assert min(ends) >= best - 1e-8
    # Given columns in order of c, ascent finds it from some start.
    assert min(ends) == pytest.approx(best, abs=1e-2)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
@pytest.mark.parametrize("singular", [0.5, 4.0, 5.5, 9.0, 40.0])
def test_one_column_against_a_generic_minimiser(shape, singular):
    (m, n), noise, left, right = shape, 1.3, 0.7, 1.9

    def energy(x):
        u, v, a, b = np.exp(x)
        spread = (u**2 + m * a) * (v**2 + n * b)
        kl = m * np.log(left / a) + n * np.log(right / b) + (u**2 + m * a) / left + (v**2 + n * b) / right
        return 0.5 * kl + (spread - 2 * singular * u * v) / (2 * noise)

    found = shrink(np.array([singular]), shape, noise, np.array([left]), np.array([right]))
    own = energy(np.log(np.maximum(np.concatenate(found), 1e-9)))
    rng, ends = np.random.default_rng(0), []
    for _ in range(6):
        options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 8000, "maxfev": 8000}
        ends.append(scipy.optimize.minimize(energy, rng.normal(size=4), method="Nelder-Mead", options=options).fun)
    assert own == pytest.approx(min(ends), abs=1e-7)
    least = threshold(shape, noise, np.array([left * right]))[0]
    assert bool(found.left[0] > 0) == (singular > least)
    norms = (found.left, found.right)
    variances = best_variances(norms, shape, noise, np.array([left]), np.array([right]))
    for inverse, prior, other, size, variance in (
        (1 / variances[0], left, found.right, n, variances[1]),
        (1 / variances[1], right, found.left, m, variances[0]),
    ):
        np.testing.assert_allclose(inverse, 1 / prior + (other**2 + size * variance) / noise, rtol=1e-10)


def test_the_quartic_of_the_first_solution():
    """Nakajima and Sugiyama (2011): the product of the norms is the second largest real root, above the threshold."""
    m, n, noise, c = 6, 10, 0.9, 1.7
    for value in np.linspace(1.01, 6.0, 7) * threshold((m, n), noise, c):
        eta2 = (value**2 - m * noise) * (value**2 - n * noise) / value**2
        x3 = (m - n) ** 2 * value / (m * n)
        x2 = -(x3 * value + (m**2 + n**2) * eta2 / (m * n) + 2 * noise**2 / c)
        x0 = (eta2 - noise**2 / c) ** 2
        roots = np.roots([1.0, x3, x2, x3 * np.sqrt(x0), x0])
        real = np.sort(roots[np.abs(roots.imag) < 1e-8].real)
        found = shrink(np.array([value]), (m, n), noise, np.array([c]), np.array([1.0]))
        assert (found.left * found.right)[0] == pytest.approx(real[-2], rel=1e-9)


def test_norms_vanish_continuously_at_the_threshold():
    least = threshold((6, 10), 0.9, 1.7)
    for factor, bound in ((1 - 1e-9, 0.0), (1 + 1e-9, 1e-6)):
        found = shrink(np.array([factor * least]), (6, 10), 0.9, np.array([1.7]), np.array([1.0]))
        assert (found.left * found.right)[0] <= bound


@pytest.mark.parametrize("shape", [(40, 40), (60, 15), (15, 60)])
def test_empirical_variances_minimise_the_free_energy(shape):
    """Against a search over c, and with the threshold of Nakajima et al. (2013)."""
    (m, n), noise = shape, 0.6
    ratio = min(shape) / max(shape)

    def balance(tau):
        return sum(np.log1p(z) / z - 0.5 for z in (tau, tau / ratio))

    tau = scipy.optimize.brentq(balance, 1e-3, 100.0)
    if m == n:
        assert tau == pytest.approx(2.5129, abs=5e-5)
    least = np.sqrt(noise * max(shape) * (1 + tau) * (1 + ratio / tau))

    def energy(value, log_c):
        c = np.exp(log_c / 2)
        prior = np.array([c])
        u, v, a, b = (part[0] for part in shrink(np.array([value]), shape, noise, prior, prior))
        kl = m * np.log(c / a) + n * np.log(c / b) + (u**2 + m * a + v**2 + n * b) / c - m - n
        return 0.5 * kl + ((u**2 + m * a) * (v**2 + n * b) - 2 * value * u * v) / (2 * noise)

    for factor in (0.7, 0.999, 1.001, 1.5, 4.0):
        value = factor * least
        found = shrink_empirically(np.array([value]), shape, noise)
        if factor < 1:
            assert not np.concatenate(found).any()
        grid = np.linspace(-16.0, 8.0, 400)
        energies = np.array([energy(value, x) for x in grid])
        # Without any variance the free energy is zero.
        assert bool(energies.min() < -1e-6) == (factor > 1)
        if factor > 1:
            near = grid[np.argmin(energies)]
            best = scipy.optimize.minimize_scalar(
                lambda x, value=value: energy(value, x), (near - 0.1, near + 0.1), tol=1e-10
            )
            second = [(part**2 + size * var)[0] / size for part, var, size in zip(found[:2], found[2:], shape)]
            # At the best prior variances these are the mean second moments.
            np.testing.assert_allclose(second, np.exp(best.x / 2), rtol=1e-5)


@every_case
def test_points_are_the_mode(name):
    matrix, shape, noise, left, right = made(name)
    left, right, means, _, *_ = closed(matrix, shape, noise, left, right, "map")

    def fall(x):
        l, r = np.split(x, [shape[0] * 3])  # noqa: E741
        l, r = l.reshape(-1, 3), r.reshape(-1, 3)  # noqa: E741
        rest = l @ r.T - matrix
        slope = [rest @ r / noise + l / left, rest.T @ l / noise + r / right]
        value = (rest**2).sum() / (2 * noise) + (l**2 / left).sum() / 2 + (r**2 / right).sum() / 2
        return value, np.concatenate([part.ravel() for part in slope])

    own = fall(np.concatenate([part.ravel() for part in means]))[0]
    rng = np.random.default_rng(0)
    ends = [
        scipy.optimize.minimize(fall, rng.normal(size=sum(shape) * 3), jac=True, method="L-BFGS-B").fun
        for _ in range(5)
    ]
    assert min(ends) == pytest.approx(own, rel=1e-6)
