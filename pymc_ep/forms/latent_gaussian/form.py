"""The form "Gaussian vector times univariate sites on affine maps of it" (Seeger and Nickisch 2011, eq. 1).

Every latent variable is written as its conditional mean plus a zero-mean Gaussian noise block, so that a
hierarchy of Gaussians, centred or not, is one linear map of independent blocks w_j ~ N(0, C_j):

    eta = m0 + sum_j A_j w_j,        K = Cov(eta) = sum_j A_j C_j A_j^T,

with m0, A_j and C_j depending on the hyperparameters theta. Covariances are formed by pushing the rows of
C_j through the graph of A_j twice; A_j itself is never formed, and an identity map costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import Hyperparameters
from pymc_ep.sites.base import Site

__all__ = ["AffineVariable", "FixedTerm", "LatentGaussian", "NoiseBlock", "SiteGroup"]


@dataclass(frozen=True)
class NoiseBlock:
    """One independent zero-mean Gaussian block w.

    Attributes
    ----------
    name : str
        The latent random variable that it stands for.
    noise : TensorVariable
        Stand-in for w in all graphs of the form.
    shape : tuple of TensorVariable
        Shape of w, free of w itself.
    covariance : TensorVariable, (d, d)
        Prior covariance of the ravelled block.
    root : TensorVariable, (k, d)
        R with covariance R^T R.
    log_excess : TensorVariable, ()
        log of the factor by which PyMC's density of the variable exceeds the normalised Gaussian.
    flat : bool
        Whether the prior is flat: covariance and root then are identities that set the scale of the coefficients,
        and the density that `log_excess` is relative to is (2 pi)^{-d/2}.
    factor : TensorVariable, (d, k), optional
        Where the model's variable is a standard normal v and only L v is used (a non-centred GP): L. The
        block is then w = L v, with covariance L L^T, and v is recovered from it through Cov(v, w) = L^T.
    origin : TensorVariable, optional
        Stand-in for v, where `factor` is given.
    origin_shape : tuple of TensorVariable
        Shape of v; empty where there is none.
    of_observed : bool
        Whether it is noise of an observed vector, which stands for no latent variable.
    """

    name: str
    noise: TensorVariable
    shape: tuple[TensorVariable, ...]
    covariance: TensorVariable
    root: TensorVariable
    log_excess: TensorVariable
    flat: bool = False
    factor: TensorVariable | None = None
    origin: TensorVariable | None = None
    origin_shape: tuple[TensorVariable, ...] = ()
    of_observed: bool = False


@dataclass(frozen=True)
class SiteGroup:
    """The sites of one observed variable.

    Attributes
    ----------
    name : str
        The observed variable.
    site : Site
    options : dict
        Static options of the site, such as ``zero_mass``.
    observed : TensorVariable
        Observations, any shape; shared data stay shared.
    predictor : TensorVariable
        eta in terms of hyperparameters and noise, of the shape of `observed`.
    parameters : tuple of TensorVariable
        Site parameters in terms of hyperparameters, each of the shape of `observed`.
    link : str
        How the model's own distribution parameter follows from eta, for `explain`.
    correlated : bool
        Whether the predictor has noise of its own, that of an observed vector: sites are no likelihood then.
    """

    name: str
    site: Site
    options: dict
    observed: TensorVariable
    predictor: TensorVariable
    parameters: tuple[TensorVariable, ...]
    link: str
    correlated: bool = False


@dataclass(frozen=True)
class FixedTerm:
    """An observed variable that depends on hyperparameters alone, or on nothing.

    Attributes
    ----------
    name : str
        The observed variable.
    log_density : TensorVariable
        Of each observation, in terms of hyperparameters.
    joint : bool
        Whether that is one of several values together, as of a vector.
    """

    name: str
    log_density: TensorVariable
    joint: bool = False


@dataclass(frozen=True)
class AffineVariable:
    """A model variable that is affine in the noise blocks, and so Gaussian given the hyperparameters.

    Attributes
    ----------
    name : str
    expression : TensorVariable
        In terms of hyperparameters and noise.
    block : NoiseBlock, optional
        Where the variable is the origin v of a block rather than a function of its noise.
    """

    name: str
    expression: TensorVariable
    block: NoiseBlock | None = None


@dataclass(frozen=True)
class LatentGaussian(Hyperparameters):
    """A Gaussian vector, univariate sites on affine maps of it, and symbolic hyperparameters.

    Graphs are in terms of the values of the hyperparameters and of the blocks' noise.

    Attributes
    ----------
    blocks : tuple of NoiseBlock
    groups : tuple of SiteGroup
    affine : tuple of AffineVariable
        Latent random variables and affine Deterministics, for reporting.
    deterministics : dict of str to TensorVariable
        The Deterministics that are not affine in the noise.
    predictions : tuple of SiteGroup
        Likelihoods to predict: sites without observations, which take no part in the posterior.
    ignored : tuple of str
        Random variables of the model that no observed variable depends on.
    fixed : tuple of FixedTerm
        Observed variables that no latent variable is behind, a factor of the evidence.
    """

    blocks: tuple[NoiseBlock, ...]
    groups: tuple[SiteGroup, ...]
    affine: tuple[AffineVariable, ...]
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    predictions: tuple[SiteGroup, ...] = ()
    ignored: tuple[str, ...] = ()
    fixed: tuple[FixedTerm, ...] = ()

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the random variables that are integrated out."""
        return tuple(b.name for b in self.blocks if not b.of_observed)

    @property
    def factors(self) -> tuple[SiteGroup, ...]:
        """All sites: those of the observed variables, which come first, and any others."""
        return self.groups

    @property
    def predictor(self) -> TensorVariable:
        """The predictors of all factors, ravelled and joined, (n,)."""
        parts = [g.predictor if g.predictor.ndim == 1 else g.predictor.ravel() for g in self.factors]
        return parts[0] if len(parts) == 1 else pt.concatenate(parts)

    @property
    def log_excess(self) -> TensorVariable:
        """log of the factor by which PyMC's joint density exceeds that of normalised Gaussians and sites, ()."""
        parts = [*(b.log_excess for b in self.blocks), *(term.log_density.sum() for term in self.fixed)]
        return self.at_zero_noise(pt.add(*parts, pt.zeros(())))

    @cached_property
    def _zeros(self) -> dict[TensorVariable, TensorVariable]:
        zeros = {b.noise: pt.zeros(b.shape, dtype=b.noise.dtype) for b in self.blocks}
        return zeros | {
            b.origin: pt.zeros(b.origin_shape, dtype=b.origin.dtype) for b in self.blocks if b.origin is not None
        }

    def made_of(self, latent: Sequence[str]) -> tuple[set[Variable], dict[str, set[Variable]]]:
        """Return the variables behind sites and named latent variables, and those behind each of the latter."""
        of_sites = [v for group in self.factors for v in (group.predictor, group.observed, *group.parameters)]
        affine = {variable.name: variable.expression for variable in self.affine}
        of_latent = {}
        for block in self.blocks:
            if block.name in latent:
                parts = [affine.get(block.name), block.covariance, block.root, block.factor]
                parts += [*block.shape, *block.origin_shape]
                of_latent[block.name] = set(ancestors([v for v in parts if isinstance(v, Variable)]))
        return set(ancestors(of_sites)).union(*of_latent.values()), of_latent

    def at_zero_noise(self, expression: TensorVariable) -> TensorVariable:
        """Set all noise to zero: the prior mean of an affine expression; any other use of noise is its shape."""
        return graph_replace([expression], self._zeros, strict=False)[0]
