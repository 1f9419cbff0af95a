"""A posterior that is a mixture of Gaussian posteriors at several values of the hyperparameters.

It offers what `LatentPosterior` offers. The components are made one at a time and let go, since each holds matrices of
the size of the data squared.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.densities import NoiseDraws
from pymc_ep.forms.latent_gaussian import AffineVariable
from pymc_ep.forms.posterior import JointDraws, LatentPosterior, Moments
from pymc_ep.forms.values import Prior
from pymc_ep.linalg.gaussian import GaussianPosterior

__all__ = ["PosteriorMixture", "mixed_moments"]

_KERNEL = 0.7
"""Standard deviation, in those of the design, of the normal kernel about the points of a composite design: somewhat
less than the distance of their shells, so that draws leave no gaps."""
_SAMPLES = 20_000
_LEFT_OUT = "draws come from a mixture over the hyperparameters, whose density is not evaluated"


def mixed_moments(parts: Iterable[tuple[float, dict[str, Moments]]]) -> dict[str, Moments]:
    """Return the moments of a mixture from the weights and moments of its components."""
    known = list(parts)
    out = {}
    for name in known[0][1]:
        mean = sum(weight * found[name].mean for weight, found in known)
        spread = sum(weight * (found[name].sd ** 2 + (found[name].mean - mean) ** 2) for weight, found in known)
        out[name] = Moments(mean, np.sqrt(spread))
    return out


class PosteriorMixture:
    """Weighted posteriors of a latent Gaussian form, each at its own hyperparameters.

    Parameters
    ----------
    form : CompiledLatentGaussian
    centre : LatentPosterior
        At the mode of the hyperparameters, or in the middle of their draws.
    thetas : ndarray, (k, p)
        Unconstrained hyperparameters of the components.
    shifts, precisions : ndarray, (k, n)
        Their sites.
    weights : ndarray, (k,)
    axes : ndarray, (q, p)
        The hyperparameters are ``centre.theta + z @ axes`` at standardised coordinates z; q = 0 where they take no
        other values than `thetas`.
    coordinates : ndarray, (k, q)
        z of the components.
    widths : ndarray, (q,)
        Widths of the cells of a regular grid in z; zeros where the design is none.
    """

    def __init__(
        self,
        form: CompiledLatentGaussian,
        centre: LatentPosterior,
        thetas: np.ndarray,
        shifts: np.ndarray,
        precisions: np.ndarray,
        weights: np.ndarray,
        axes: np.ndarray,
        coordinates: np.ndarray,
        widths: np.ndarray,
    ):
        self.form = form
        self.centre = centre
        self.thetas, self.shifts, self.precisions = thetas, shifts, precisions
        self.weights = weights
        self.axes, self.coordinates, self.widths = axes, coordinates, widths

    @property
    def theta(self) -> np.ndarray:
        """Hyperparameters at the centre, (p,)."""
        return self.centre.theta

    @property
    def shift(self) -> np.ndarray:
        """Shifts of the sites at the centre, (n,)."""
        return self.centre.shift

    @property
    def precision(self) -> np.ndarray:
        """Precisions of the sites at the centre, (n,)."""
        return self.centre.precision

    @property
    def directions(self) -> np.ndarray:
        """No directions, (0, p): the spread of the hyperparameters is that of the components."""
        return self.centre.directions

    @property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and posterior at the centre."""
        return self.centre.mode

    def components(self) -> Iterator[tuple[float, LatentPosterior]]:
        """Yield each weight and posterior."""
        for k, weight in enumerate(self.weights):
            yield float(weight), self._component(k)

    def _component(self, k: int) -> LatentPosterior:
        p, n = self.thetas.shape[1], self.shifts.shape[1]
        none = np.zeros((0, n))
        return LatentPosterior(
            self.form, self.thetas[k], self.shifts[k], self.precisions[k], np.zeros((0, p)), none, none
        )

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the moments of affine variables under the mixture."""
        return mixed_moments((weight, component.moments(variables)) for weight, component in self.components())

    def hyper_moments(self) -> dict[str, Moments]:
        """Return moments of the hyperparameters on their own scale.

        A grid, or draws, are dense enough to be averaged over as they are. The points of a composite design are not,
        and a fixed sample of its smooth version takes their place.
        """
        thetas, weights = self.thetas, self.weights
        if len(self.axes) and not self.widths.any():
            rng = np.random.default_rng(0)
            thetas, _ = self._smooth(rng.choice(len(weights), _SAMPLES, p=weights), rng)
            weights = np.full(_SAMPLES, 1 / _SAMPLES)
        out = {}
        for name, values in self.form.constrained(thetas).items():
            mean = np.tensordot(weights, values, axes=1)
            out[name] = Moments(mean, np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1)))
        return out

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form: of a component each, and then as `draws_of` says.

        There are no densities, whatever the `budget` that `LatentPosterior.draws` takes for these.
        """
        return self.draws_of(rng.choice(len(self.weights), size, p=self.weights), rng, log_likelihood=log_likelihood)

    def draws_of(self, component: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return a joint draw from each of the given components, (s,).

        The latent variables are drawn from the exact conditional of the component. Where the design stands for a
        continuous density, the hyperparameters are spread about its points, see `_smooth`, and the latent variables
        follow by the regression of the components' means on the coordinates of the design.
        """
        thetas, offsets = self._smooth(component, rng)
        noise: list[list[np.ndarray]] = []
        means: list[list[np.ndarray]] = []
        for k in range(len(self.weights)):
            here = np.flatnonzero(component == k)
            if not (len(here) or len(self.axes)):
                continue
            posterior = self._component(k)
            if len(self.axes):
                means.append([part for block in posterior.noise_means() for part in block])
            if not len(here):
                continue
            drawn = posterior.noise_draws(len(here), rng).noise
            flat = [part for block in drawn for part in block]
            if not noise:
                noise = [np.empty((len(component), part.shape[1])) for part in flat]
            for rows, part in zip(noise, flat):
                rows[here] = part
        for j, rows in enumerate(noise):
            if len(self.axes):
                rows += offsets @ self._slopes(np.array([parts[j] for parts in means]))
        blocks = self._by_block(noise)
        drawn, origins = [b[0] for b in blocks], [b[1] for b in blocks if len(b) == 2]
        values, densities = self.form.evaluate(thetas, drawn, origins, log_density=log_likelihood)
        return JointDraws(
            values, self.form.of_observed(thetas, densities), left_out=_LEFT_OUT if log_likelihood else ""
        )

    def _by_block(self, parts: Sequence[np.ndarray]) -> NoiseDraws:
        rest = iter(parts)
        return [(next(rest),) if block.origin is None else (next(rest), next(rest)) for block in self.form.form.blocks]

    def _smooth(self, component: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return hyperparameters about the given points, (s, p), and how far they are from these in z, (s, q).

        A kernel about each point, uniform in the cell of a grid and normal for other designs, would widen the density
        by its own variance; drawing everything together towards the mean by that much keeps both moments of each
        coordinate (Silverman and Young 1987).
        """
        if not len(self.axes):
            return self.thetas[component], np.zeros((len(component), 0))
        mean, variance = self._moments_of_coordinates
        shape = (len(component), len(mean))
        if self.widths.any():
            kernel = self.widths**2 / 12
            jitter = self.widths * (rng.random(shape) - 0.5)
        else:
            kernel = _KERNEL**2 * variance
            jitter = np.sqrt(kernel) * rng.standard_normal(shape)
        at = self.coordinates[component]
        z = mean + np.sqrt(variance / (variance + kernel)) * (at - mean + jitter)
        return self.centre.theta + z @ self.axes, z - at

    @cached_property
    def _moments_of_coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self.weights @ self.coordinates
        return mean, self.weights @ (self.coordinates - mean) ** 2

    def _slopes(self, means: np.ndarray) -> np.ndarray:
        """Return the weighted regression, (q, d), of means of the components, (k, d), on their coordinates."""
        centred = self.coordinates - self._moments_of_coordinates[0]
        weighted = centred * self.weights[:, None]
        return np.linalg.lstsq(weighted.T @ centred, weighted.T @ means, rcond=None)[0]
