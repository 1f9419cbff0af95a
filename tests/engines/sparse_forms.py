"""Sparse linear forms written by hand, and dense references for them."""

from types import SimpleNamespace

import numpy as np
import scipy.sparse

from pymc_ep.engines.prior import Prior
from pymc_ep.numerics.iterative.conjugate_gradients import jacobi
from pymc_ep.numerics.precision.plan import plan_algebra
from pymc_ep.sites import compile_site, get_site


class SparseForm:
    """Groups of (site, y, rows of D, parameters); a parameter given as ("theta", k) is exp(theta_k).

    theta has independent standard normal priors.
    """

    on_jax = False

    def __init__(self, groups, theta=(), offset=None):
        self.sites = [compile_site(name) for name, *_ in groups]
        self._observed = [np.asarray(y, dtype=float) for _, y, *_ in groups]
        self._parameters = [parameters for *_, parameters in groups]
        self.start = np.array(theta, dtype=float)
        matrix = scipy.sparse.csr_array(scipy.sparse.vstack([rows for _, _, rows, _ in groups]))
        self.offset = np.zeros(matrix.shape[0]) if offset is None else offset
        self.linear = SimpleNamespace(
            matrix=matrix,
            size=matrix.shape[1],
            forward=lambda x: matrix @ x,
            adjoint=lambda v: matrix.T @ v,
            normal=lambda weights: lambda x: matrix.T @ (weights * (matrix @ x)),
            preconditioner=lambda weights: jacobi(matrix.power(2).T @ weights),
            algebra=plan_algebra(matrix),
        )
        named = [SimpleNamespace(name=f"{name}_{k}", site=get_site(name)) for k, (name, *_) in enumerate(groups)]
        self.form = SimpleNamespace(factors=named)

    @property
    def varying_parameters(self):
        return tuple(any(isinstance(p, tuple) for p in parameters) for parameters in self._parameters)

    def observed(self):
        return self._observed

    def residuals(self):
        """Observations as such: predictors of this form are counted from zero."""
        return [y.ravel() for y in self._observed]

    def factors_at(self, theta):
        def value(parameter, y):
            scalar = np.exp(theta[parameter[1]]) if isinstance(parameter, tuple) else parameter
            return np.full(y.size, scalar, dtype=float)

        parameters = tuple(
            tuple(value(p, y) for p in group) for group, y in zip(self._parameters, self._observed, strict=True)
        )
        log_prior = -0.5 * float(theta @ theta)
        return Prior(self.offset, None, parameters, log_prior, 0.5 * self.linear.matrix.shape[1] * np.log(2 * np.pi))

    def first_sites(self, prior):
        """Shift and precision of Gaussians with the typical moments of each site."""
        found = [
            np.broadcast_arrays(y, *site.site.typical(y, *parameters))[1:]
            for site, y, parameters in zip(self.sites, self._observed, prior.parameters, strict=True)
        ]
        mean, variance = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return mean / variance, 1.0 / variance

    def pullback(self, theta, mean, array, parameters, *, density):
        assert array is None
        assert density == "natural"
        out = -theta
        for group, cotangents in zip(self._parameters, parameters, strict=True):
            for parameter, cotangent in zip(group, cotangents, strict=True):
                if isinstance(parameter, tuple):
                    out[parameter[1]] += np.exp(theta[parameter[1]]) * cotangent.sum()
        return out


def differences(*shape):
    """All first differences of neighbours in an image, with the image C-ravelled."""
    rows = []
    for axis, length in enumerate(shape):
        step = scipy.sparse.diags_array([-np.ones(length), np.ones(length)], offsets=[0, 1], shape=(length - 1, length))
        factors = [step if k == axis else scipy.sparse.eye_array(n) for k, n in enumerate(shape)]
        out = factors[0]
        for factor in factors[1:]:
            out = scipy.sparse.kron(out, factor)
        rows.append(out)
    return scipy.sparse.csr_array(scipy.sparse.vstack(rows))


def steps(n, rng, scale=1.0):
    """A piecewise constant signal."""
    return scale * np.cumsum(rng.standard_normal(n) * (rng.random(n) < 0.1))
