"""Functions of a compiled form that are evaluated at many draws at once, one draw in each row.

A block has noise w, the zero-mean part of a latent variable. For w = L v, with v standard normal, v is its origin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

from pymc_ep.concurrency import compiled_property
from pymc_ep.graphs.hyper_functions import HyperRows, row_variables
from pymc_ep.graphs.jacobian_products import batch
from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.models.latent_gaussian.prior_moments import scale_of
from pymc_ep.models.latent_gaussian.values import NoiseDraws

if TYPE_CHECKING:
    from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions

__all__ = ["RowFunctions"]


class RowFunctions(HyperRows):
    """Functions of rows of hyperparameters and noise.

    Parameters
    ----------
    compiled : SiteFunctions
        Compiled form of these variables.
    """

    _compiled: "SiteFunctions"

    @property
    def form(self) -> LatentGaussian:
        """The symbolic form."""
        return self._compiled.form

    def predictors(self, theta: np.ndarray, noise: Sequence[np.ndarray]) -> np.ndarray:
        """Return the form's `residual_predictor`, (s, n), at one theta, (p,), for noise of each block, (s, d)."""
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
            Noise of each block.
        origin : sequence of ndarray, (s, k)
            Origin of each block that has one.
        log_density : bool
            Whether to compute the log density of each site as well.

        Returns
        -------
        values : dict of str to ndarray, (s, *shape)
        log_density : dict of str to ndarray, (s, *shape)
            Log density of each site, by factor; empty where not requested.
        """
        evaluate = self._evaluate_all if log_density else self._evaluate
        outputs = evaluate(*self._compiled.unpack_rows(theta), *self._shape_noise(theta[0], noise), *origin)
        count = len(self._evaluated)
        values = self._compiled.constrained(theta) | dict(
            zip(self._evaluated, (np.asarray(v) for v in outputs[:count]))
        )
        return values, self._site_log_density(outputs[count:]) if log_density else {}

    def log_density(self, theta: np.ndarray, noise: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the log density of each site, (s, *shape) by factor, for rows of theta and noise."""
        return self._site_log_density(
            self._site_rows(*self._compiled.unpack_rows(theta), *self._shape_noise(theta[0], noise))
        )

    def observed_log_density(self, theta: np.ndarray, by_factor: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return log densities of the observed variables, (s, *shape) by name, at rows of theta.

        Densities of factors are copied from `by_factor`. Densities of observed variables without latent variables are
        added. The result is empty where `by_factor` is. Observed vectors are left out, as their sites have only a part
        of their noise.
        """
        if not by_factor:
            return {}
        terms = [term for term in self.form.fixed if not term.joint]
        fixed = zip(terms, self._fixed_rows(*self._compiled.unpack_rows(theta)))
        rows = {term.name: np.broadcast_to(v, (len(theta), *np.shape(v)[1:])) for term, v in fixed}
        return {group.name: by_factor[group.name] for group in self.form.groups if not group.correlated} | rows

    def _site_log_density(self, arrays: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the log density of each site, by factor, from rows of predictors and site parameters."""
        out = {}
        rest = iter(arrays)
        for group, site, y in zip(self.form.factors, self._compiled.sites, self._compiled.observed()):
            eta, *others = (np.asarray(next(rest)) for _ in group.predictors)
            parameters = [*others, *(np.asarray(next(rest)).reshape(eta.shape) for _ in group.parameters)]
            out[group.name] = np.asarray(site.log_density(y, eta, *parameters))
        return out

    def scales(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return the scales of the `varying` blocks for rows of theta, (s, p).

        The scale of a block is its factor, (s, d, k), where it has one. Otherwise it is the variances, (s, d), of
        independent noise, or the covariance, (s, d, d), of any other.
        """
        return [np.asarray(scale) for scale in self._scales(*self._compiled.unpack_rows(theta))]

    def log_excess(self, theta: np.ndarray) -> np.ndarray:
        """Return the log ratio, (s,), of PyMC's joint density to normalised Gaussians times sites, at rows of theta."""
        return np.asarray(self._log_excess(*self._compiled.unpack_rows(theta)))

    def outer_scales(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scale of each block w = s v or w = v M, by name, for rows of theta, (s, p).

        A scale is (s, 1) or (s, d) for the s rows, and a matrix M is (s, k, k).
        """
        names = [block.name for block in self.form.blocks if block.outer_scale is not None]
        if not names:
            return {}
        rows = map(np.asarray, self._outer_scales(*self._compiled.unpack_rows(theta)))
        return {name: scale if scale.ndim == 3 else scale.reshape(len(theta), -1) for name, scale in zip(names, rows)}

    def log_stretch(self, theta: np.ndarray) -> np.ndarray:
        """Return log |dw / dv|, (s,), summed over the blocks w = s v and w = v M, for rows of theta.

        Added to a log density of w, it gives the log density of v.
        """
        shapes = zip(self.form.blocks, self.noise_shapes(*self._compiled.unpack(theta[0])))
        sizes = {block.name: np.prod(shape) for block, shape in shapes}
        out = np.zeros(len(theta))
        # log|dw / dv| is sum_i log|s_i| for w = s v, and g log|M| for w = v M of g rows.
        for name, scales in self.outer_scales(theta).items():
            if scales.ndim == 3:
                out += sizes[name] / scales.shape[1] * np.linalg.slogdet(scales)[1]
            else:
                out += sizes[name] * np.log(np.abs(scales)).mean(axis=1)
        return out

    def unscaled(self, theta: np.ndarray, noise: NoiseDraws) -> NoiseDraws:
        """Return noise, (s, d) for each block, with v in place of w for blocks w = s v or w = v M.

        `theta` has a row for each row of noise, (s, p), or one for all, (1, p).
        """
        # v = w / s, or v = w M^-1.
        scales = self.outer_scales(theta)
        inverse = {name: np.linalg.inv(scale) if scale.ndim == 3 else 1.0 / scale for name, scale in scales.items()}
        return self._times(noise, inverse)

    def scaled(self, theta: np.ndarray, noise: NoiseDraws) -> NoiseDraws:
        """Return noise, (s, d) for each block, with w in place of v for blocks w = s v or w = v M.

        `theta` has a row for each row of noise, (s, p), or one for all, (1, p).
        """
        return self._times(noise, self.outer_scales(theta))

    def _times(self, noise: NoiseDraws, scales: Mapping[str, np.ndarray]) -> NoiseDraws:
        return [
            (_product(draw[0], scales[block.name]),) if block.name in scales else draw
            for block, draw in zip(self.form.blocks, noise)
        ]

    def _shape_noise(self, theta: np.ndarray, noise: Sequence[np.ndarray]) -> list[np.ndarray]:
        shapes = self.noise_shapes(*self._compiled.unpack(theta))
        return [w.reshape(len(w), *(int(n) for n in shape)) for w, shape in zip(noise, shapes)]

    @cached_property
    def varying(self) -> tuple[bool, ...]:
        """For each block, whether its scale depends on hyperparameters."""
        hyper = set(self.form.hyper_values)
        return tuple(not hyper.isdisjoint(ancestors([scale_of(block)])) for block in self.form.blocks)

    @compiled_property
    def noise_shapes(self) -> Callable[..., Any]:
        """Compiled function from `form.hyper_values` to the shape of each block's noise."""
        shapes = [pt.stack([pt.as_tensor(n) for n in b.shape]) if b.shape else pt.zeros(0) for b in self.form.blocks]
        return self._compiled.function(self.form.hyper_values, [self.form.at_zero_noise(s) for s in shapes])

    @compiled_property
    def _scales(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        outputs = [scale_of(block) for block, varies in zip(self.form.blocks, self.varying) if varies]
        return self._compiled.function(rows.values(), [batch(self.form.at_zero_noise(v), rows) for v in outputs])

    @compiled_property
    def _log_excess(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        return self._compiled.function(rows.values(), batch(self.form.log_excess, rows))

    @compiled_property
    def _outer_scales(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        scales = [block.outer_scale for block in self.form.blocks if block.outer_scale is not None]
        return self._compiled.function(rows.values(), [batch(self.form.at_zero_noise(s), rows) for s in scales])

    @compiled_property
    def _fixed_rows(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        outputs = [term.log_density for term in self.form.fixed if not term.joint]
        return self._compiled.function(rows.values(), [batch(v, rows) if rows else v[None] for v in outputs])

    @compiled_property
    def _predictors(self) -> Callable[..., Any]:
        rows = row_variables([b.noise for b in self.form.blocks])
        return self._compiled.function(
            [*self.form.hyper_values, *rows.values()], batch(self.form.residual_predictor, rows)
        )

    @compiled_property
    def _site_rows(self) -> Callable[..., Any]:
        rows = row_variables([*self.form.hyper_values, *(b.noise for b in self.form.blocks)])
        return self._compiled.function(rows.values(), [batch(v, rows) for v in self._site_graphs])

    @property
    def _site_graphs(self) -> list[Any]:
        return [v for g in self.form.factors for v in (*g.predictors, *g.parameters)]

    @property
    def _evaluated(self) -> dict[str, Any]:
        return {v.name: v.expression for v in self.form.affine} | self.form.deterministics

    @compiled_property
    def _evaluate(self) -> Callable[..., Any]:
        return self._compile_rows(self._evaluated.values())

    @compiled_property
    def _evaluate_all(self) -> Callable[..., Any]:
        # One function, so that common subexpressions of predictors and Deterministics are computed once.
        return self._compile_rows([*self._evaluated.values(), *self._site_graphs])

    def _compile_rows(self, outputs: Iterable[Any]) -> Callable[..., Any]:
        origins = [b.origin for b in self.form.blocks if b.origin is not None]
        rows = row_variables([*self.form.hyper_values, *(b.noise for b in self.form.blocks), *origins])
        return self._compiled.function(rows.values(), [batch(v, rows) for v in outputs])


def _product(noise: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return noise, (s, d), times its scale: elementwise, (s, 1) or (s, d), or by rows of k values, (s, k, k)."""
    if scale.ndim == 2:
        return noise * scale
    return (noise.reshape(len(noise), -1, scale.shape[1]) @ scale).reshape(noise.shape)
