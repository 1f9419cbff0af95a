"""Check that the domain of a Hilbert-space approximation of a Gaussian process is wide enough for its lengthscale."""

from typing import Any

import numpy as np
import scipy.sparse

from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions

__all__ = ["boundary_warning"]

_COEFFICIENTS = "_hsgp_coeffs"
"""Suffix of the name of a pm.gp.HSGP's coefficients, after the name of the process. The process is known by this name,
as the graph has no kernel, but its spectral density."""
_LOST = 0.3
"""Largest fraction of the largest prior variance of all points that any point may lack. A stationary kernel has one
variance for all points, but eigenfunctions vanish at the boundary, so that variance is lost next to it: for an ExpQuad
on [-1, 1] with c=1.5, 0.14 at a lengthscale of 0.5, which the data overrule, and 0.6 at one of 1."""


def boundary_warning(form: SiteFunctions, theta: np.ndarray) -> str:
    """Return a warning where points of a pm.gp.HSGP lose prior variance to its boundary at theta, (p,); else empty.

    Too few basis functions go unnoticed, as they take variance from all points alike.
    """
    names = {b.name.removesuffix(_COEFFICIENTS) for b in form.form.blocks if b.name.endswith(_COEFFICIENTS)}
    processes = [variable for variable in form.form.affine if variable.name in names]
    if not processes:
        return ""
    form = form.shallow_copy()
    form.solve_in("coefficients")
    for name, moments in form.affine_moments(theta, processes).items():
        # Var(f(x)) = sum_k S_k phi_k(x)^2, whose eigenfunctions phi_k are zero at the boundary.
        least, most = float(np.min(moments.variance)), float(np.max(moments.variance))
        if least < (1.0 - _LOST) * most and _has_first(moments.cross):
            return (
                f"the prior of {name!r} is not that of its kernel: next to the boundary of the pm.gp.HSGP a point has "
                f"{1.0 - least / most:.0%} less variance than another, as lengthscales this long need a wider domain; "
                f"raise c= or L=, and m= with it, see pm.gp.hsgp_approx.approx_hsgp_hyperparams"
            )
    return ""


def _has_first(basis: Any) -> bool:
    """Whether the first nonzero column of `basis`, (d, c), has one sign: it is the one that drop_first= omits."""
    dense = basis.toarray() if scipy.sparse.issparse(basis) else np.asarray(basis)
    (used,) = np.nonzero(dense.any(axis=0))
    first = dense[:, used[0]]
    return bool((first >= 0).all() or (first <= 0).all())
