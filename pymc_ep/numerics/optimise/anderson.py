"""Anderson's extrapolation of a fixed-point iteration (Anderson 1965; Walker and Ni 2011, type II)."""

import numpy as np

__all__ = ["anderson"]


def anderson(points: np.ndarray, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the next iterate, (n,), of the fixed-point iteration x -> G(x).

    For an affine G the result is G(x) at the affine combination x of the iterates that has the least residual.

    Parameters
    ----------
    points : ndarray, (k, n)
        Iterates x, oldest first.
    residuals : ndarray, (k, n)
        G(x) - x at each iterate.
    weights : ndarray, (n,)
        Scale of each coordinate in the least-squares norm.

    Returns
    -------
    ndarray, (n,)
        The next iterate; for k = 1 it is G(x).
    """
    last = points[-1] + residuals[-1]
    if len(points) == 1:
        return last
    d_residual = np.diff(residuals, axis=0)
    d_point = np.diff(points, axis=0)
    # gamma = argmin |w o (r_k - dR^T gamma)|, then G(x_k) - dG^T gamma, where G = X + R by rows.
    mixing = np.linalg.lstsq((d_residual * weights).T, residuals[-1] * weights, rcond=1e-12)[0]
    return last - mixing @ (d_point + d_residual)
