"""Posteriors of one form on several grids of wavelets, averaged.

An orthonormal basis has a grid, and the prior says more at some pixels than at others; nothing in a picture knows where
the grid is. The equal mixture of the posteriors on translated grids has the mean that is known as cycle spinning
(Coifman and Donoho 1995), and its variances include how far the grids disagree.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.form import Likelihood
from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.engines.base import Status
from pymc_ep.forms.latent_gaussian.form import AffineVariable
from pymc_ep.forms.latent_gaussian.posterior import LatentPosterior
from pymc_ep.forms.latent_gaussian.posterior_mixture import PosteriorMixture, mixed_moments
from pymc_ep.forms.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.forms.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.forms.sparse_linear.posterior_sampled import SampledPosterior

__all__ = [
    "PosteriorAverage",
    "averaged_evidence",
    "averaged_status",
    "grid_state",
    "rebuild_average",
    "translations_of",
]

Part = LatentPosterior | PosteriorMixture | SampledPosterior
_LEFT_OUT = "draws come from a mixture over translations, whose density is not evaluated"


def translations_of(form: CompiledSparseLinear, count: int) -> list[CompiledSparseLinear]:
    """Return a form on `count` translated grids but for the first one, its own.

    Raises
    ------
    ValueError
        Where there are not so many.
    """
    period = form.period
    if period is None or count > period**2:
        what = "no potential on wavelets" if period is None else f"wavelets that repeat after {period} pixels"
        raise ValueError(
            f"translations={count}, but the model has {what}; there are {(period or 1) ** 2} different translations."
        )
    return [form.translated(shift) for shift in _places(count, period)[1:]]


def _places(count: int, period: int) -> list[tuple[int, int]]:
    """Return places in a grid that repeats after `period` pixels, the first one (0, 0).

    The finest level is the one that neighbours share, and it repeats after two pixels. So the first four are all that
    differ for it, the first sixteen all for the two finest levels, and so on: of the number of a place every second
    binary digit makes the row, and the others, added to these without carry, the column.
    """
    out = []
    for k in range(count):
        row = column = 0
        for digit in range(period.bit_length() - 1):
            one, other = (k >> 2 * digit) & 1, (k >> 2 * digit + 1) & 1
            row += one << digit
            column += (one ^ other) << digit
        out.append((row, column))
    return out


class PosteriorAverage:
    """The equal mixture of posteriors, at the same hyperparameters.

    Parameters
    ----------
    parts : sequence of posteriors
        Of a form and of its translations, the form itself first.
    """

    def __init__(self, parts: Sequence[Part]):
        self.parts = tuple(parts)

    @property
    def without_sites(self) -> str:
        """Why there are no sites of the average."""
        return (
            f"The result averages posteriors on {len(self.parts)} translated grids, which have sites of their own "
            f"each; fit with translations=1 to look at one of them."
        )

    @property
    def unknowns(self) -> int:
        """How many numbers the posterior is of, hyperparameters included."""
        return self.parts[0].unknowns

    @property
    def held(self) -> bool:
        """Whether hyperparameters are at one value: they are."""
        return True

    @property
    def form(self) -> SiteFunctions:
        """The form on the grid of the model."""
        return self.parts[0].form

    @property
    def theta(self) -> np.ndarray:
        """Hyperparameters, (p,)."""
        return self.parts[0].theta

    @property
    def mode(self) -> Any:
        """Hyperparameters, prior and posterior on the grid of the model."""
        return self.parts[0].mode

    def components(self) -> Iterator[tuple[float, Part]]:
        """Yield each weight and posterior."""
        for part in self.parts:
            yield 1.0 / len(self.parts), part

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the moments of affine variables under the mixture."""
        return mixed_moments((weight, part.moments(variables)) for weight, part in self.components())

    def predictor_moments(self, likelihood: Likelihood) -> Moments:
        """Return the moments of a likelihood's predictors, one to predict included."""
        return self.moments([AffineVariable(likelihood.name, likelihood.predictor)])[likelihood.name]

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the hyperparameters, which are held."""
        return self.parts[0].hyper_moments()

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form, of a part each; there are no densities."""
        which = rng.integers(len(self.parts), size=size)
        back = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        counts = np.bincount(which, minlength=len(self.parts))
        drawn = [part.draws(int(n), rng, log_likelihood=log_likelihood) for part, n in zip(self.parts, counts) if n]
        values, likelihoods = (
            {name: np.concatenate([own[name] for own in parts])[back] for name in parts[0]}
            for parts in ([d.values for d in drawn], [d.log_likelihood for d in drawn])
        )
        return JointDraws(values, likelihoods, left_out=_LEFT_OUT if log_likelihood else "")


_GRID = "grid_"
"""What is put before the names of what the state holds of each translated grid."""


def averaged_evidence(values: Sequence[float]) -> float:
    """Return the log evidence of the equal mixture, from that on each grid."""
    return float(logsumexp(values) - np.log(len(values)))


def averaged_status(first: Status, others: Sequence[Status]) -> Status:
    """Say how the fits ended, that on the model's own grid and those on the others."""
    failed = sum(not other.converged for other in others)
    sentence = f"{first.sentence}; averaged over {len(others) + 1} translations of the wavelets' grid"
    if failed:
        sentence += f", of which {failed} did not converge"
    return Status(first.converged and not failed, sentence)


def grid_state(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of the fits on all grids but the first, stacked under names of their own."""
    return {_GRID + name: np.array([state[name] for state in states]) for name in (states[0] if states else ())}


def rebuild_average(
    form: Any, state: Mapping[str, np.ndarray], rebuild_one: Callable[[Any, Mapping[str, np.ndarray]], Any]
) -> Any:
    """Return the posterior of a saved state: an average where it holds more grids than the form's own."""
    grids = {name.removeprefix(_GRID): value for name, value in state.items() if name.startswith(_GRID)}
    own = {name: value for name, value in state.items() if not name.startswith(_GRID)}
    parts = [rebuild_one(form, own)]
    if not grids:
        return parts[0]
    count = len(next(iter(grids.values())))
    for k, moved in enumerate(translations_of(form, count + 1)):
        parts.append(rebuild_one(moved, own | {name: value[k] for name, value in grids.items()}))
    return PosteriorAverage(parts)
