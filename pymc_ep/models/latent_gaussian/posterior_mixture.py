"""Mixture of Gaussian posteriors at some draws of the hyperparameters, with sites interpolated between fits.

It has the interface of `LatentPosterior`. There may be more draws of the hyperparameters than components of the
mixture. At each draw the latent variables are drawn from the nearest component, and moved to the hyperparameters of the
draw. Prior moments are evaluated for many components at once, posteriors one at a time. Posteriors are cached up to a
bound on memory: moments and draws need the same ones, and each may hold n by n matrices.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.ep.fit import Shape
from pymc_ep.evidence.ep.interpolated_sites import InterpolatedSites
from pymc_ep.evidence.mixtures import mixed_moments
from pymc_ep.models.latent_gaussian.form import AffineVariable
from pymc_ep.models.latent_gaussian.form_rows import FormRow, FormRows
from pymc_ep.models.latent_gaussian.hyper_moments import weighted_moments
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior, SolvedPosterior
from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.models.latent_gaussian.values import NoiseDraws
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior
from pymc_ep.numerics.interpolation.nearest_components import NearestComponents, calibrated_weights
from pymc_ep.numerics.interpolation.stratified_draws import nearest

__all__ = ["PosteriorMixture"]

_CACHE_BYTES = 2**28
"""Largest memory of all cached components in bytes, 256 MiB; it is traded off against computing them twice."""
_ROWS_BYTES = 2**23
"""Memory, in bytes, of the prior moments that are evaluated for several components at once, 8 MiB; one component may
take more. More do not fit the processor's cache: for a Gaussian process at 200 points, 8 MiB took 4.2 s, 1 MiB 5.6 s
and 64 MiB 4.8 s."""
_NO_DENSITY = "draws come from a mixture over the hyperparameters, whose density is not evaluated"
"""Reason for missing densities of draws: each would need all components."""


class PosteriorMixture:
    """Mixture of posteriors of a latent Gaussian form, and draws of its hyperparameters.

    Parameters
    ----------
    form : SiteFunctions
    centre : LatentPosterior
        Posterior at the mode of the hyperparameters, or at the draw nearest to their mean.
    thetas : ndarray, (k, p)
        Unconstrained hyperparameters of the fits.
    shifts, precisions : ndarray, (k, n)
        Sites of the fits, with the correction of the posteriors' width.
    draws : ndarray, (s, p)
        Unconstrained hyperparameters of draws; with s = 0, these are the components' hyperparameters.
    components : ndarray, (m, p), optional
        Unconstrained hyperparameters of the components; with m = 0, these are `thetas`. By default they are the draws.
    skewness : ndarray, (k, n), optional
        Skewness of the tilted distributions of the fits. The marginal skewness is the centre's for all components.
    """

    without_sites = ""
    """Reason for missing sites: empty, as the centre has sites."""

    def __init__(
        self,
        form: SiteFunctions,
        centre: LatentPosterior,
        thetas: np.ndarray,
        shifts: np.ndarray,
        precisions: np.ndarray,
        draws: np.ndarray,
        components: np.ndarray | None = None,
        skewness: np.ndarray | None = None,
    ):
        self.form = form
        self.centre = centre
        self.fits = thetas, shifts, precisions
        self._skewness = skewness
        components = draws if components is None else components
        self.thetas = components if len(components) else thetas
        """Hyperparameters, (m, p), of the components."""
        self.hyper_draws = draws if len(draws) else self.thetas
        """Hyperparameters, (s, p), of the draws."""
        self.weights = calibrated_weights(self.thetas, self.hyper_draws)
        """Weights, (m,), of the components, which add up to one."""
        self._moments: dict[str, Moments] | None = None
        self._cache: dict[int, SolvedPosterior] = {}
        self._cache_left = _CACHE_BYTES

    @property
    def theta(self) -> np.ndarray:
        """Unconstrained hyperparameters, (p,), at the centre."""
        return self.centre.theta

    @property
    def shift(self) -> np.ndarray:
        """Shifts, (n,), of the sites at the centre."""
        return self.centre.shift

    @property
    def precision(self) -> np.ndarray:
        """Precisions, (n,), of the sites at the centre."""
        return self.centre.precision

    @property
    def directions(self) -> np.ndarray:
        """D of the centre, (0, p): the hyperparameters vary between components, not within."""
        return self.centre.directions

    @property
    def unknowns(self) -> int:
        """Number of unknowns: coefficients plus hyperparameters."""
        return self.centre.unknowns

    @property
    def held(self) -> bool:
        """Whether the hyperparameters are fixed at one value; false for a mixture."""
        return False

    @property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and posterior at the centre."""
        return self.centre.mode

    @cached_property
    def _sites(self) -> InterpolatedSites | None:
        """Interpolant of the sites between fits; None where the components are the fits themselves."""
        return None if self.thetas is self.fits[0] else InterpolatedSites(*self.fits)

    def components(self) -> Iterator[tuple[float, LatentPosterior]]:
        """Yield the weight and posterior of each component."""
        yield from zip(self.weights.tolist(), self._components(range(len(self.thetas))))

    def _components(self, index: Sequence[int]) -> Iterator[LatentPosterior]:
        start, count = 0, 1
        while start < len(index):
            chunk = np.asarray(index[start : start + count])
            rows = FormRows(self.form, self.thetas[chunk])
            shifts, precisions = self._sites_of(chunk)
            shapes = self._shapes_of(chunk)
            for i, k in enumerate(chunk.tolist()):
                component = LatentPosterior.at_sites(
                    self.form, rows.thetas[i], shifts[i], precisions[i], FormRow(rows, i), shapes[i]
                )
                if k in self._cache:
                    component.solved = self._cache[k]
                yield component
                if k not in self._cache and (size := _nbytes(component.solved)) <= self._cache_left:
                    self._cache[k] = component.solved
                    self._cache_left -= size
            start, count = start + count, max(1, _ROWS_BYTES // max(1, rows.row_bytes))

    def _sites_of(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return shifts and precisions, (s, n) each, of the sites of components with these indices, (s,)."""
        if self._sites is None:
            return self.fits[1][index], self.fits[2][index]
        return self._sites.rows(self.thetas[index])

    def _shapes_of(self, index: np.ndarray) -> Sequence[Shape | None]:
        """Return the `Shape` of components; None for each if the centre has none, or the fits' skewness is unknown."""
        if self._skewness is None or (centre := self.centre.shape) is None:
            return [None] * len(index)
        if self._sites is None:
            skewness = self._skewness[index]
        else:
            skewness = self._sites.between_fits(self._skewness, self.thetas[index])
        none = np.zeros_like(self.centre.shift)
        return [Shape(row, centre.marginal_skewness, none, none) for row in skewness]

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the moments of affine variables under the mixture, by default of all in the form.

        The default may have been computed along with earlier draws.
        """
        if variables is None and self._moments is not None:
            return self._moments
        return mixed_moments((weight, component.moments(variables)) for weight, component in self.components())

    def hyper_moments(self) -> dict[str, Moments]:
        """Return moments of the hyperparameters on their natural scale."""
        count = len(self.hyper_draws)
        return weighted_moments(self.form.constrained(self.hyper_draws), np.full(count, 1.0 / count))

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form.

        They go through all draws of the hyperparameters in random order, and again as often as `size` needs it.
        Densities are never evaluated, so that `budget` is ignored.
        """
        rounds = -(-size // len(self.hyper_draws))
        order = np.concatenate([rng.permutation(len(self.hyper_draws)) for _ in range(rounds)])[:size]
        return self._draws_at(self.hyper_draws[order], rng, log_likelihood=log_likelihood)

    def draws_of(self, component: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return one joint draw from each of the components with these indices, (s,)."""
        return self._draws_at(self.thetas[component], rng, log_likelihood=log_likelihood)

    def _draws_at(self, thetas: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool) -> JointDraws:
        """Return one joint draw at each of s rows of hyperparameters, (s, p)."""
        near = NearestComponents(self.thetas, thetas)
        noise: list[np.ndarray] = []
        means: list[list[np.ndarray]] = []
        groups = np.split(np.argsort(near.index, kind="stable"), np.cumsum(np.bincount(near.index))[:-1])

        def drawn_from() -> Iterator[LatentPosterior]:
            for places, posterior in zip(groups, self._components(near.used.tolist())):
                flat = [array for block in posterior.noise_draws(len(places), rng) for array in block]
                if not noise:
                    noise.extend(np.empty((len(thetas), array.shape[1])) for array in flat)
                for rows, array in zip(noise, flat):
                    rows[places] = array
                means.append([array for block in posterior.noise_means() for array in block])
                yield posterior

        used = self.thetas[near.used]
        if self._moments is None and len(used) == len(np.unique(self.thetas, axis=0)):
            # Large posteriors are not cached: this saves computing them again. Equal components count as one.
            weights = np.bincount(nearest(self.thetas, used), self.weights)
            self._moments = mixed_moments(zip(weights.tolist(), (posterior.moments() for posterior in drawn_from())))
        else:
            for _ in drawn_from():
                pass
        # Draws of w = s v are moved as v: the scale of w is that of its own hyperparameters.
        blocks = self.form.rows.unscaled(used[near.index], self._by_block(noise))
        centres = self.form.rows.unscaled(used, self._by_block([np.array(array) for array in zip(*means)]))
        for of_draws, of_components in zip(blocks, centres):
            for rows, centre in zip(of_draws, of_components):
                near.move(rows, centre)
        blocks = self.form.rows.scaled(thetas, blocks)
        drawn, origins = [b[0] for b in blocks], [b[1] for b in blocks if len(b) == 2]
        values, densities = self.form.rows.evaluate(thetas, drawn, origins, log_density=log_likelihood)
        return JointDraws(
            values,
            self.form.rows.observed_log_density(thetas, densities),
            left_out=_NO_DENSITY if log_likelihood else "",
        )

    def _by_block(self, arrays: Sequence[np.ndarray]) -> NoiseDraws:
        rest = iter(arrays)
        return [(next(rest),) if block.origin is None else (next(rest), next(rest)) for block in self.form.form.blocks]


def _nbytes(value: object) -> int:
    """Return the bytes of all arrays in nested tuples."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, tuple) else 0
