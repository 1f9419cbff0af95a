"""The functions of a compiled form that take many draws at once, a row each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

from pymc_ep.forms.latent_gaussian.form import LatentGaussian
from pymc_ep.forms.latent_gaussian.prior_moments import scale_of
from pymc_ep.graphs.hyper_functions import row_variables
from pymc_ep.graphs.jacobian_products import batch

if TYPE_CHECKING:
    from pymc_ep.forms.latent_gaussian.site_functions import SiteFunctions

__all__ = ["RowFunctions"]


class RowFunctions:
    """Functions of rows of hyperparameters and noise.

    Parameters
    ----------
    compiled : SiteFunctions
        The form whose functions they are.
    """

    def __init__(self, compiled: "SiteFunctions"):
        self._compiled = compiled

    @property
    def form(self) -> LatentGaussian:
        """The form, symbolic."""
        return self._compiled.form

    def of(self, compiled: "SiteFunctions") -> "RowFunctions":
        """Return the same functions for a copy of the form."""
        rows = copy(self)
        rows._compiled = compiled
        return rows

    def predictors(self, theta: np.ndarray, noise: Sequence[np.ndarray]) -> np.ndarray:
        """Return all predictors, (s, n), at one theta for rows of noise."""
        return np.asarray(self._predictors(*self._compiled.unpack(theta), *self._shape_noise(theta, noise)))

    def evaluate(
        self,
        theta: np.ndarray,
        noise: Sequence[np.ndarray],
        origin: Sequence[np.ndarray],
        *,
        log_density: bool = False,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return latent variables, Deterministics and hyperparameters for rows of theta, noise and origins.

        Parameters
        ----------
        theta : ndarray, (s, p)
        noise : sequence of ndarray, (s, d)
            One for each block.
        origin : sequence of ndarray, (s, k)
            One for each block that has an origin.
        log_density : bool
            Whether to compute that of each site of all factors as well.

        Returns
        -------
        values : dict of str to ndarray, (s, *shape)
        log_density : dict of str to ndarray, (s, *shape)
            By factor; empty where it was not asked for.
        """
        evaluate = self._evaluate_all if log_density else self._evaluate
        parts = evaluate(*self._compiled.unpack_rows(theta), *self._shape_noise(theta[0], noise), *origin)
        count = len(self._evaluated)
        values = self._compiled.constrained(theta) | dict(zip(self._evaluated, (np.asarray(v) for v in parts[:count])))
        return values, self._at_sites(parts[count:]) if log_density else {}

    def log_density(self, theta: np.ndarray, noise: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the log density of each site, (s, *shape), by factor, for rows of theta and noise."""
        return self._at_sites(self._site_rows(*self._compiled.unpack_rows(theta), *self._shape_noise(theta[0], noise)))

    def of_observed(self, theta: np.ndarray, by_factor: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return log densities of all observed variables, (s, *shape), at rows of theta, where their sites' are given.

        Empty where there are none. Observed vectors have none, as their sites see a part of their noise only.
        """
        if not by_factor:
            return {}
        terms = [term for term in self.form.fixed if not term.joint]
        fixed = zip(terms, self._fixed_rows(*self._compiled.unpack_rows(theta)))
        rows = {term.name: np.broadcast_to(v, (len(theta), *np.shape(v)[1:])) for term, v in fixed}
        return {group.name: by_factor[group.name] for group in self.form.groups if not group.correlated} | rows

    def _at_sites(self, parts: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the log densities of all sites at rows of their predictors and parameters."""
        out = {}
        rest = iter(parts)
        for group, site, y in zip(self.form.factors, self._compiled.sites, self._compiled.observed()):
            eta = np.asarray(next(rest))
            parameters = [np.asarray(next(rest)).reshape(eta.shape) for _ in group.parameters]
            out[group.name] = np.asarray(site.log_density(y, eta, *parameters))
        return out

    def scales(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return, for rows of theta (s, p), what scales the `varying` blocks.

        The factor (s, d, k) of a block that has one; otherwise the variances (s, d) of `independent` noise, and the
        covariance (s, d, d) of any other.
        """
        return [np.asarray(part) for part in self._scales(*self._compiled.unpack_rows(theta))]

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Return the log density of theta, Jacobian terms included, for rows (s, p)."""
        return np.asarray(self._log_prior(*self._compiled.unpack_rows(theta))) + self._compiled.log_det(theta)[0]

    def log_prior_gradients(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `log_prior` returns and its gradients, (s, p), for rows of theta (s, p)."""
        value, *parts = self._log_prior_gradients(*self._compiled.unpack_rows(theta))
        gradient = np.concatenate([np.reshape(part, (len(theta), -1)) for part in parts], axis=1)
        log_det, slopes = self._compiled.log_det(theta)
        return np.asarray(value) + log_det, self._compiled.pull(theta, gradient) + slopes

    def log_excess(self, theta: np.ndarray) -> np.ndarray:
        """Return the log of the factor by which PyMC's joint density exceeds Gaussians and sites, for rows (s, p)."""
        return np.asarray(self._log_excess(*self._compiled.unpack_rows(theta)))

    def _shape_noise(self, theta: np.ndarray, noise: Sequence[np.ndarray]) -> list[np.ndarray]:
        shapes = self.noise_shapes(*self._compiled.unpack(theta))
        return [w.reshape(len(w), *(int(n) for n in shape)) for w, shape in zip(noise, shapes)]

    @cached_property
    def varying(self) -> tuple[bool, ...]:
        """Whether each block's factor, or covariance where it has none, depends on hyperparameters."""
        hyper = set(self.form.hyper_values)
        return tuple(not hyper.isdisjoint(ancestors([scale_of(block)])) for block in self.form.blocks)

    @cached_property
    def noise_shapes(self) -> Callable[..., Any]:
        """Function of `form.hyper_values` that returns the shape of each block's noise."""
        shapes = [pt.stack([pt.as_tensor(n) for n in b.shape]) if b.shape else pt.zeros(0) for b in self.form.blocks]
        return self._compiled.function(self.form.hyper_values, [self.form.at_zero_noise(s) for s in shapes])

    @cached_property
    def _scales(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        outputs = [scale_of(block) for block, varies in zip(self.form.blocks, self.varying) if varies]
        return self._compiled.function(rows.values(), [batch(self.form.at_zero_noise(v), rows) for v in outputs])

    @cached_property
    def _log_prior(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        return self._compiled.function(rows.values(), batch(self.form.log_prior_unconstrained, rows))

    @cached_property
    def _log_prior_gradients(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        value = batch(self.form.log_prior_unconstrained, rows)
        # A row's density depends on that row alone, so that the gradient of the sum has the gradients for rows.
        gradients = pytensor.grad(value.sum(), list(rows.values()), disconnected_inputs="ignore")
        return self._compiled.function(rows.values(), [value, *gradients])

    @cached_property
    def _log_excess(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        return self._compiled.function(rows.values(), batch(self.form.log_excess, rows))

    @cached_property
    def _fixed_rows(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        outputs = [term.log_density for term in self.form.fixed if not term.joint]
        return self._compiled.function(rows.values(), [batch(v, rows) if rows else v[None] for v in outputs])

    @cached_property
    def _predictors(self) -> Callable[..., Any]:
        rows = row_variables([b.noise for b in self.form.blocks])
        return self._compiled.function([*self.form.hyper_values, *rows.values()], batch(self.form.predictor, rows))

    @cached_property
    def _site_rows(self) -> Callable[..., Any]:
        rows = row_variables([*self.form.hyper_values, *(b.noise for b in self.form.blocks)])
        return self._compiled.function(rows.values(), [batch(v, rows) for v in self._of_sites])

    @property
    def _of_sites(self) -> list[Any]:
        return [v for g in self.form.factors for v in (g.predictor, *g.parameters)]

    @property
    def _evaluated(self) -> dict[str, Any]:
        return {v.name: v.expression for v in self.form.affine} | self.form.deterministics

    @cached_property
    def _evaluate(self) -> Callable[..., Any]:
        return self._of_all_rows(self._evaluated.values())

    @cached_property
    def _evaluate_all(self) -> Callable[..., Any]:
        # In one function, so that what predictors and Deterministics share is computed once.
        return self._of_all_rows([*self._evaluated.values(), *self._of_sites])

    def _of_all_rows(self, outputs: Iterable[Any]) -> Callable[..., Any]:
        origins = [b.origin for b in self.form.blocks if b.origin is not None]
        rows = row_variables([*self.form.hyper_values, *(b.noise for b in self.form.blocks), *origins])
        return self._compiled.function(rows.values(), [batch(v, rows) for v in outputs])
