"""Sum-product on forests of quad-trees whose nodes have two states, low and high: hidden Markov trees of images.

A level is an array, and the level of its parents an array of half as many rows and columns, so that no loop goes over
nodes. Let p_d be a node's probability of the high state if its parent is in state d, 0 for low and 1 for high. Let e_j
be the log ratio of the densities of node j's emission in the high and in the low state. Upwards, from children to
parents,

    b_j = e_j + sum of (m_1 - m_0) over the children of j,        m_d = log(1 - p_d) + softplus(logit p_d + b),

where b_j is the log likelihood ratio of the states of node j, from the emissions of j and of all nodes below. The log
normaliser is the sum of m_0 over all nodes, if a root counts as the child of a parent in the low state. Downwards,
P(high | parent in d, emissions) = sigmoid(logit p_d + b) (Crouse, Nowak and Baraniuk 1998, in log odds).
"""

from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array, namespace

__all__ = ["Forest", "TreePosterior", "quad_forest"]


class TreePosterior(NamedTuple):
    """Probabilities of the states of n nodes given all emissions; all arrays are (n,).

    Attributes
    ----------
    log_normaliser : array
        Terms m_0, whose sum is the log normaliser; see `Forest.log_normaliser`.
    high : array
        Probability of the high state.
    parent : array
        Probability of the high state of the node's parent; 0 for roots.
    below_low, below_high : array
        Probability of the high state if the parent is in the low, or in the high, state. Roots count as below a low
        parent.
    """

    log_normaliser: Array
    high: Array
    parent: Array
    below_low: Array
    below_high: Array


class Forest(NamedTuple):
    """Quad-trees, level by level.

    Attributes
    ----------
    shapes : tuple of (int, int, int)
        Number of images, rows and columns of each level, from the leaves to the roots; rows and columns halve from one
        level to the next. Nodes are numbered in this order, each level in C order.
    """

    shapes: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """Number n of nodes."""
        return sum(map(prod, self.shapes))

    def levels(self, values: Array) -> list[Any]:
        """Return `values`, (n,), one for each node, as a list of one array for each level, of the level's shape."""
        out, start = [], 0
        for shape in self.shapes:
            out.append(values[start : start + prod(shape)].reshape(shape))
            start += prod(shape)
        return out

    def log_normaliser(self, log_odds: Array, low: Array, high: Array, xp: ModuleType | None = None) -> Array:
        """Return the log normaliser: the log density of all emissions, relative to their density in the low state.

        Parameters
        ----------
        log_odds : array, (n,)
            Log ratio of the densities of each emission, in the high and in the low state.
        low, high : array, (n,)
            Probability of the high state if the parent is in the low, or in the high, state; for roots only `low` is
            used.
        xp : module, optional
            Module of array functions: ``pytensor.tensor`` for graphs; by default NumPy or JAX, as the arrays are.
        """
        xp = namespace(log_odds, low, high) if xp is None else xp
        return sum(level.message.sum() for level in self._upwards(log_odds, low, high, xp))

    def posterior(self, log_odds: Array, low: Array, high: Array) -> TreePosterior:
        """Return the probabilities of the states given all emissions; for arguments see `log_normaliser`."""
        xp = namespace(log_odds, low, high)
        levels: list[TreePosterior] = []
        for shape, upward in reversed(list(zip(self.shapes, self._upwards(log_odds, low, high, xp)))):
            parent = _at_children(levels[-1].high, xp) if levels else xp.zeros(shape)
            # sigmoid(x) = exp(x - softplus(x)) for x = logit p_d + b.
            below_low, below_high = (xp.exp(x - softplus) for x, softplus in upward.below)
            # P(high) = sum_d P(parent in d) P(high | parent in d).
            reached = below_low + parent * (below_high - below_low)
            levels.append(TreePosterior(upward.message, reached, parent, below_low, below_high))
        return TreePosterior(*(xp.concatenate([array.ravel() for array in arrays[::-1]]) for arrays in zip(*levels)))

    def states(self, uniform: Array, low: Array, high: Array, xp: ModuleType) -> Array:
        """Return draws of the states, (n,) of bool, True for high, from `uniform`, (n,), uniform draws on (0, 1).

        For the other arguments see `log_normaliser`.
        """
        drawn: list[Any] = []
        for uniforms, below_low, below_high in reversed(list(zip(*map(self.levels, (uniform, low, high))))):
            probability = xp.where(_at_children(drawn[-1], xp), below_high, below_low) if drawn else below_low
            drawn.append(uniforms < probability)
        return xp.concatenate([level.ravel() for level in drawn[::-1]])

    def _upwards(self, log_odds: Array, low: Array, high: Array, xp: ModuleType) -> list["_Level"]:
        """Return the upward messages of each level."""
        out = []
        below: Array = 0.0
        for level, (odds, *given) in enumerate(zip(*map(self.levels, (log_odds, low, high)))):
            belief = odds + below
            if xp is np:
                given = [_shared(p) for p in given]
            terms = [_log_odds_terms(p, belief, xp) for p in given]
            # m_d = log(1 - p_d + p_d e^b).
            messages = [log_complement + softplus for _, softplus, log_complement in terms]
            out.append(_Level(messages[0], [(x, softplus) for x, softplus, _ in terms]))
            if level + 1 < len(self.shapes):
                below = _sum_of_children(messages[1] - messages[0], self.shapes[level + 1])
        return out


class _Level(NamedTuple):
    message: Array
    """m_0 of each node."""
    below: list[tuple[Any, Any]]
    """logit p_d + b and its softplus, for d = low and high."""


def quad_forest(trees: int, rows: int, columns: int, levels: int) -> Forest:
    """Return the forest of `levels` levels whose leaves are `trees` images of `rows` by `columns`."""
    return Forest(tuple((trees, rows >> level, columns >> level) for level in range(levels)))


def _shared(probability: np.ndarray) -> np.ndarray:
    """Return the probabilities of a level, as one element, (1, 1, 1), if all are equal, as in tied trees."""
    first = probability[:1, :1, :1]
    return first if (probability == first).all() else probability


def _log_odds_terms(probability: Array, belief: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return logit p + b, its softplus and log(1 - p), for p = `probability` and b = `belief`."""
    log_complement = xp.log1p(-probability)
    odds = xp.log(probability) - log_complement + belief
    softplus: Callable[[Any], Any] = getattr(xp, "softplus", None) or _softplus
    return odds, softplus(odds), log_complement


def _softplus(x: Array) -> Array:
    xp = namespace(x)
    # log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def _sum_of_children(children: Array, shape: tuple[int, ...]) -> Array:
    """Return the sum over each parent's children, by slices: NumPy's sum over axes of two is 30 times slower."""
    trees, rows, columns = shape
    apart = children.reshape((trees, rows, 2, columns, 2))
    pairs = apart[:, :, 0] + apart[:, :, 1]
    return pairs[..., 0] + pairs[..., 1]


def _at_children(parents: Array, xp: ModuleType) -> Array:
    """Return each parent's value at its four children."""
    return xp.repeat(xp.repeat(parents, 2, axis=2), 2, axis=1)
