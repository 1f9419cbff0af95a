"""Integration over few hyperparameters by a lattice of fits, grown from the mode until the density has fallen.

The trapezoidal rule integrates a smooth density over the line with an error that falls exponentially in the inverse of
its step h (Trefethen and Weideman 2014). For a Gaussian, with h in its standard deviations, the error is
2 exp(-2 pi^2 / h^2): 5e-9 for h = 1 and 1e-2 for h = 2. The integral by every other node shows whether a density is
smooth enough.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import logsumexp

from pymc_ep.evidence.integration.frame import Frame
from pymc_ep.numerics.interpolation.spline import Spline

__all__ = ["Cells", "Fit", "Lattice", "lattice"]

_COARSE_ERROR = 0.1
"""Error of the log integral by every other node, in nats for each axis, above which the step is halved. For a Gaussian
this error is 0.014. The error by all nodes is its fourth power for smooth densities, and at most a quarter of it, as
for densities with kinks."""
_HALVINGS = 2
"""Most halvings of the step by default."""
_PLACES = 16
"""Number of places in a cell from which a draw is chosen."""

State = TypeVar("State")
"""Result of a fit, from which fits at neighbours start."""
Fit = Callable[[np.ndarray, State], tuple[float, State] | None]
"""``fit(theta, start)``: log density at unconstrained hyperparameters, (p,), and the state; None without a fit."""
Node = tuple[int, ...]


class Lattice(NamedTuple, Generic[State]):
    """Fits at the nodes of a lattice.

    Attributes
    ----------
    thetas : ndarray, (k, p)
    log_density : ndarray, (k,)
        Log evidence plus log prior on the unconstrained scale.
    states : list
    steps : ndarray, (q, p)
        Edges of a cell.
    coarse_error : float
        Difference of the log integrals by all nodes and by every other node, in nats.
    open_ends : ndarray, (m, p)
        Node beside which a fit failed, or would have been out of reach, though the density had not fallen by half of
        `fall`; or the last node where the limit of fits was met. Empty for a complete lattice.
    """

    thetas: np.ndarray
    log_density: np.ndarray
    states: list[State]
    steps: np.ndarray
    coarse_error: float
    open_ends: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """Share of each node in the integral, (k,)."""
        return np.exp(self.log_density - logsumexp(self.log_density))

    @property
    def log_integral(self) -> float:
        """Log of the integral of the density, of a lattice with as many axes as hyperparameters."""
        # Sum of the densities times the volume |steps| of a cell.
        return float(logsumexp(self.log_density) + np.linalg.slogdet(self.steps)[1])


def lattice(
    fit: Fit[State],
    frame: Frame,
    first: tuple[float, State],
    *,
    step: float,
    fall: float,
    reach: float,
    most: int,
    halvings: int = _HALVINGS,
) -> Lattice[State]:
    """Return fits at the nodes of a lattice about a centre, up to where the density has fallen.

    Parameters
    ----------
    fit : callable
    frame : Frame
        Its centre is the first node, its axes, (q, p), the directions of the lattice.
    first : (float, State)
        Log density and state at the centre.
    step : float
        First distance of nodes, in units of the frame.
    fall : float
        Fall of the log density from its highest value, in nats, beyond which nodes have no further neighbours.
    reach : float
        Largest distance from the centre along an axis.
    most : int
        Largest number of fits. A lattice that would need more has open ends.
    halvings : int
        Most halvings of the step, made while every other node gives another integral.
    """
    grown = _Growing(fit, frame, first, step, fall, reach, most)
    grown.grow()
    for _ in range(halvings):
        if grown.open_ends or grown.coarse_error < _COARSE_ERROR * len(frame.axes):
            break
        grown.halve()
        grown.grow()
    return grown.as_lattice()


class _Growing(Generic[State]):
    """A lattice that grows, as log density and state of its nodes by their integer coordinates."""

    def __init__(
        self,
        fit: Fit[State],
        frame: Frame,
        first: tuple[float, State],
        step: float,
        fall: float,
        reach: float,
        most: int,
    ):
        self.fit, self.frame, self.step, self.fall, self.reach, self.most = fit, frame, step, fall, reach, most
        self.nodes: dict[Node, tuple[float, State]] = {(0,) * len(frame.axes): first}
        self.open_ends: list[np.ndarray] = []

    def place(self, node: Node) -> np.ndarray:
        """Return the unconstrained hyperparameters of a node, (p,)."""
        return self.frame.theta(self.step * np.array(node, dtype=float))

    def grow(self) -> None:
        """Add fits at neighbours, of the densest nodes first, until the density has fallen or an end is open."""
        waiting = [(-density, node) for node, (density, _) in self.nodes.items()]
        heapq.heapify(waiting)
        highest = -waiting[0][0]
        while waiting and -waiting[0][0] > highest - self.fall and not self.open_ends:
            _, node = heapq.heappop(waiting)
            density, state = self.nodes[node]
            for other, opposite in _neighbours(node):
                if other in self.nodes:
                    continue
                before = self.nodes.get(opposite, (np.inf, state))[0]
                # A log-concave density is below its extrapolation.
                # f(x + h) <= 2 f(x) - f(x - h) for the log density f.
                if np.isfinite(before) and 2.0 * density - before < highest - self.fall:
                    continue
                beyond = self.step * max(map(abs, other)) > self.reach
                fitted = None if beyond else self.fit(self.place(other), state)
                if (fitted is None and density > highest - 0.5 * self.fall) or len(self.nodes) >= self.most:
                    self.open_ends.append(self.place(node))
                    break
                self.nodes[other] = fitted or (-np.inf, state)
                highest = max(highest, self.nodes[other][0])
                heapq.heappush(waiting, (-self.nodes[other][0], other))

    def halve(self) -> None:
        """Halve the step, so that the nodes so far become every other node."""
        self.step /= 2.0
        self.nodes = {tuple(2 * k for k in node): fitted for node, fitted in self.nodes.items()}

    @property
    def coarse_error(self) -> float:
        """Difference of the log integrals by all nodes and by every other node, in nats."""
        coarse = [density for node, (density, _) in self.nodes.items() if not any(k % 2 for k in node)]
        every = [density for density, _ in self.nodes.values()]
        # A cell of every other node is 2^q times as large.
        return float(abs(logsumexp(coarse) + len(self.frame.axes) * np.log(2.0) - logsumexp(every)))

    def as_lattice(self) -> Lattice[State]:
        """Return the nodes so far as a `Lattice`."""
        return Lattice(
            np.array([self.place(node) for node in self.nodes]),
            np.array([density for density, _ in self.nodes.values()]),
            [state for _, state in self.nodes.values()],
            self.step * self.frame.axes,
            self.coarse_error,
            np.array(self.open_ends).reshape(-1, len(self.frame.centre)),
        )


def _neighbours(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield each node a step away along an axis, with the node on the opposite side."""
    for i, k in enumerate(node):
        for step in (-1, 1):
            yield (*node[:i], k + step, *node[i + 1 :]), (*node[:i], k - step, *node[i + 1 :])


class Cells:
    """Continuous draws of hyperparameters from a lattice, each from the cell about a node.

    Parameters
    ----------
    thetas : ndarray, (k, p)
        Nodes of a lattice.
    shares : ndarray, (k,)
        Share of each node in the integral.
    steps : ndarray, (p, p)
        Edges of a cell.
    """

    def __init__(self, thetas: np.ndarray, shares: np.ndarray, steps: np.ndarray):
        self.thetas, self.shares, self.steps = thetas, shares, steps

    @cached_property
    def _log_density(self) -> Spline:
        return Spline(self.thetas, np.log(self.shares)[:, None])

    def draws(self, nodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return draws, (s, p), one from the cell of each node whose index is in `nodes`, (s,).

        Within a cell, draws have the square root of the hyperparameters' density. Means and variances of draws then
        equal means and variances of the nodes, weighted by their shares, up to the fourth power of the step. With the
        density itself the variance would be too small, and with a constant too large, by a twelfth of the squared step.
        """
        size, p = len(nodes), len(self.steps)
        offsets = rng.uniform(-0.5, 0.5, size=(size, _PLACES, p)) @ self.steps
        places = self.thetas[nodes][:, None] + offsets
        half = 0.5 * self._log_density(places.reshape(-1, p)).reshape(size, _PLACES)
        # The largest of values with Gumbel noise is a draw by their exponentials.
        chosen = np.argmax(half + rng.gumbel(size=half.shape), axis=1)
        return places[np.arange(size), chosen]
