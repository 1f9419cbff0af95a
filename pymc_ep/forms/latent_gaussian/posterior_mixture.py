"""Gaussian posteriors at draws of the hyperparameters, with sites interpolated between fits.

It offers what `LatentPosterior` offers. The posteriors are made one at a time. Small ones are kept, as draws need what
moments have made; large ones are let go, since each holds matrices of the size of the data squared.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pymc_ep.contracts.form import Likelihood
from pymc_ep.contracts.posterior import JointDraws, Moments, weighted_moments
from pymc_ep.engines.prior import Prior
from pymc_ep.forms.latent_gaussian.form import AffineVariable
from pymc_ep.forms.latent_gaussian.log_joint import NoiseDraws
from pymc_ep.forms.latent_gaussian.posterior import LatentPosterior
from pymc_ep.forms.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.hyper.integration.interpolated_sites import InterpolatedSites
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior

__all__ = ["PosteriorMixture", "mixed_moments"]

_KEPT = 2**28
"""Bytes that the posteriors which are kept may take together."""
_LEFT_OUT = "draws come from a mixture over the hyperparameters, whose density is not evaluated"


def mixed_moments(parts: Iterable[tuple[float, dict[str, Moments]]]) -> dict[str, Moments]:
    """Return the moments of a mixture from the weights and moments of its components."""
    known = list(parts)
    out = {}
    for name in known[0][1]:
        zero = np.zeros_like(known[0][1][name].mean)
        mean = sum((weight * found[name].mean for weight, found in known), start=zero)
        spread = sum(
            (weight * (found[name].sd ** 2 + (found[name].mean - mean) ** 2) for weight, found in known), start=zero
        )
        out[name] = Moments(mean, np.sqrt(spread))
    return out


class PosteriorMixture:
    """Posteriors of a latent Gaussian form at draws of the hyperparameters, equally weighted.

    Parameters
    ----------
    form : SiteFunctions
    centre : LatentPosterior
        At the mode of the hyperparameters, or in the middle of their draws.
    thetas : ndarray, (k, p)
        Unconstrained hyperparameters of fits.
    shifts, precisions : ndarray, (k, n)
        Their sites.
    draws : ndarray, (s, p)
        Draws of the hyperparameters; s = 0 stands for those of the fits.
    """

    without_sites = ""
    """Why there are no sites: there are, at the centre."""

    def __init__(
        self,
        form: SiteFunctions,
        centre: LatentPosterior,
        thetas: np.ndarray,
        shifts: np.ndarray,
        precisions: np.ndarray,
        draws: np.ndarray,
    ):
        self.form = form
        self.centre = centre
        self.fits = thetas, shifts, precisions
        self.thetas = draws if len(draws) else thetas
        """Hyperparameters of the components, (s, p)."""
        self._kept: dict[int, LatentPosterior] = {}
        self._room = _KEPT

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
    def unknowns(self) -> int:
        """How many numbers the posterior is of, hyperparameters included."""
        return self.centre.unknowns

    @property
    def held(self) -> bool:
        """Whether hyperparameters are at one value: they are not."""
        return False

    @property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and posterior at the centre."""
        return self.centre.mode

    @cached_property
    def _sites(self) -> InterpolatedSites | None:
        """Sites between the fits; None where the draws are those of the fits."""
        return None if self.thetas is self.fits[0] else InterpolatedSites(*self.fits)

    def components(self) -> Iterator[tuple[float, LatentPosterior]]:
        """Yield each weight and posterior."""
        weight = 1.0 / len(self.thetas)
        for posterior in self._components(range(len(self.thetas))):
            yield weight, posterior

    def _components(self, index: Iterable[int]) -> Iterator[LatentPosterior]:
        for k in index:
            if k in self._kept:
                yield self._kept[k]
                continue
            theta = self.thetas[k]
            shift, precision = (self.fits[1][k], self.fits[2][k]) if self._sites is None else self._sites(theta)
            posterior = LatentPosterior.at_sites(self.form, theta, shift, precision)
            yield posterior
            if (size := _bytes_of(posterior.mode)) <= self._room:
                self._kept[k] = posterior
                self._room -= size

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the moments of affine variables under the mixture."""
        return mixed_moments((weight, component.moments(variables)) for weight, component in self.components())

    def predictor_moments(self, likelihood: Likelihood) -> Moments:
        """Return the moments of a likelihood's predictors, one to predict included."""
        return self.moments([AffineVariable(likelihood.name, likelihood.predictor)])[likelihood.name]

    def hyper_moments(self) -> dict[str, Moments]:
        """Return moments of the hyperparameters on their own scale."""
        count = len(self.thetas)
        return weighted_moments(self.form.constrained(self.thetas), np.full(count, 1.0 / count))

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form: each component in turn, in a new order each round.

        There are no densities, whatever the `budget` that `LatentPosterior.draws` takes for these.
        """
        rounds = -(-size // len(self.thetas))
        order = np.concatenate([rng.permutation(len(self.thetas)) for _ in range(rounds)])
        return self.draws_of(order[:size], rng, log_likelihood=log_likelihood)

    def draws_of(self, component: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return a joint draw from each of the given components, (s,)."""
        noise: list[np.ndarray] = []
        used = np.unique(component)
        places = np.argsort(component, kind="stable")
        groups = np.split(places, np.searchsorted(component[places], used[1:]))
        for here, posterior in zip(groups, self._components(used)):
            flat = [part for block in posterior.noise_draws(len(here), rng).noise for part in block]
            if not noise:
                noise = [np.empty((len(component), part.shape[1])) for part in flat]
            for rows, part in zip(noise, flat):
                rows[here] = part
        blocks = self._by_block(noise)
        drawn, origins = [b[0] for b in blocks], [b[1] for b in blocks if len(b) == 2]
        thetas = self.thetas[component]
        values, densities = self.form.rows.evaluate(thetas, drawn, origins, log_density=log_likelihood)
        return JointDraws(
            values, self.form.rows.of_observed(thetas, densities), left_out=_LEFT_OUT if log_likelihood else ""
        )

    def _by_block(self, parts: Sequence[np.ndarray]) -> NoiseDraws:
        rest = iter(parts)
        return [(next(rest),) if block.origin is None else (next(rest), next(rest)) for block in self.form.form.blocks]


def _bytes_of(part: Any) -> int:
    """Return the bytes of all arrays in tuples and objects."""
    if isinstance(part, np.ndarray):
        return part.nbytes
    parts = part if isinstance(part, tuple | list) else vars(part).values() if hasattr(part, "__dict__") else ()
    return sum(map(_bytes_of, parts))
