"""Sum-product on forests of quad-trees whose nodes have two states, low and high: hidden Markov trees of images.

A level is an array, its parents one of half the sides: nodes are never looped over. With b the log odds of the high
state by all that is below a node, itself included, and p_d the probability of the high state below a parent in state d,

    b_j = e_j + sum of (m_1 - m_0) over the children of j,        m_d = log(1 - p_d) + softplus(logit p_d + b),

where e are the log odds of emissions. The log normaliser is the sum of m_0 over all nodes, a root counting as a child
of a parent in the low state; downwards, P(high | parent in d, data) = sigmoid(logit p_d + b) (Crouse, Nowak and
Baraniuk 1998, in log odds).
"""

from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array, namespace

__all__ = ["Forest", "TreePosterior", "quad_forest"]


class TreePosterior(NamedTuple):
    """States of the nodes given all emissions, all (n,).

    Attributes
    ----------
    log_normaliser : array
        Terms whose sum is the log normaliser relative to all emissions of the low state.
    high : array
        Probability of the high state.
    parent : array
        The same of the node's parent; 0 for roots.
    below_low, below_high : array
        Probability of the high state given that the parent's is low, or high. Roots count as below a low parent.
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
        Trees side by side, rows and columns of each level, from the leaves to the roots; sides halve from one to the
        next. Nodes are numbered in this order, each level in C order.
    """

    shapes: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """Number n of nodes."""
        return sum(map(prod, self.shapes))

    def levels(self, values: Array) -> list[Any]:
        """Cut one value a node, (n,), into levels."""
        out, start = [], 0
        for shape in self.shapes:
            out.append(values[start : start + prod(shape)].reshape(shape))
            start += prod(shape)
        return out

    def log_normaliser(self, log_odds: Array, low: Array, high: Array, xp: ModuleType | None = None) -> Array:
        """Return the log normaliser relative to all emissions of the low state.

        Parameters
        ----------
        log_odds : array, (n,)
            Log density of each emission under the high state less that under the low one.
        low, high : array, (n,)
            Probability of the high state where the parent's is low, or high; roots read `low` alone.
        xp : module, optional
            Of array functions: ``pytensor.tensor`` for graphs; by default NumPy or JAX, as the arrays are.
        """
        xp = namespace(log_odds, low, high) if xp is None else xp
        return sum(level.message.sum() for level in self._upwards(log_odds, low, high, xp))

    def posterior(self, log_odds: Array, low: Array, high: Array) -> TreePosterior:
        """Return the states given all emissions; for arguments see `log_normaliser`."""
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
        """Return draws of the states, (n,) of bool, from uniform ones, (n,); for the rest see `log_normaliser`."""
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
    """m_0."""
    below: list[tuple[Any, Any]]
    """logit p_d + b and its softplus, for d = low and high."""


def quad_forest(trees: int, rows: int, columns: int, levels: int) -> Forest:
    """Return the forest of `levels` whose leaves are `trees` arrays of `rows` by `columns`."""
    return Forest(tuple((trees, rows >> level, columns >> level) for level in range(levels)))


def _shared(probability: np.ndarray) -> np.ndarray:
    """Return the probability of a level as one number, (1, 1, 1), if its nodes share it, as in tied trees; else all."""
    first = probability[:1, :1, :1]
    return first if (probability == first).all() else probability


def _log_odds_terms(probability: Array, belief: Array, xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return logit p + b, its softplus and log(1 - p)."""
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
