"""A Hilbert-space approximation whose domain is too small for its lengthscale is not silently another prior."""

import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

X = np.linspace(-1.0, 1.0, 31)
Y = np.sin(2.0 * X)
NOISE, SCALE = 0.5, 1.0


def fitted(c, m=40):
    with pm.Model():
        gp = pm.gp.HSGP(m=[m], c=c, cov_func=pm.gp.cov.ExpQuad(1, ls=SCALE))
        f = gp.prior("f", X[:, None])
        pm.Normal("y", f, NOISE, observed=Y)
        return pmep.fit(draws=0, progressbar=False)


def exact_sd():
    kernel = np.exp(-0.5 * (X[:, None] - X) ** 2 / SCALE**2)
    posterior = kernel - kernel @ np.linalg.solve(kernel + NOISE**2 * np.eye(len(X)), kernel)
    return np.sqrt(posterior.diagonal())


def test_a_narrow_domain_is_told_with_the_cure():
    with pytest.warns(UserWarning, match=r"prior of 'f' is not that of its kernel.* [89]\d% less variance.*raise c="):
        idata = fitted(1.2)
    assert "raise c=" in idata["fit"].attrs["status"] and bool(idata["fit"]["converged"])
    # What is told is no small matter: the posterior at the edge is far narrower than it should be.
    assert idata["posterior_sd"]["f"].to_numpy()[0] < 0.7 * exact_sd()[0]


def test_a_wide_domain_is_the_process_and_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        idata = fitted(4.0)
    np.testing.assert_allclose(idata["posterior_sd"]["f"], exact_sd(), rtol=1e-3)


@pytest.mark.parametrize(("length", "warned"), [(0.3, False), (1.5, True)])
def test_lengthscales_are_judged_as_they_are_reached(length, warned):
    with pm.Model(), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.LogNormal("length", -1.0, 1.0)))
        pm.Normal("y", gp.prior("f", X[:, None]), NOISE, observed=X)
        pmep.fit(hyper="fixed", start={"length": length}, draws=0, progressbar=False)
    assert any("prior of 'f' is not that of its kernel" in str(one.message) for one in found) == warned


def test_a_process_without_its_first_function_is_not_judged():
    """Its prior is meant to be another than its kernel's: its variance is least in the middle."""
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("error")
        # PyMC calls the argument deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        gp = pm.gp.HSGP(m=[30], c=2.0, drop_first=True, cov_func=pm.gp.cov.ExpQuad(1, ls=0.5))
        pm.Normal("y", gp.prior("f", X[:, None]), NOISE, observed=Y)
        pmep.fit(draws=0, progressbar=False)
