"""Nested quadrature of sites of two predictors, for sites where a lattice of nodes is not accurate enough.

Given eta_2, the moments of the first predictor are known, by closed form or by quadrature; one integral over eta_2
remains. With the cavity N(m, V), b = V_12 / V_22, s_2^2 = V_22 and s_1^2 = V_11 - b V_12,

    eta_2 = m_2 + s_2 z_2,    eta_1 = m_1 + b s_2 z_2 + s_1 z_1,    Z = int N(z_2; 0, 1) Z_1(z_2) dz_2,

where Z_1 is the integral over z_1. Nodes are evenly spaced where the integrand is near a Gaussian. Elsewhere the
substitution z_2 = c + w sinh(u), about the maximum c of the integrand and with its width w there, leaves an integrand
for which the error of the trapezoidal rule falls exponentially in the number of nodes (Takahasi and Mori 1974).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.compiled import CompiledSite
from pymc_ep.sites.rows_of_two import ROWS, covariance_of, covariance_rows, precision_rows, sum_rows

__all__ = ["Cavity", "NestedMoments", "Nodes"]

_EVEN = 0.6 * np.arange(-12.0, 13.0)
"""Nodes of a first rule, about the maximum of the integrand and in units of its width. For the variance of a Gaussian
integrand the rule errs by rounding, and the rule of every second node by 6e-5. A smaller step would need more nodes.
With a larger one the two rules would not agree even for a Gaussian."""
_ROUGH, _NEGLIGIBLE = 1e-4, 1e-9
"""Conditions for accepting a rule. The first is the largest difference, in log Z and in the logs of both variances,
between all nodes and every second one: the error is about its square. The second is the largest share of Z of either
end node."""
_FEWEST, _HALVINGS = 65, 5
"""Least number of nodes of the later rules, and largest number of halvings of their step."""
_REACH = 9.5
"""Reach of the later rules beyond the cavity's mean and beyond the maximum, in standard deviations of the cavity."""
_CLOSE = np.array([-4.0, -1.0, 0.0, 1.0, 4.0])
"""Values of z_2 at which the log of the integrand is computed first."""
_BEND = 4.0
"""Largest difference between the outer two values at `_CLOSE` and a parabola through the inner three: up to this the
parabola's maximum stands for the integrand's."""
_FIRST, _NEXT = 1.5 * np.arange(-6.0, 7.0), np.linspace(-1.0, 1.0, 9)
"""Values of z_2 at which a wide search for the maximum starts; and values of each further round, relative to the place
of the largest value so far and in units of the spacing."""
_ROUNDS, _FARTHER = 20, 16.0
"""Largest number of rounds of a wide search; and reach of the next round, in spacings of the last one, after a round
whose largest value was its first or last."""
_DROP = 2.0
"""Largest fall of the log of the integrand, from the largest value of a round to both neighbours, at which a wide
search ends: a parabola through the three gives location and curvature of the maximum."""
_WIDEST = 1.5
"""Upper limit of the width of an integrand from a wide search, in standard deviations of the cavity."""
_TELLING = 0.1
"""Ratio of the determinants of tilted and cavity covariance below which Pi is computed as the difference of their
inverses."""
_LEAST = 1e-12
"""Lower limit of Var(eta_1 | eta_2) / Var(eta_1) in a cavity, which is zero where eta_1 is a function of eta_2."""
_BLOCK = 2**13
"""Number of sites whose nodes are evaluated at a time, 2 MB an array."""


class Cavity(NamedTuple):
    """Cavities of n sites, (n,) each: s_1, s_2, m_1, m_2 and b of the module's docstring, in this order."""

    first: np.ndarray
    second: np.ndarray
    mean_1: np.ndarray
    mean_2: np.ndarray
    slope: np.ndarray

    @classmethod
    def of_rows(cls, mean: np.ndarray, variance: np.ndarray) -> "Cavity":
        """Return the cavities from means and variances by rows, (3 n,) each; see `pymc_ep.sites.rows_of_two`."""
        (mean_1, mean_2, _), (v_1, v_2, covariance) = mean.reshape(ROWS, -1), covariance_of(variance)
        slope = covariance / v_2
        given = np.maximum(v_1 - slope * covariance, _LEAST * v_1)
        return cls(np.sqrt(given), np.sqrt(v_2), mean_1, mean_2, slope)

    def among(self, chosen: np.ndarray) -> "Cavity":
        """Return the cavities of some of the sites."""
        return Cavity(*(field[chosen] for field in self))

    def at(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return eta_2 and the mean of eta_1 given eta_2, (k, n) each, at z_2 = `z`, (k, n)."""
        step = self.second * z
        return self.mean_2 + step, self.mean_1 + self.slope * step

    def natural(self, at: "_Whitened", covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of log Z in the cavity's mean, (2, n), and the elements 11, 22 and 12 of Pi, (3, n).

        With A the tilted covariance of z, and eta = m + L z, Pi = -L^-T (A - I) A^-1 L^-1. For informative sites, Pi is
        computed as C^-1 - V^-1, a difference that then keeps its digits; `covariance`, (3, n), is the tilted C.
        """
        (e_1, e_2), (a_1, a_2, a_12), (d_1, d_2) = at
        # M = A^-1 - I = -(A - I) A^-1, in terms of d = diag(A - I).
        det = a_1 * a_2 - a_12**2
        m_1, m_2, m_12 = -(d_1 * a_2 - a_12**2) / det, -(d_2 * a_1 - a_12**2) / det, -a_12 / det
        # L^-1 has the rows (1 / s_1, -b / s_1) and (0, 1 / s_2): grad_m log Z = L^-T E[z] and Pi = L^-T M L^-1.
        gradient = np.array([e_1 / self.first, e_2 / self.second - self.slope * e_1 / self.first])
        first, cross = m_1 / self.first**2, m_12 / (self.first * self.second)
        off = cross - self.slope * first
        second = m_2 / self.second**2 - 2.0 * self.slope * cross + self.slope**2 * first
        v_1, v_2, v_12 = covariance
        # covariance^-1 - V^-1, with V_11 = s_1^2 + b^2 s_2^2, V_12 = b s_2^2, V_22 = s_2^2 and |V| = s_1^2 s_2^2.
        after, before = v_1 * v_2 - v_12**2, (self.first * self.second) ** 2
        wide = self.first**2 + (self.slope * self.second) ** 2
        direct = np.array(
            [
                v_2 / after - self.second**2 / before,
                v_1 / after - wide / before,
                -v_12 / after + self.slope * self.second**2 / before,
            ]
        )
        first, second, off = np.where(det < _TELLING, direct, np.array([first, second, off]))
        return gradient, np.array([first, second, off])


class _Whitened(NamedTuple):
    """Moments of z under the tilted density, of covariance A.

    Attributes
    ----------
    mean : ndarray, (2, n)
    covariance : ndarray, (3, n)
        A_11, A_22 and A_12.
    excess : ndarray, (2, n)
        Diagonal of A - I; its first element is computed without that difference.
    """

    mean: np.ndarray
    covariance: np.ndarray
    excess: np.ndarray


class Nodes(NamedTuple):
    """Nodes of n integrals over z_2 and their shares of Z, (k, n) each, log Z, (n,), and moments of eta_1 at nodes."""

    z: np.ndarray
    share: np.ndarray
    log_z: np.ndarray
    inner: Tilted

    def among(self, chosen: np.ndarray) -> "Nodes":
        """Return the nodes of some of the sites."""
        return Nodes(
            self.z[:, chosen],
            self.share[:, chosen],
            self.log_z[chosen],
            Tilted(*(field[:, chosen] for field in self.inner)),
        )


class _Rule(NamedTuple):
    """Nodes of n integrals, and logs of their weights, (k, n) each."""

    z: np.ndarray
    log_weight: np.ndarray


def _even(centre: np.ndarray, width: np.ndarray) -> _Rule:
    """Return nodes that are evenly spaced, for integrands that are nearly Gaussian."""
    z = centre + width * _EVEN[:, None]
    return _Rule(z, np.broadcast_to(np.log(width * (_EVEN[1] - _EVEN[0])), z.shape))


def _wide(centre: np.ndarray, width: np.ndarray, count: int) -> _Rule:
    """Return nodes c + w sinh(u), evenly spaced in u, wherever the cavity has mass."""
    # From min(c, 0) - _REACH to max(c, 0) + _REACH in z_2, as the cavity's mean is z_2 = 0.
    first = -np.arcsinh((np.maximum(centre, 0.0) + _REACH) / width)
    last = np.arcsinh((np.maximum(-centre, 0.0) + _REACH) / width)
    step = (last - first) / (count - 1)
    u = first + np.arange(count)[:, None] * step
    # dz_2 = w cosh(u) du.
    return _Rule(centre + width * np.sinh(u), np.log(np.cosh(u) * width * step))


class NestedMoments:
    """Moments of many sites of two predictors.

    Parameters
    ----------
    inner : CompiledSite
        Site of the first predictor.
    arguments : callable
        ``arguments(eta_2, parameters)``: the parameters of `inner`, (k, n) each, at eta_2, (k, n).
    """

    def __init__(self, inner: CompiledSite, arguments: Callable[..., list[np.ndarray]]) -> None:
        self._inner = inner
        self._arguments = arguments

    def pieces(
        self,
        y: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        power: Array,
        parameters: Sequence[np.ndarray],
        rest: np.ndarray,
    ) -> Iterator[tuple[np.ndarray, Cavity, np.ndarray, list[np.ndarray], Nodes]]:
        """Yield indices, cavities, observations, parameters and nodes of the sites with indices `rest`, in pieces.

        `mean` and `variance` are (3 n,), see `pymc_ep.sites.rows_of_two`. The sites of a piece share one rule: the
        first that is accepted for them, or the last one.
        """
        n = len(y) // ROWS
        for start in range(0, len(rest), _BLOCK):
            places = rest[start : start + _BLOCK]
            cavity = Cavity.of_rows(*(array.reshape(ROWS, n)[:, places].ravel() for array in (mean, variance)))
            observed, values = y[places], [value[places] for value in parameters]
            centre, width, near = self._maximum(observed, cavity, power, values)
            for level in range(_HALVINGS + 2):
                rule = _wide(centre, width, (_FEWEST - 1) * 2 ** (level - 1) + 1) if level else _even(centre, width)
                nodes, error = self._nodes(observed, cavity, power, values, centre, rule)
                error[~near & (level == 0)] = np.inf
                # Where the last rule is not accurate either, it is the best there is.
                good = ~(error > _ROUGH) | (level > _HALVINGS)
                if good.any():
                    of_good = [value[good] for value in values]
                    yield places[good], cavity.among(good), observed[good], of_good, nodes.among(good)
                if good.all():
                    break
                left = ~good
                cavity, values = cavity.among(left), [value[left] for value in values]
                places, observed, centre, width, near = (
                    array[left] for array in (places, observed, centre, width, near)
                )

    def _inner_moments(
        self, y: np.ndarray, cavity: Cavity, z: np.ndarray, power: Array, values: Sequence[np.ndarray]
    ) -> Tilted:
        """Return the moments of eta_1 given z_2, (k, n)."""
        second, centre = cavity.at(z)
        inner = self._arguments(second, values)
        with np.errstate(all="ignore"):
            return self._inner.moments(y, centre, cavity.first**2, power, *inner)

    def _log_integrand(
        self, y: np.ndarray, cavity: Cavity, z: np.ndarray, power: Array, values: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return log N(z_2; 0, 1) Z_1(z_2), (k, n), but for a constant; -inf where the density is undefined."""
        log_z = np.asarray(self._inner_moments(y, cavity, z, power, values).log_z)
        return np.where(np.isnan(log_z), -np.inf, log_z) - 0.5 * z**2

    def _nodes(
        self,
        y: np.ndarray,
        cavity: Cavity,
        power: Array,
        values: Sequence[np.ndarray],
        centre: np.ndarray,
        rule: "_Rule",
    ) -> tuple[Nodes, np.ndarray]:
        """Return the nodes of a rule, and its error, (n,): the largest |log ratio| of its sums to every second node's.

        The error is infinite where an end node has a share of Z above `_NEGLIGIBLE`.
        """
        z = rule.z
        inner = self._inner_moments(y, cavity, z, power, values)
        log_z = np.asarray(inner.log_z)
        log_term = np.where(np.isnan(log_z), -np.inf, log_z) - 0.5 * z**2 + rule.log_weight
        highest = log_term.max(axis=0)
        term = np.exp(log_term - highest)
        total = term.sum(axis=0)
        share = term / total
        mean = np.where(share > 0, np.asarray(inner.mean), 0.0)
        # Var(eta_1) = E[Var(eta_1 | z_2) + (E[eta_1 | z_2] - E eta_1)^2].
        spread = np.where(share > 0, np.asarray(inner.variance), 0.0) + (mean - (share * mean).sum(axis=0)) ** 2
        sums = [(share, share[::2])] + [(share * v, share[::2] * v[::2]) for v in ((z - centre) ** 2, spread)]
        with np.errstate(divide="ignore", invalid="ignore"):
            # Every second node has twice the weight.
            error = np.max([np.abs(np.log(2.0 * half.sum(axis=0) / all_.sum(axis=0))) for all_, half in sums], axis=0)
        error = np.where(np.maximum(share[0], share[-1]) > _NEGLIGIBLE, np.inf, error)
        log_z = highest + np.log(total) - 0.5 * np.log(2.0 * np.pi)
        return Nodes(z, share, log_z, Tilted(*(np.asarray(field) for field in inner))), error

    def _maximum(
        self, y: np.ndarray, cavity: Cavity, power: Array, values: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return location and width of the maximum over z_2, and whether it is close to a Gaussian's, (n,) each."""
        level = self._log_integrand(y, cavity, np.repeat(_CLOSE[:, None], len(y), axis=1), power, values)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Through z = -1, 0, 1: middle + slope z - curvature z^2 / 2, with its maximum at slope / curvature.
            middle, slope = level[2], 0.5 * (level[3] - level[1])
            curvature = 2.0 * middle - level[1] - level[3]
            ends = _CLOSE[[0, -1], None]
            bend = np.abs(level[[0, -1]] - (middle + ends * slope - 0.5 * ends**2 * curvature)).max(axis=0)
            near = (bend <= _BEND) & (np.abs(slope) <= _CLOSE[-1] * curvature)
            centre, width = slope / curvature, curvature**-0.5
        if not near.all():
            rest = ~near
            centre[rest], width[rest] = self._wide_maximum(
                y[rest], cavity.among(rest), power, [v[rest] for v in values]
            )
        return centre, width, near

    def _wide_maximum(
        self, y: np.ndarray, cavity: Cavity, power: Array, values: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return location and width of the maximum, (n,) each, searched for wherever the cavity has mass."""
        z = np.repeat(_FIRST[:, None], len(y), axis=1)
        centre, curvature = np.zeros((2, len(y)))
        spacing, active = np.full(len(y), _FIRST[1] - _FIRST[0]), np.arange(len(y))
        for _ in range(_ROUNDS):
            level = self._log_integrand(y[active], cavity.among(active), z, power, [value[active] for value in values])
            k = np.nanargmax(level, axis=0)
            ended = (k == 0) | (k == len(z) - 1)
            k = np.clip(k, 1, len(z) - 2)
            low, middle, high = (np.take_along_axis(level, (k + step)[None], axis=0)[0] for step in (-1, 0, 1))
            at, step = np.take_along_axis(z, k[None], axis=0)[0], spacing[active]
            with np.errstate(invalid="ignore", divide="ignore"):
                second = (2.0 * middle - low - high) / step**2
                move = np.clip(0.5 * (high - low) / (second * step**2), -1.0, 1.0) * step
                steep = ended | ~(np.maximum(middle - low, middle - high) <= _DROP)
            sure = np.isfinite(second) & (second > 0)
            centre[active], curvature[active] = at + np.where(sure, move, 0.0), np.where(sure, second, 0.0)
            active = active[steep]
            if not active.size:
                break
            # Wider where the maximum lies beyond, narrower where it lies between two places.
            reach = np.where(ended, _FARTHER, 1.0)[steep] * step[steep]
            spacing[active] = reach * (_NEXT[1] - _NEXT[0])
            z = at[steep] + _NEXT[:, None] * reach
        return centre, 1.0 / np.sqrt(np.maximum(curvature, _WIDEST**-2))

    def third_moments(self, nodes: Nodes, cavity: Cavity, y: np.ndarray, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the third central moments 111, 112, 122 and 222 of the tilted densities, (4, n)."""
        share, (second, centre) = nodes.share, cavity.at(nodes.z)
        used = share > 0
        mean, variance = (np.where(used, np.asarray(field), 0.0) for field in (nodes.inner.mean, nodes.inner.variance))
        inner = self._arguments(second, values)
        observed, wide = (np.broadcast_to(array, centre.shape) for array in (y, cavity.first**2))
        with np.errstate(all="ignore"):
            skewness = np.asarray(self._inner.cumulants(observed, centre, wide, *inner)[0])
        skewness = np.where(used & np.isfinite(skewness), skewness, 0.0)
        d_1, d_2 = mean - (share * mean).sum(axis=0), second - (share * second).sum(axis=0)
        # mu_111 = E[mu_3 + 3 v d_1 + d_1^3], with v = Var(eta_1 | z_2) and mu_3 = skewness v^(3/2); the others alike.
        terms = (
            skewness * variance**1.5 + 3.0 * variance * d_1 + d_1**3,
            (variance + d_1**2) * d_2,
            d_1 * d_2**2,
            d_2**3,
        )
        return np.array([(share * term).sum(axis=0) for term in terms])

    def moments(self, nodes: Nodes, cavity: Cavity) -> Tilted:
        """Return the tilted moments of sites from their nodes, by rows, (3 n,) a field; log Z is in the first n."""
        share, z = nodes.share, nodes.z
        used = share > 0
        gradient = np.where(used, np.asarray(nodes.inner.gradient), 0.0)
        precision = np.where(used, np.asarray(nodes.inner.precision), 0.0)
        # E[z_1 | z_2] = s_1 g and Var(z_1 | z_2) = 1 / (1 + s_1^2 pi), g and pi the gradient and precision of `inner`.
        given, scaled = cavity.first * gradient, cavity.first**2 * precision
        e_1, e_2 = (share * given).sum(axis=0), (share * z).sum(axis=0)
        between = (share * (given - e_1) ** 2).sum(axis=0)
        # The shares of the cavity's variance that are left and gone: a density may be a spike.
        left = 1.0 / (1.0 + scaled)
        gone = np.where(scaled > 1.0, 1.0 - left, np.where(scaled > 1.0, 0.0, scaled) * left)
        a_1, a_2 = between + (share * left).sum(axis=0), (share * (z - e_2) ** 2).sum(axis=0)
        a_12 = (share * (given - e_1) * (z - e_2)).sum(axis=0)
        # A_11 - 1 = Var(E[z_1 | z_2]) - E[1 - Var(z_1 | z_2)].
        d_1 = between - (share * gone).sum(axis=0)
        at = _Whitened(np.array([e_1, e_2]), np.array([a_1, a_2, a_12]), np.array([d_1, a_2 - 1.0]))
        second, _ = cavity.at(z)
        mean, variance = (np.where(used, np.asarray(field), 0.0) for field in (nodes.inner.mean, nodes.inner.variance))
        mean_1, mean_2 = (share * mean).sum(axis=0), (share * second).sum(axis=0)
        v_1 = (share * (variance + (mean - mean_1) ** 2)).sum(axis=0)
        v_2 = (share * (second - mean_2) ** 2).sum(axis=0)
        v_12 = (share * (mean - mean_1) * (second - mean_2)).sum(axis=0)
        slope, elements = cavity.natural(at, np.array([v_1, v_2, v_12]))
        none = np.zeros_like(e_1)
        return Tilted(
            np.concatenate([nodes.log_z, none, none]),
            sum_rows(mean_1, mean_2),
            covariance_rows(v_1, v_2, v_12),
            np.concatenate([*slope, none]),
            precision_rows(*elements),
        )
