"""Smooth curves in time: random walks of second order, open and cyclic."""

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy.sparse
from pymc.model import modelcontext

from pymc_ep.distributions.gaussian_markov import GaussianMarkov, require_between
from pymc_ep.exceptions import InvalidDataError

__all__ = ["RandomWalk2"]

_UNEVEN = 1.5
"""Ratio of a step of time to the usual step from which on a time counts as left out: months and years differ less."""


class RandomWalk2:
    r"""Smooth curve at evenly spaced times: its second differences are independent normals [1]_.

    .. math:: x_{t+1} - 2 x_t + x_{t-1} \sim N(0, s^2)

    The values of x sum to zero: add a level to the predictor. Second differences do not determine the slope of a
    straight line through the curve, which has a prior of its own. In a cyclic curve, such as one over the months of a
    year, the first value follows the last one, and there is no slope.

    Parameters
    ----------
    name : str
    sigma : tensor_like, ()
        Typical standard deviation of x about the line: s is sigma over the geometric mean of the standard deviations at
        s = 1, so that sigma means the same for any number of times.
    slope : distribution, variable, or 0
        Prior of the rise over half of all times, such as ``pm.Normal.dist(0, 1)``; 0 for a curve that is orthogonal to
        lines. Required, except for a cyclic curve.
    dims : str, optional
        Dim of the times, evenly spaced. To predict, add times without observations.
    shape : int, optional
        Number of times, where there are no `dims`.
    period : int, optional
        Number of values of a cyclic curve, such as 12; ``season[month]`` is then the effect of each observation.
    scaled : bool
        Whether sigma is scaled as above. If False, s = sigma, the standard deviation of second differences.

    Returns
    -------
    TensorVariable, (n,)
        x: a `GaussianMarkov`, or with a slope a Deterministic of ``<name>_slope`` and of the rest, ``<name>_curve``.

    Raises
    ------
    InvalidDataError
        For fewer than three values, for a period and dims of different lengths, and without a slope.

    References
    ----------
    .. [1] H. Rue and L. Held (2005), Gaussian Markov random fields, section 3.4; S. H. Sorbye and H. Rue (2014),
       Scaling intrinsic Gaussian Markov random field priors in spatial modelling, Spatial Statistics 8.

    Examples
    --------
    >>> with pm.Model(coords={"week": weeks}):
    ...     sigma = pmep.priors.pc_sigma("sigma", u=1, alpha=0.01)
    ...     trend = pmep.RandomWalk2("trend", sigma=sigma, slope=pm.Normal.dist(0, 1), dims="week")
    ...     season = pmep.RandomWalk2("season", sigma=sigma, period=52)
    """

    def __new__(
        cls,
        name: str,
        sigma: Any,
        slope: Any = None,
        dims: Any = None,
        shape: int | None = None,
        period: int | None = None,
        scaled: bool = True,
    ) -> Any:
        """Add the curve to the model."""
        times = None if dims is None else modelcontext(None).coords.get(dims if isinstance(dims, str) else dims[-1])
        length = period or (shape if times is None else len(times))
        n = int(length[0] if isinstance(length, tuple | list) else length or 0)
        if n < 3:
            raise InvalidDataError(
                f"{name!r} has {n} values, and a curve at least three; give dims=, shape= or period=."
            )
        if not period:
            _warn_of_gaps(name, times)
        given = slope is not None and not np.isscalar(slope)
        if period and given:
            raise InvalidDataError(f"{name!r} is a cyclic curve, which has no slope: leave out slope= or period=.")
        if not period and (slope is None or (np.isscalar(slope) and slope != 0)):
            raise InvalidDataError(
                f"{name!r} has slope={slope!r}, and second differences do not tell its slope. Give slope= a prior of "
                f"the rise over half of all times, such as pm.Normal.dist(0, 1), or slope=0 for a curve without one."
            )
        matrix, null_space, log_det, variances = (_cycle if period else _line)(n)
        # Q = (g / sigma^2) R, with g the geometric mean of the diagonal of R^+.
        scale = np.exp(np.log(variances).mean()) if scaled else 1.0
        sigma = pt.as_tensor_variable(sigma)
        require_between(name, "sigma", sigma, np.inf, "Give it a prior, such as pmep.priors.pc_sigma.")
        precision = scale * sigma.astype("float64") ** -2.0
        # log |c R|_+ = log |R|_+ + (n - k) log c, with k columns of N.
        log_det = log_det + (n - null_space.shape[1]) * pt.log(precision)
        curve_name = f"{name}_curve" if given else name
        curve = GaussianMarkov(curve_name, [(precision, matrix)], null_space=null_space, log_det=log_det, dims=dims)
        if not given:
            return curve
        rise = slope if slope.name else modelcontext(None).register_rv(slope, f"{name}_slope")
        return pm.Deterministic(name, rise * np.linspace(-1.0, 1.0, n) + curve, dims=dims)


def _line(n: int) -> tuple[scipy.sparse.csr_array, np.ndarray, float, np.ndarray]:
    """Return R, (n, n), its null space N, (n, 2), log |R|_+, and the diagonal of the pseudo-inverse R^+, (n,).

    R is the precision of a curve with s = 1. For many times its smallest non-zero eigenvalues are lost in rounding, so
    that formulas are used. A double sum L of independent innovations has the covariance L L^T, and R^+ = P L L^T P with
    P = I - N N^T. By Cauchy and Binet's formula |R|_+, the product of the non-zero eigenvalues, is |T^T T| for
    T = [1, t], that is n^2 (n^2 - 1) / 12.
    """
    d = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[0, 1, 2], shape=(n - 2, n))
    t = np.arange(n, dtype=float)
    nulls = np.linalg.qr(np.stack([np.ones(n), t - t.mean()], axis=1))[0]
    # L takes the innovation at time u to the times from u + 2 on, with weights 1, 2, ...; its transpose sums backwards.
    pulled = np.cumsum(np.cumsum(nulls[::-1], axis=0), axis=0)[::-1][2:]
    pushed = np.concatenate([np.zeros((2, 2)), np.cumsum(np.cumsum(pulled, axis=0), axis=0)])
    # (L L^T)_tt = sum_{j < t} j^2. With pulled = L^T N and pushed = L L^T N the diagonal of P L L^T P is
    # diag(L L^T) - 2 diag(L L^T N N^T) + diag(N N^T L L^T N N^T).
    diagonal = (t - 1.0) * t * (2.0 * t - 1.0) / 6.0
    variances = diagonal - 2.0 * (pushed * nulls).sum(axis=1) + ((nulls @ (pulled.T @ pulled)) * nulls).sum(axis=1)
    return d.T @ d, nulls, 2.0 * np.log(n) + np.log(n**2 - 1.0) - np.log(12.0), variances


def _cycle(n: int) -> tuple[scipy.sparse.csr_array, np.ndarray, float, np.ndarray]:
    """Return the same as `_line` for a cyclic curve, whose R has the eigenvalues (2 - 2 cos(2 pi j / n))^2."""
    place = np.arange(n)
    after = scipy.sparse.csr_array((np.ones(n), (place, (place + 1) % n)), shape=(n, n))
    d = after + after.T - 2.0 * scipy.sparse.eye_array(n)
    # prod_{j > 0} (2 - 2 cos(2 pi j / n)) = n^2, hence |R|_+ = n^4; the diagonal of R^+ is sum_j 1 / (n lambda_j).
    values = (2.0 - 2.0 * np.cos(2.0 * np.pi * place[1:] / n)) ** 2
    return scipy.sparse.csr_array(d.T @ d), np.ones((n, 1)), 4.0 * np.log(n), np.full(n, (1.0 / values).sum() / n)


def _warn_of_gaps(name: str, times: Any) -> None:
    """Warn where a time was left out between two others."""
    given = np.asarray([] if times is None else times)
    if given.dtype.kind == "O":
        given = np.asarray([getattr(time, "value", time) for time in given])
    steps = np.abs(np.diff(given)).astype(float) if given.dtype.kind in "iufM" and len(given) else np.ones(1)
    if (wide := steps >= _UNEVEN * np.median(steps)).any():
        first = int(np.flatnonzero(wide)[0])
        warnings.warn(
            f"The times of {name!r} are not evenly spaced: from {times[first]} to {times[first + 1]}, at index "
            f"{first}, is {steps[first] / np.median(steps):.3g} times the usual step, and counts as one. Let the dim "
            f"have all times, and observe those there are, as in trend[index].",
            stacklevel=3,
        )
