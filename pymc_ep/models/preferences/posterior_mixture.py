"""Mixture of posteriors of utilities at nodes of the hyperparameters: points of a lattice, or draws."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.evidence.integration.lattice import Cells
from pymc_ep.evidence.mixtures import mixed_moments
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers, Sites
from pymc_ep.models.preferences.posterior import PreferencePosterior, joint_draws

__all__ = ["Design", "PreferenceMixture"]

_PREFIX = "design_"
"""Prefix of the state entries of a `Design`."""


class Design(NamedTuple):
    """Nodes of the hyperparameters, and the factors of the fits there.

    Attributes
    ----------
    thetas : ndarray, (k, p)
        Unconstrained hyperparameters of the k nodes.
    shares : ndarray, (k,)
        Weights of the nodes, which add up to one.
    steps : ndarray, (p, p), or None
        Edges of a cell of the lattice of nodes, as rows; None where the nodes are draws.
    shifts, precisions : ndarray, (k, P)
        Factors of all P comparisons in the order given by the model; zeros for comparisons that the fits leave out.
    weights : ndarray, (k, N)
        `UserFactors.weights` of the fits.
    """

    thetas: np.ndarray
    shares: np.ndarray
    steps: np.ndarray | None = None
    shifts: np.ndarray = np.zeros((0, 0))
    precisions: np.ndarray = np.zeros((0, 0))
    weights: np.ndarray = np.zeros((0, 0))

    @classmethod
    def of_state(cls, state: Mapping[str, np.ndarray]) -> "Design | None":
        """Return the design in a saved ``fit_state``; None where the fit is at one value of the hyperparameters."""
        if _PREFIX + "thetas" not in state:
            return None
        return cls(**{name: state[_PREFIX + name] for name in cls._fields if _PREFIX + name in state})

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Arrays of the design, by their names in a saved ``fit_state``."""
        return {_PREFIX + name: value for name, value in self._asdict().items() if value is not None}

    def theta_draws(self, nodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return draws of theta, (s, p), one for each of `nodes`, (s,): from the node's cell, or the node itself."""
        if self.steps is None:
            return self.thetas[nodes]
        return Cells(self.thetas, self.shares, self.steps).draws(nodes, rng)


class PreferenceMixture:
    """Posterior of all variables of a `Preferences` form, integrated over the hyperparameters.

    Components are made one at a time, as each may hold matrices of all items.

    Parameters
    ----------
    form : CompiledPreferences
    theta : ndarray, (p,)
        Unconstrained hyperparameters of one fit that stands for all, such as the fit at their mode.
    compared : ComparedUsers
    design : Design
    shaped : bool
        As in `PreferencePosterior`.
    """

    def __init__(
        self, form: CompiledPreferences, theta: np.ndarray, compared: ComparedUsers, design: Design, *, shaped: bool
    ):
        self.form, self.theta, self.compared, self.design = form, theta, compared, design
        self.shaped = shaped

    @property
    def unknowns(self) -> int:
        """Number of unknowns, hyperparameters included."""
        return int(np.prod(self.form.shape)) + self.theta.size

    def components(self) -> Iterator[tuple[float, PreferencePosterior]]:
        """Yield the weight and posterior of each node."""
        for k, share in enumerate(self.design.shares):
            yield float(share), self._component(k)

    def portions(self, size: int, rng: np.random.Generator) -> Iterator[tuple[int, PreferencePosterior]]:
        """Yield, for each node that has any of `size` draws, the number of its draws and its posterior."""
        nodes, counts = np.unique(self._drawn_nodes(size, rng), return_counts=True)
        for k, count in zip(nodes, counts):
            yield int(count), self._component(k)

    def moments(self) -> dict[str, Moments]:
        """Return means and standard deviations of all utilities, in the model's shape, by the name of the utilities."""
        return mixed_moments((weight, component.moments()) for weight, component in self.components())

    def hyper_moments(self) -> dict[str, Moments]:
        """Return means and standard deviations of the hyperparameters over the nodes, by name, on the model's scale."""
        return mixed_moments((weight, component.hyper_moments()) for weight, component in self.components())

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form, optionally with log likelihoods.

        The utilities of a draw are from the fit at the node in whose cell the hyperparameters of the draw lie.
        """
        nodes = rng.permutation(self._drawn_nodes(size, rng))
        return self.draws_of(nodes, rng, log_likelihood=log_likelihood)

    def draws_of(self, nodes: np.ndarray, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return a joint draw of all variables for each entry of `nodes`, (s,)."""
        utilities = np.empty((len(nodes), self.form.n_users, self.form.n_items))
        for k in np.unique(nodes):
            mask = nodes == k
            utilities[mask] = self._component(k).utility_draws(int(mask.sum()), rng)
        thetas = self.design.theta_draws(nodes, rng)
        return joint_draws(self.form, self.compared, thetas, utilities, log_likelihood=log_likelihood)

    def _drawn_nodes(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return sampled nodes, (size,), in ascending order; each occurs `size` times its share, to within one."""
        # Systematic sampling: the shares' distribution function is inverted at (i + u) / s, with one u for all i < s.
        places = (np.arange(size) + rng.random()) / size
        return np.minimum(np.searchsorted(np.cumsum(self.design.shares), places), len(self.design.shares) - 1)

    def _component(self, k: int) -> PreferencePosterior:
        design, order, none = self.design, self.compared.order, np.zeros(len(self.compared.users))
        sites = Sites(design.shifts[k][order], design.precisions[k][order])
        users = UserFactors(sites, design.weights[k], none, none)
        return PreferencePosterior(self.form, design.thetas[k], self.compared, users, self.shaped)
