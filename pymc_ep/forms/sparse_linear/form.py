"""The form "univariate sites on linear maps of x" without a Gaussian prior: sparse linear models.

Seeger and Nickisch (2011), eq. 1: what the sites of observed variables leave open about x is settled by potentials on
linear maps B x of it, sparse ones under which total variation or wavelet coefficients are small. In the terms of the
latent Gaussian form every block is flat, and the potentials are further sites:

    eta = m0 + D x,    D = [X; B],

where D is constant, so that hyperparameters enter through m0 and the sites' own parameters alone.
"""

from dataclasses import dataclass

from pymc_ep.forms.latent_gaussian.form import LatentGaussian, SiteGroup
from pymc_ep.operators import LinearMap

__all__ = ["SparseLinear"]


@dataclass(frozen=True)
class SparseLinear(LatentGaussian):
    """Flat blocks, sites of observed variables, and potentials.

    Attributes
    ----------
    potentials : tuple of SiteGroup
        Sites on linear maps of the blocks, each with a name of its own: that of the variable whose prior it is, or one
        that begins with it. Gaussian variables beside the fields are flat blocks with such sites too.
    maps : tuple
        Of each potential the position of the block that it is on and its operator; None where it is on each value.
    """

    potentials: tuple[SiteGroup, ...] = ()
    maps: tuple[tuple[int, LinearMap] | None, ...] = ()

    @property
    def factors(self) -> tuple[SiteGroup, ...]:
        """The sites of the observed variables, then the potentials."""
        return (*self.groups, *self.potentials)
