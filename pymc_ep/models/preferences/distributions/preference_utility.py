"""Utilities of items to users, which share one Gaussian prior of low rank plus a kernel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Continuous
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.gp.cov import BaseCovariance
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

from pymc_ep.compat import solve_triangular
from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.kernels import register_bodies

__all__ = ["LowRankUtilityRV", "PreferenceUtility", "PreferenceUtilityRV"]

_LITTLE = 1e-6
"""Default jitter, relative to the largest entry of a kernel: far above rounding, and far below modelled effects."""
_SYMMETRIC = 1e-8
"""Largest difference between a kernel and its transpose, relative to its largest entry, that counts as rounding."""


class _UtilityRV(RandomVariable):
    """A random variable whose draws are rows of I utilities, (..., I), one for each user; I is the length of b."""

    dtype = "floatX"
    _print_name = ("PreferenceUtility", "\\operatorname{PreferenceUtility}")

    def _supp_shape_from_params(self, dist_params: Sequence[Any], param_shapes: Any = None) -> tuple[Any, ...]:
        mean = dist_params[0]
        return ((mean.shape if param_shapes is None else param_shapes[0])[-1],)


class PreferenceUtilityRV(_UtilityRV):
    """Op of `PreferenceUtility`: rows of a Gaussian with covariance V V^T + sigma^2 K."""

    name = "preference_utility"
    signature = "(i),(i,d),(i,i),()->(i)"

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, b: Any, V: Any, K: Any, sigma: Any, size: Any) -> np.ndarray:
        """Draw rows, (*size, I); no matrix is larger than the kernel."""
        batch = np.broadcast_shapes(b.shape[:-1], V.shape[:-2], K.shape[:-2], np.shape(sigma)) if size is None else size
        shared, noise = rng.standard_normal((*batch, V.shape[-1])), rng.standard_normal((*batch, K.shape[-1]))
        # b + V z + sigma L e, with K = L L^T.
        common = np.einsum("...d,...id->...i", shared, V)
        return b + common + sigma[..., None] * np.einsum("...j,...ij->...i", noise, np.linalg.cholesky(K))


class LowRankUtilityRV(_UtilityRV):
    """Op of `PreferenceUtility` with K = R R^T + j I."""

    name = "low_rank_utility"
    signature = "(i),(i,d),(i,r),(),()->(i)"

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, b: Any, V: Any, R: Any, j: Any, sigma: Any, size: Any) -> np.ndarray:
        """Draw rows, (*size, I); no matrix is larger than V or R."""
        batches = b.shape[:-1], V.shape[:-2], R.shape[:-2], np.shape(j), np.shape(sigma)
        batch = np.broadcast_shapes(*batches) if size is None else size
        sizes = V.shape[-1], R.shape[-1], b.shape[-1]
        shared, of_kernel, noise = (rng.standard_normal((*batch, n)) for n in sizes)
        # b + V z + sigma (R y + sqrt(j) e).
        kernel = np.einsum("...r,...ir->...i", of_kernel, R) + np.sqrt(j)[..., None] * noise
        return b + np.einsum("...d,...id->...i", shared, V) + sigma[..., None] * kernel


preference_utility = PreferenceUtilityRV()
low_rank_utility = LowRankUtilityRV()
register_bodies("numba", "pymc_ep.models.preferences.distributions.preference_utility_numba")


class PreferenceUtility(Continuous):
    r"""Utilities of items to users: the utilities of each user are a draw from one Gaussian [1]_.

    .. math:: f_u \sim N(b, V V^\top + \sigma^2 K), \qquad u = 1, \dots, U

    V models tastes that users share: items with similar rows of V are liked by the same users. K models how utilities
    of items correlate by the items' features.

    Parameters
    ----------
    name : str
    V : tensor_like, (I, D), optional
        D factors of each item, such as ``pm.Normal("V", 0, 0.5, dims=("item", "factor"))``, which a fit learns. By
        default there is no term V V^T.
    b : tensor_like, (I,), optional
        Mean utilities; zero by default.
    kernel : tensor_like, (I, I), or pymc.gp.cov.Covariance, optional
        K: the covariance of items, or a covariance function of features `X`. The identity by default.
    X : array_like or pymc.Data, (I, F), optional
        Features of the items, for a covariance function.
    kernel_factor : tensor_like, (I, R), optional
        Instead of `kernel`: R of the covariance K = R R^T + jitter I, such as ``phi * sqrt_psd`` of
        `pymc.gp.HSGP.prior_linearized`. Memory is then linear in the number of items.
    sigma : tensor_like, (), optional
        Scale of the kernel; one by default.
    jitter : float, optional
        Added to the diagonal of `kernel`; by default 1e-6 of its largest entry. Khan et al. add 0.1, which lets items
        of equal features differ. With `kernel_factor` a positive jitter must be given.
    n_users : int, optional
        Number of users; by default from `dims` or `shape`. Without any of the three there is one user, and the variable
        is a vector, (I,).
    **kwargs
        Keywords of the variable, such as ``dims=("user", "item")``.

    Raises
    ------
    InvalidDataError
        For a kernel that is not square, not symmetric or not of the size of V and b, for features that are not finite,
        and for `kernel_factor` without a positive jitter.

    References
    ----------
    .. [1] M. E. Khan, Y. J. Ko and M. Seeger (2014), Scalable collaborative Bayesian preference learning, AISTATS.

    Examples
    --------
    >>> with pm.Model(coords={"item": ["tea", "milk", "rum"]}):
    ...     V = pm.Normal("V", 0, 0.5, shape=(3, 1))
    ...     f = PreferenceUtility("f", V=V, n_users=100)
    """

    rv_op = preference_utility

    def __new__(cls, name: str, *args: Any, n_users: int | None = None, **kwargs: Any) -> Any:
        """Add the utilities to the model."""
        if n_users is not None and not kwargs.keys() & {"shape", "dims"}:
            kwargs["size"] = (n_users,)
        try:
            variable = super().__new__(cls, name, *args, **kwargs)
        except InvalidDataError as error:
            raise InvalidDataError(f"{name!r}: {error}") from None
        users = variable.type.shape[0] if variable.ndim > 1 else None
        if None not in (n_users, users) and n_users != users:
            raise InvalidDataError(f"{name!r} has n_users={n_users}, but its dims or shape have {users}; give one.")
        return variable

    @classmethod
    def dist(
        cls,
        V: Any = None,
        b: Any = None,
        kernel: Any = None,
        X: Any = None,
        kernel_factor: Any = None,
        sigma: Any = 1.0,
        jitter: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return a variable of this distribution outside of any model."""
        kernel = _matrix(kernel, X)
        if kernel_factor is not None:
            _check_factor(kernel, kernel_factor, jitter)
        named = (("V", V, 2), ("b", b, 1), ("kernel", kernel, 2), ("kernel_factor", kernel_factor, 2))
        given = {key: pt.as_tensor_variable(value) for key, value, _ in named if value is not None}
        for key, _, ndim in named:
            if key in given and given[key].ndim != ndim:
                raise InvalidDataError(
                    f"{key}= has {given[key].ndim} dimensions and needs {ndim}, of which the first is that of items."
                )
        if not given:
            raise InvalidDataError("give V=, b=, kernel= or kernel_factor=, from which the number of items is known.")
        sizes = {key: value.type.shape[0] for key, value in given.items() if value.type.shape[0] is not None}
        if len(set(sizes.values())) > 1:
            raise InvalidDataError(f"{' and '.join(f'{key}= has {n} items' for key, n in sizes.items())}; correct one.")
        if (sigma := pt.as_tensor_variable(sigma)).ndim:
            raise InvalidDataError(f"sigma= has {sigma.ndim} dimensions, and is one number for all users and items.")
        n_items = next(iter(sizes.values())) if sizes else infer_shape([next(iter(given.values()))], (), ())[0][0]
        mean, factors = given.get("b", pt.zeros(n_items)), given.get("V", pt.zeros((n_items, 0)))
        if "kernel" not in given:
            # Without any kernel K is the identity, of rank zero beside the jitter.
            root = given.get("kernel_factor", pt.zeros((n_items, 0)))
            diagonal = pt.as_tensor_variable(jitter if "kernel_factor" in given else 1.0)
            return _LowRankUtility.dist([mean, factors, root, diagonal, sigma], **kwargs)
        kernel = given["kernel"]
        jitter = _LITTLE * pt.max(pt.abs(kernel)) if jitter is None else jitter
        return super().dist([mean, factors, kernel + jitter * pt.eye(n_items), sigma], **kwargs)

    def support_point(rv: Any, size: Any, mean: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value."""
        return _mean_rows(size, mean)

    def logp(value: Any, mean: Any, factors: Any, kernel: Any, sigma: Any) -> Any:
        """Return the graph of the log density of each user's utilities."""
        root = pt.linalg.cholesky(factors @ factors.mT + sigma[..., None, None] ** 2 * kernel)
        white = solve_triangular(root, (value - mean)[..., None], lower=True, b_ndim=2)
        # -n log(2 pi) / 2 - |L^-1 (f - b)|^2 / 2 - sum_i log L_ii, with L L^T the covariance.
        size = np.log(2.0 * np.pi) * value.shape[-1]
        log_det = pt.log(pt.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
        return -0.5 * (size + (white**2).sum(axis=(-2, -1))) - log_det


class _LowRankUtility(Continuous):
    """`PreferenceUtility` with the kernel R R^T + j I of low rank plus a multiple of the identity."""

    rv_op = low_rank_utility

    def support_point(rv: Any, size: Any, mean: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value."""
        return _mean_rows(size, mean)

    def logp(value: Any, mean: Any, factors: Any, root: Any, jitter: Any, sigma: Any) -> Any:
        """Return the graph of the log density of each user's utilities, by Woodbury's identity.

        With A = [V, sigma R] and c = sigma^2 j the covariance is A A^T + c I = c (I - A M^{-1} A^T / c)^{-1} for
        M = I + A^T A / c.
        """
        scale = sigma[..., None, None]
        both = pt.concatenate([factors + pt.zeros_like(scale), scale * root], axis=-1)
        variance = sigma**2 * jitter
        small = pt.linalg.cholesky(pt.eye(both.shape[-1]) + both.mT @ both / variance[..., None, None])
        deviation = value - mean
        white = solve_triangular(small, both.mT @ deviation[..., None], lower=True, b_ndim=2)
        # (|d|^2 - |L^-1 A^T d|^2 / c) / c for d = f - b and M = L L^T; the determinant is c^n |M|.
        square = ((deviation**2).sum(axis=-1) - (white**2).sum(axis=(-2, -1)) / variance) / variance
        log_det = pt.log(pt.diagonal(small, axis1=-2, axis2=-1)).sum(axis=-1)
        return -0.5 * (pt.log(2.0 * np.pi * variance) * value.shape[-1] + square) - log_det


def _mean_rows(size: Any, mean: Any) -> Any:
    """Return the graph of the mean utilities of all users, (*size, I)."""
    # A copy, as PyMC puts initial values in place of random variables inside a graph, but not of its output.
    return mean.copy() if rv_size_is_none(size) else pt.broadcast_to(mean, (*size, mean.shape[-1]))


def _check_factor(kernel: Any, factor: Any, jitter: Any) -> None:
    """Raise InvalidDataError if there is a kernel too, if the jitter is not positive, or if entries are not finite."""
    if kernel is not None:
        raise InvalidDataError("kernel= and kernel_factor= are both the covariance of items; give one of them.")
    if jitter is None or not (isinstance(jitter, Variable) or np.all(np.asarray(jitter) > 0)):
        raise InvalidDataError(
            f"kernel_factor= with jitter={jitter!r} is a covariance without an inverse; give a positive jitter=, such "
            f"as 0.1."
        )
    if not isinstance(factor, Variable) and not np.isfinite(values := np.asarray(factor, dtype=float)).all():
        place = first_index(~np.isfinite(values))
        raise InvalidDataError(f"kernel_factor= has the value {values[place]}{at_index(place)}; correct it.")


def _matrix(kernel: Any, X: Any) -> Any:
    """Return the kernel as a matrix, or None without one; raise InvalidDataError unless it and X are valid."""
    if isinstance(kernel, BaseCovariance):
        if X is None:
            raise InvalidDataError("kernel= is a covariance function, and needs the features X= of the items.")
        if isinstance(X, Variable):
            return kernel(X)
        features = np.asarray(X, dtype=float)
        if features.ndim != 2:
            raise InvalidDataError(f"X= has the shape {features.shape}; give a matrix, (items, features).")
        if not np.isfinite(features).all():
            place = first_index(~np.isfinite(features))
            raise InvalidDataError(f"X= has the feature {features[place]}{at_index(place)}; replace it by a number.")
        return kernel(features)
    if X is not None:
        raise InvalidDataError("X= holds features for a covariance function, and kernel= is none; leave X= out.")
    if kernel is None or isinstance(kernel, Variable):
        return kernel
    matrix = np.asarray(kernel, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidDataError(f"kernel= has the shape {matrix.shape}; give a square matrix, (items, items).")
    if not np.isfinite(matrix).all():
        place = first_index(~np.isfinite(matrix))
        raise InvalidDataError(f"kernel= has the value {matrix[place]}{at_index(place)}; correct it.")
    asymmetry = np.abs(matrix - matrix.T)
    if asymmetry.max(initial=0.0) > _SYMMETRIC * np.abs(matrix).max(initial=0.0):
        i, j = np.unravel_index(int(np.argmax(asymmetry)), asymmetry.shape)
        raise InvalidDataError(
            f"kernel= is not symmetric: it is {matrix[i, j]:.6g} at ({i}, {j}) and {matrix[j, i]:.6g} at ({j}, {i}); "
            f"correct it, or give (kernel + kernel.T) / 2."
        )
    return matrix
