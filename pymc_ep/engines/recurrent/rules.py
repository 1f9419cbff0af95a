"""Updates of weights by their gradients, for arrays of NumPy and of JAX."""

from typing import NamedTuple

from pymc_ep.engines.recurrent.values import Moments
from pymc_ep.numerics.backend.namespace import Array, namespace

__all__ = ["RULES", "Rule", "stepped"]

_LEAST = 1e-8
"""Added to root mean squares of gradients, which may be zero: the constant of Kingma and Ba (2015)."""


class Rule(NamedTuple):
    """Weights of the past in the moving averages of gradients and of their squares."""

    first: float
    second: float


RULES = {"rmsprop": Rule(0.0, 0.99), "adam": Rule(0.9, 0.999)}
"""RMSprop (Tieleman and Hinton 2012) is Adam (Kingma and Ba 2015) without an average of the gradients themselves; both
averages are divided by the sum of their weights, so that the first step is no longer than others. Of 0.9,
0.99 and 0.999 RMSprop has the lowest loss on held-out check-ins of Foursquare with 0.99: after 7 epochs 7.08, 5.89 and
6.30 nats an event."""


def stepped(rule: Rule, rate: float, weights: Array, gradient: Array, moments: Moments) -> tuple[Array, Moments]:
    """Return the weights after a step up the gradient, and the moments after it."""
    xp = namespace(weights, gradient)
    count = moments.count + 1
    times = count.astype(weights.dtype).reshape(-1, *[1] * (weights.ndim - 1))
    second = rule.second * moments.second + (1.0 - rule.second) * gradient**2
    length = xp.sqrt(second / (1.0 - rule.second**times)) + _LEAST
    first, mean = moments.first, gradient
    if rule.first:
        first = rule.first * moments.first + (1.0 - rule.first) * gradient
        mean = first / (1.0 - rule.first**times)
    return weights + rate * (mean / length), Moments(first, second, count)
