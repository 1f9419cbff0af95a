"""Posteriors of one form on several grids of wavelets, averaged.

An orthonormal wavelet basis has a grid, so that the prior is not invariant under translations. Pictures have no such
grid. The equal mixture of the posteriors on translated grids has the mean known as cycle spinning (Coifman and
Donoho 1995). Its variances include the differences between grids.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.engines.base import Status
from pymc_ep.evidence.mixtures import mixed_moments
from pymc_ep.models.latent_gaussian.form import AffineVariable
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.models.latent_gaussian.posterior_mixture import PosteriorMixture
from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.models.sparse_linear.posterior_sampled import SampledPosterior

__all__ = [
    "Part",
    "PosteriorAverage",
    "averaged_evidence",
    "averaged_status",
    "grid_state",
    "rebuild_average",
    "translations_of",
]

Part = LatentPosterior | PosteriorMixture | SampledPosterior
"""Posterior on one grid."""
OnGrid = TypeVar("OnGrid", bound=Part)
"""Type of the posteriors on grids that a method rebuilds."""
_LEFT_OUT = "draws come from a mixture over translations, whose density is not evaluated"
"""Reason for missing log densities of draws."""


def translations_of(form: CompiledSparseLinear, count: int) -> list[CompiledSparseLinear]:
    """Return the form on `count` - 1 translated grids; together with the form's own grid these are `count`.

    Raises
    ------
    ValueError
        If `count` exceeds the number of different translations.
    """
    period = form.period
    if period is None or count > period**2:
        waves = "no potential on wavelets" if period is None else f"wavelets that repeat after {period} pixels"
        raise ValueError(
            f"translations={count}, but the model has {waves}; there are {(period or 1) ** 2} different translations."
        )
    return [form.translated(shift) for shift in _translations(count, period)[1:]]


def _translations(count: int, period: int) -> list[tuple[int, int]]:
    """Return `count` translations (row, column), pixels, of a grid of the given period; the first is (0, 0).

    The finest level has the period 2, so the first four translations are all that differ for it. The first sixteen are
    all that differ for the two finest levels, and so on. Let e and o be the numbers made of the even and of the odd
    binary digits of the index: the row is e, and the column e XOR o.
    """
    out = []
    for k in range(count):
        row = column = 0
        for digit in range(period.bit_length() - 1):
            even, odd = (k >> 2 * digit) & 1, (k >> 2 * digit + 1) & 1
            row += even << digit
            column += (even ^ odd) << digit
        out.append((row, column))
    return out


class PosteriorAverage:
    """The equal mixture of posteriors on several grids, at the same hyperparameters.

    Parameters
    ----------
    posteriors : sequence of posteriors
        Posteriors on the grids, the model's first.
    """

    def __init__(self, posteriors: Sequence[Part]):
        self.posteriors = tuple(posteriors)

    @property
    def without_sites(self) -> str:
        """Reason why diagnostics of single sites are unavailable."""
        return (
            f"The result averages posteriors on {len(self.posteriors)} translated grids, which have sites of their own "
            f"each; fit with translations=1 to look at one of them."
        )

    @property
    def unknowns(self) -> int:
        """Dimension of the posterior, hyperparameters included."""
        return self.posteriors[0].unknowns

    @property
    def held(self) -> bool:
        """True: hyperparameters have one value, and are not integrated over."""
        return True

    @property
    def form(self) -> SiteFunctions:
        """The form on the grid of the model."""
        return self.posteriors[0].form

    @property
    def theta(self) -> np.ndarray:
        """Hyperparameters, (p,)."""
        return self.posteriors[0].theta

    @property
    def mode(self) -> tuple[np.ndarray, Any, Any]:
        """Hyperparameters, and prior and posterior on the grid of the model."""
        return self.posteriors[0].mode

    def components(self) -> Iterator[tuple[float, Part]]:
        """Yield each weight and posterior."""
        for posterior in self.posteriors:
            yield 1.0 / len(self.posteriors), posterior

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the moments of affine variables under the mixture."""
        return mixed_moments((weight, posterior.moments(variables)) for weight, posterior in self.components())

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the moments of the hyperparameters, which are the same on all grids."""
        return self.posteriors[0].hyper_moments()

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of the form's variables, each on a grid chosen at random, without their log densities."""
        members = rng.integers(len(self.posteriors), size=size)
        back = np.argsort(np.argsort(members, kind="stable"), kind="stable")
        counts = np.bincount(members, minlength=len(self.posteriors))
        drawn = [
            posterior.draws(int(n), rng, log_likelihood=log_likelihood)
            for posterior, n in zip(self.posteriors, counts)
            if n
        ]
        values, likelihoods = (
            {name: np.concatenate([arrays[name] for arrays in by_member])[back] for name in by_member[0]}
            for by_member in ([d.values for d in drawn], [d.log_likelihood for d in drawn])
        )
        return JointDraws(values, likelihoods, left_out=_LEFT_OUT if log_likelihood else "")


_GRID = "grid_"
"""Prefix of the state entries of the translated grids."""


def averaged_evidence(values: Sequence[float]) -> float:
    """Return the log evidence of the equal mixture: the log of the mean evidence of the grids."""
    return float(logsumexp(values) - np.log(len(values)))


def averaged_status(first: Status, others: Sequence[Status]) -> Status:
    """Return the joint status of the fits on the model's grid and on the others."""
    failed = sum(not other.converged for other in others)
    sentence = f"{first.sentence}; averaged over {len(others) + 1} translations of the wavelets' grid"
    if failed:
        sentence += f", of which {failed} did not converge"
    return Status(first.converged and not failed, sentence)


def grid_state(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of the fits on all grids but the first, stacked, under prefixed names."""
    return {_GRID + name: np.array([state[name] for state in states]) for name in (states[0] if states else ())}


def rebuild_average(
    form: CompiledSparseLinear,
    state: Mapping[str, np.ndarray],
    rebuild_one: Callable[[CompiledSparseLinear, Mapping[str, np.ndarray]], OnGrid],
) -> OnGrid | PosteriorAverage:
    """Return the posterior of a saved state: an average if the state has translated grids."""
    grids = {name.removeprefix(_GRID): value for name, value in state.items() if name.startswith(_GRID)}
    if not grids:
        return rebuild_one(form, state)
    plain = {name: value for name, value in state.items() if not name.startswith(_GRID)}
    posteriors = [rebuild_one(form, plain)]
    count = len(next(iter(grids.values())))
    for k, moved in enumerate(translations_of(form, count + 1)):
        posteriors.append(rebuild_one(moved, plain | {name: value[k] for name, value in grids.items()}))
    return PosteriorAverage(posteriors)
