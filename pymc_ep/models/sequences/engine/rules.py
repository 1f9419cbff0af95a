"""Updates of weights by their gradients, for arrays of NumPy and of JAX."""

from typing import NamedTuple

from pymc_ep.models.sequences.engine.values import Moments
from pymc_ep.numerics.backend.namespace import Array, namespace

__all__ = ["RULES", "Rule", "stepped"]

_LEAST = 1e-8
"""Added to root mean squares of gradients, which may be zero: the constant of Kingma and Ba (2015)."""


class Rule(NamedTuple):
    """Rule of an update: how the moving averages of gradients and of squared gradients change.

    Attributes
    ----------
    first, second : float
        Factors by which the previous averages, of gradients and of squared gradients, are multiplied in each update.
    additive : bool
        Whether a new square g^2 moves the average v towards itself by ``1 - second`` times g^2, so that small gradients
        hardly lower v. Otherwise it moves v by ``1 - second`` times the difference g^2 - v.
    """

    first: float
    second: float
    additive: bool = False


RULES = {"yogi": Rule(0.0, 0.99, additive=True), "rmsprop": Rule(0.0, 0.99), "adam": Rule(0.9, 0.999)}
"""Rules by name. RMSprop (Tieleman and Hinton 2012) is Adam (Kingma and Ba 2015) without an average of the gradients
themselves. Yogi (Zaheer, Reddi, Sachan, Kale and Kumar 2018, Algorithm 2) is used without that average here too. All
averages are divided by the sum of their weights, so that the first step is no longer than others.

The logit of most items has large positive gradients in few steps of an epoch, and small negative ones in all others. If
the average of squares forgets the large gradients in between, the small steps are scaled up too much, and their sum
outweighs the large steps (Reddi, Kale and Kumar 2018). When a short window counted as much as a long one, RMSprop ended
at 5.8 nats a held-out check-in of Brightkite; with 0.999 instead of 0.99 it fell below 3.7. Check-ins of Foursquare
cost 4.51 nats with 0.99 and 4.64 with 0.999, and 4.34 by Yogi. Now that all events count alike, and with memories, the
three rules end at about the same losses on both data sets and on films."""


def stepped(rule: Rule, rate: float, weights: Array, gradient: Array, moments: Moments) -> tuple[Array, Moments]:
    """Return the weights after a step up `gradient`, scaled by `rule` and times `rate`, and the new moments."""
    xp = namespace(weights, gradient)
    count = moments.count + 1
    times = count.astype(weights.dtype).reshape(-1, *[1] * (weights.ndim - 1))
    square = gradient**2
    # v + (1 - beta_2) sign(g^2 - v) g^2 by Yogi, else v + (1 - beta_2) (g^2 - v).
    towards = xp.sign(square - moments.second) * square if rule.additive else square - moments.second
    second = moments.second + (1.0 - rule.second) * towards
    # 1 - beta_2^t is the sum of the weights of t squares (Kingma and Ba 2015); Yogi's average is divided alike.
    length = xp.sqrt(second / (1.0 - rule.second**times)) + _LEAST
    first, mean = moments.first, gradient
    if rule.first:
        first = rule.first * moments.first + (1.0 - rule.first) * gradient
        mean = first / (1.0 - rule.first**times)
    return weights + rate * (mean / length), Moments(first, second, count)
