"""The latent Gaussian form: a Gaussian vector, and sites on affine maps of it (Seeger and Nickisch 2011, eq. 1).

A site is the likelihood of an observation as a function of its predictor, an element of eta.

Every latent variable is its conditional mean plus a zero-mean Gaussian noise block. A hierarchy of Gaussians, centred
or not, is then one linear map of independent blocks w_j ~ N(0, C_j):

    eta = m0 + sum_j A_j w_j,        K = Cov(eta) = sum_j A_j C_j A_j^T,

where m0, A_j and C_j depend on the hyperparameters theta. The graph of A_j is applied to the rows of C_j, and again to
the rows of the transposed result: A_j itself need not be formed, and an identity map costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Self

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.gaussian_precisions import SparsePrecision
from pymc_ep.graphs.hyper_functions import Hyperparameters
from pymc_ep.sites.base import Site

__all__ = ["MANY_COEFFICIENTS", "AffineVariable", "FixedTerm", "LatentGaussian", "NoiseBlock", "SiteGroup"]

MANY_COEFFICIENTS = 300
"""Number of coefficients from which sparse precisions are read: dense algebra of fewer takes milliseconds."""


@dataclass(frozen=True)
class NoiseBlock:
    """One independent zero-mean Gaussian block w.

    Attributes
    ----------
    name : str
        Name of its latent random variable.
    noise : TensorVariable
        Variable of w in all graphs of the form.
    shape : tuple of TensorVariable
        Shape of w, as graphs free of w.
    covariance : TensorVariable, (d, d)
        Prior covariance of the ravelled block.
    root : TensorVariable, (k, d)
        R with covariance R^T R.
    log_excess : TensorVariable, ()
        log of the factor by which PyMC's density of the variable exceeds the normalised Gaussian.
    flat : bool
        Whether the prior is flat. Covariance and root then are identities, which set the scale of the coefficients, and
        `log_excess` is relative to the density (2 pi)^{-d/2}.
    factor : TensorVariable, (d, k), optional
        L, where the model's variable is a standard normal v that enters as L v alone (a non-centred GP). The block is
        then w = L v, with covariance L L^T; moments of v follow from Cov(v, w) = L^T.
    origin : TensorVariable, optional
        Variable of v, where `factor` is given.
    origin_shape : tuple of TensorVariable
        Shape of v; empty where there is no origin.
    observation_noise : bool
        Whether the block is noise of an observed vector, not a latent variable.
    precision : SparsePrecision, optional
        Precision of the ravelled block at its `sizes`; None where it has none, or where there are few coefficients.
    sizes : tuple of int
        Shape of a latent block at the time when the model was recognised.
    outer_scale : TensorVariable, () or (d,) or (k, k), optional
        Scale s if the model's variable less its mean, v, enters predictors as s v: the block is then w = s v. Matrix M
        if v enters as v M: the block is then w = v M, (g, k).
    of_columns : bool
        Whether the rows of v in v M are the columns of the model's variable.
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
    observation_noise: bool = False
    precision: SparsePrecision | None = None
    sizes: tuple[int, ...] = ()
    outer_scale: TensorVariable | None = None
    of_columns: bool = False

    @property
    def elementwise(self) -> bool:
        """Whether the model's variable is multiplied by a scale, value by value."""
        return self.outer_scale is not None and self.outer_scale.ndim < 2


@dataclass(frozen=True)
class SiteGroup:
    """Sites of one observed variable.

    Attributes
    ----------
    name : str
        Name of the observed variable.
    site : Site
    options : dict
        Static options of the site, such as ``zero_mass``.
    observed : TensorVariable
        Observations, of any shape; shared data stay shared variables.
    predictor : TensorVariable
        eta as a graph of hyperparameters and noise, of the shape of `observed`.
    parameters : tuple of TensorVariable
        Site parameters as graphs of hyperparameters, (n,) each for the n observations, ravelled.
    link : str
        Name of the link between eta and the distribution's parameter, for `explain`.
    correlated : bool
        Whether the predictor includes noise of an observed vector: the sites then are only a part of the likelihood.
    others : tuple of TensorVariable
        Further predictors of a site that has several, each of the shape of `observed`.
    """

    name: str
    site: Site
    options: dict
    observed: TensorVariable
    predictor: TensorVariable
    parameters: tuple[TensorVariable, ...]
    link: str
    correlated: bool = False
    others: tuple[TensorVariable, ...] = ()

    @property
    def predictors(self) -> tuple[TensorVariable, ...]:
        """All predictors of the site, the first of which is `predictor`."""
        return (self.predictor, *self.others)

    @property
    def rows(self) -> tuple[TensorVariable, ...]:
        """The predictors, and the sum of each pair of them."""
        # Variances of rows tell Cov(eta_1, eta_2) = [Var(eta_1 + eta_2) - Var(eta_1) - Var(eta_2)] / 2.
        return (*self.predictors, *(first + second for first, second in combinations(self.predictors, 2)))

    def subset(self, kept: np.ndarray) -> "SiteGroup":
        """Return the sites of the observations at the ravelled indices `kept`, (m,), as a vector."""
        first, *others = (predictor.ravel()[kept] for predictor in self.predictors)
        return replace(
            self,
            observed=self.observed.ravel()[kept],
            predictor=first,
            others=tuple(others),
            parameters=tuple(parameter[kept] for parameter in self.parameters),
        )

    @property
    def affine_predictor(self) -> "AffineVariable":
        """The predictor as an `AffineVariable`, for its moments; for a site of several predictors, all `rows`."""
        return AffineVariable(self.name, pt.stack(self.rows) if self.others else self.predictor)


@dataclass(frozen=True)
class FixedTerm:
    """Observed variable that depends on no latent variable.

    Attributes
    ----------
    name : str
        Name of the observed variable.
    log_density : TensorVariable
        Log density of each observation, as a graph of hyperparameters.
    joint : bool
        Whether an element of `log_density` is the joint density of several values, as for a vector.
    """

    name: str
    log_density: TensorVariable
    joint: bool = False


@dataclass(frozen=True)
class AffineVariable:
    """Model variable that is affine in the noise blocks, and so Gaussian given the hyperparameters.

    Attributes
    ----------
    name : str
    expression : TensorVariable
        Graph of hyperparameters and noise.
    block : NoiseBlock, optional
        The block w = L v where the variable is v, its origin; None for a function of noise.
    scaled : NoiseBlock, optional
        The block w = s v where the variable is v.
    """

    name: str
    expression: TensorVariable
    block: NoiseBlock | None = None
    scaled: NoiseBlock | None = None

    @property
    def numerator(self) -> TensorVariable:
        """Graph of the variable; for the v of a block w = s v the graph of w, a function of noise that is free of s."""
        return self.expression if self.scaled is None else self.scaled.noise


def _joined(graphs: Sequence[TensorVariable]) -> TensorVariable:
    flat = [graph if graph.ndim == 1 else graph.ravel() for graph in graphs]
    return flat[0] if len(flat) == 1 else pt.concatenate(flat)


@dataclass(frozen=True)
class LatentGaussian(Hyperparameters):
    """Gaussian vector, sites on affine maps of it, and hyperparameters, as graphs.

    Inputs of the graphs are the values of the hyperparameters and the noise of the blocks.

    Attributes
    ----------
    blocks : tuple of NoiseBlock
    groups : tuple of SiteGroup
    affine : tuple of AffineVariable
        Latent random variables and affine Deterministics, whose moments are reported.
    deterministics : dict of str to TensorVariable
        Deterministics that are not affine in the noise.
    predictions : tuple of SiteGroup
        Likelihoods without observations, which are predicted; the posterior does not depend on them.
    ignored : tuple of str
        Names of random variables of the model that no observed variable depends on.
    fixed : tuple of FixedTerm
        Observed variables that depend on no latent variable; their density is a factor of the evidence.
    scaled_inputs : tuple of (str, TensorVariable)
        Name and graph of each input of a stationary covariance function, (n, k), divided by its lengthscales. The name
        is of a variable that depends on the function.
    potentials : tuple of SiteGroup
        Terms of the model's potentials that depend on latent variables; zeros stand for their observations.
    """

    blocks: tuple[NoiseBlock, ...]
    groups: tuple[SiteGroup, ...]
    affine: tuple[AffineVariable, ...]
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    predictions: tuple[SiteGroup, ...] = ()
    ignored: tuple[str, ...] = ()
    fixed: tuple[FixedTerm, ...] = ()
    scaled_inputs: tuple[tuple[str, TensorVariable], ...] = ()
    potentials: tuple[SiteGroup, ...] = ()

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the random variables that are integrated out."""
        return tuple(b.name for b in self.blocks if not b.observation_noise)

    @property
    def factors(self) -> tuple[SiteGroup, ...]:
        """Sites of the observed variables, then of potentials, where there are any."""
        return (*self.groups, *self.potentials)

    @property
    def predictor(self) -> TensorVariable:
        """Predictors of all factors, (n,), ravelled and concatenated; all rows of a site of several predictors."""
        return _joined([row for group in self.factors for row in group.rows])

    @property
    def residual_predictor(self) -> TensorVariable:
        """Predictors of all factors, (n,), less the observation where a site depends on their difference alone.

        Engines work with these. Far from zero, as with dates or frequencies, a predictor has no digits left for its
        noise: at 1e12 the next double is 1e-4 away. The difference keeps all digits.
        """
        return _joined([row - g.observed if g.site.located else row for g in self.factors for row in g.rows])

    @property
    def log_excess(self) -> TensorVariable:
        """Log of the ratio of PyMC's joint density to the product of the normalised Gaussians and the sites, ()."""
        terms = [*(b.log_excess for b in self.blocks), *(term.log_density.sum() for term in self.fixed)]
        return self.at_zero_noise(pt.add(*terms, pt.zeros(())))

    @cached_property
    def _zeros(self) -> dict[TensorVariable, TensorVariable]:
        zeros = {b.noise: pt.zeros(b.shape, dtype=b.noise.dtype) for b in self.blocks}
        return zeros | {
            b.origin: pt.zeros(b.origin_shape, dtype=b.origin.dtype) for b in self.blocks if b.origin is not None
        }

    def subset(self, name: str, kept: np.ndarray) -> Self:
        """Return the form whose variable `name` has only the observations at the ravelled indices `kept`, (m,)."""
        groups = tuple(group.subset(kept) if group.name == name else group for group in self.groups)
        return replace(self, groups=groups)

    def made_of(self, latent: Sequence[str]) -> tuple[set[Variable], dict[str, set[Variable]]]:
        """Return the graph ancestors of all sites and named latent variables, and, by name, of each such variable."""
        of_sites = [v for group in self.factors for v in (*group.rows, group.observed, *group.parameters)]
        affine = {variable.name: variable.expression for variable in self.affine}
        of_latent = {}
        for block in self.blocks:
            if block.name in latent:
                graphs = [affine.get(block.name), block.covariance, block.root, block.factor]
                graphs += [*block.shape, *block.origin_shape]
                of_latent[block.name] = set(ancestors([v for v in graphs if isinstance(v, Variable)]))
        return set(ancestors(of_sites)).union(*of_latent.values()), of_latent

    def at_zero_noise(self, expression: TensorVariable) -> TensorVariable:
        """Return an expression at zero noise, which is the prior mean of an affine one; only shapes of noise remain."""
        return graph_replace([expression], self._zeros, strict=False)[0]
