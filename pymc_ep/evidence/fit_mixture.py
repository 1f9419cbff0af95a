"""Equal mixture of the posteriors of fits at draws of the hyperparameters, and its saved arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from pymc_ep.contracts.posterior import JointDraws, Moments, Posterior
from pymc_ep.evidence.mixtures import mixed_moments

__all__ = ["FitMixture", "FullPosterior", "stacked", "unstacked"]

_PREFIX = "draw_"
"""Prefix of the names under which a saved state has the arrays of its k fits, (k, ...)."""
_NO_DENSITY = "draws come from a mixture over the hyperparameters, whose density is not evaluated"
"""Reason for missing densities of draws: the density of each draw would need all components."""


class FullPosterior(Posterior, Protocol):
    """Posterior with moments of all latent variables."""

    def moments(self) -> dict[str, Moments]:
        """Return the moments of the latent variables."""


Component = TypeVar("Component", bound=FullPosterior)
"""Type of the posterior of one fit."""


class FitMixture(Generic[Component]):
    """Mixture of posteriors of one form with equal weights.

    Parameters
    ----------
    centre : Posterior
        Posterior at the draw nearest to the mean of the hyperparameters.
    posteriors : sequence of Posterior, (k,)
        One for each draw of the hyperparameters.
    """

    def __init__(self, centre: Component, posteriors: Sequence[Component]):
        self.centre, self.posteriors = centre, posteriors

    @property
    def form(self) -> Any:
        """The form, compiled."""
        return self.centre.form

    @property
    def theta(self) -> np.ndarray:
        """Unconstrained hyperparameters at the centre, (p,)."""
        return self.centre.theta

    @property
    def unknowns(self) -> int:
        """Dimension of the posterior, hyperparameters included."""
        return self.centre.unknowns

    def components(self) -> Iterator[tuple[float, Component]]:
        """Yield the weight and posterior of each draw."""
        for component in self.posteriors:
            yield 1.0 / len(self.posteriors), component

    def moments(self) -> dict[str, Moments]:
        """Return the moments of the latent variables."""
        return mixed_moments((weight, component.moments()) for weight, component in self.components())

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the moments of the hyperparameters on their own scale."""
        return mixed_moments((weight, component.hyper_moments()) for weight, component in self.components())

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return `size` joint draws, in rounds of one draw from each fit, with fits in random order."""
        rounds = -(-size // len(self.posteriors))
        order = np.concatenate([rng.permutation(len(self.posteriors)) for _ in range(rounds)])[:size]
        return self.draws_of(order, rng, log_likelihood=log_likelihood)

    def in_turn(self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return joint draws in the order of the k fits, ``size // k`` from each."""
        order = np.repeat(np.arange(len(self.posteriors)), size // len(self.posteriors))
        return self.draws_of(order, rng, log_likelihood=log_likelihood)

    def draws_of(self, fits: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return s joint draws, one from the fit of each index in `fits`, (s,); indices may repeat."""
        values: dict[str, np.ndarray] = {}
        densities: dict[str, np.ndarray] = {}
        left_out = _NO_DENSITY if log_likelihood else ""
        for k in np.unique(fits):
            rows = fits == k
            joint = self.posteriors[k].draws(int(rows.sum()), rng, log_likelihood=log_likelihood)
            left_out = joint.left_out or left_out
            for out, drawn in ((values, joint.values), (densities, joint.log_likelihood)):
                for name, array in drawn.items():
                    out.setdefault(name, np.empty((len(fits), *array.shape[1:]), dtype=array.dtype))[rows] = array
        return JointDraws(values, densities, left_out=left_out)


def stacked(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the states of k fits as one state, whose arrays, (k, ...), have names with a prefix."""
    return {_PREFIX + name: np.stack([state[name] for state in states]) for name in states[0]}


def unstacked(state: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the states of the k fits of a `stacked` state; empty for the state of a single fit."""
    arrays = {name.removeprefix(_PREFIX): rows for name, rows in state.items() if name.startswith(_PREFIX)}
    count = len(next(iter(arrays.values()))) if arrays else 0
    return [{name: rows[k] for name, rows in arrays.items()} for k in range(count)]
