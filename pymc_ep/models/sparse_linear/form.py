"""The form "univariate sites on linear maps of x" without a Gaussian prior: sparse linear models.

Seeger and Nickisch (2011), eq. 1: the prior of x is a product of sparse potentials on linear maps B x, under which
total variation or wavelet coefficients are small. In the terms of the latent Gaussian form every block is flat, and the
potentials are further sites:

    eta = m0 + D x,    D = [X; B].

X has the rows of D for the observations. D is constant: hyperparameters enter only through m0 and the sites' own
parameters.
"""

from dataclasses import dataclass

from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.operators import LinearMap

__all__ = ["SparseLinear"]


@dataclass(frozen=True)
class SparseLinear(LatentGaussian):
    """Flat blocks, sites of observed variables, and potentials.

    Attributes
    ----------
    potentials : tuple of SiteGroup
        Terms of the model's `pm.Potential`, then the priors of the blocks, as sites on linear maps of these. The name
        of such a site is, or begins with, the name of the variable whose prior it is. Gaussian variables are flat
        blocks with such sites too.
    maps : tuple
        For each potential the index of its block and its operator; None if the potential is on the values themselves.
    """

    maps: tuple[tuple[int, LinearMap] | None, ...] = ()
