"""Tilted moments of counts of categories whose probabilities are a softmax, by quadrature about the tilted mode.

With counts y of K categories, N in all, log-odds eta of the last K - 1 to the first and probabilities p, log t = y' eta
- N log(1 + sum_k exp(eta_k)) has the gradient r = y - N p and the curvature -N W, W = diag(p) - p p'. Under the tilted
density, proportional to N(eta; m, V) t^power, with V = L L' and eta = m + L z,

    E[z] = power L' E[r],    Cov(z) = I - B,    B = L' (power E[N W] - power^2 Cov(r)) L,

by integration by parts. These differences from the cavity keep their digits for uninformative sites. For informative
ones the moments of z itself have more digits. The nodes of a standard normal rule are moved to the tilted mode and
scaled by the curvature there (Naylor and Smith 1982).
"""

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax
from scipy.stats import norm, qmc

from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule

__all__ = ["SoftmaxMoments", "log_probabilities", "rule_errors", "softmax_moments"]

_BANDS = ((0.4, 0.6), (1.2, 1.6))
"""Bands of the largest tilted standard deviation of a log-odds. Across each, moments move from one rule to the next.

At 0.6, 1 and 1.6 the first rule errs in means by 1e-4, 2e-3 and 1e-2 standard deviations of the cavity, in the worst of
60 random cavities of 3 to 7 log-odds. At 1.6 the other rules err by 2e-3 and 1e-3."""
_NODES = {2: (8, 14), 3: (6, 9), 4: (4, 6)}
"""Nodes in each dimension of a product of Gauss-Hermite rules, by the number of dimensions: for the second and for the
third rule."""
_POINTS = (256, 1024)
"""Points of a Sobol sequence, for the second and for the third rule, where products have too many nodes. As many
opposite points are added."""
_TELLING = (0.3, 0.6)
"""Band of the least eigenvalue of Cov(z). Below it the moments of z itself are used, by the second rule at least; above
it the moments by parts. For 20 counts the first rule errs in the moments of z by 3% of a variance."""
_LEAST = 1e-12
"""Lower limit of the eigenvalues of a cavity's covariance, relative to the largest."""
_NEWTON, _HALVINGS, _CLOSE = 50, 30, 1e-9
"""Largest number of steps to the tilted mode, and of halvings of a step; and length of a step in z at which the search
ends."""


class SoftmaxMoments(NamedTuple):
    """Moments of n tilted densities.

    Attributes
    ----------
    log_z : ndarray, (n,)
    mean : ndarray, (n, D)
    covariance : ndarray, (n, D, D)
    gradient : ndarray, (n, D)
        Gradient of log Z in the mean of the cavity.
    precision : ndarray, (n, D, D)
        Precision of the Gaussian that replaces t^power.
    """

    log_z: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray


class _Whitened(NamedTuple):
    """Log Z, (n,), the mean of z, (n, D), and I minus the covariance of z, (n, D, D), of n tilted densities."""

    log_z: np.ndarray
    mean: np.ndarray
    told: np.ndarray

    def towards(self, other: "_Whitened", share: np.ndarray) -> "_Whitened":
        """Return these moments moved towards `other` by a share, (n,), of the difference."""
        return _Whitened(*(a + share.reshape(-1, *(1,) * (a.ndim - 1)) * (b - a) for a, b in zip(self, other)))


def softmax_moments(counts: np.ndarray, mean: np.ndarray, covariance: np.ndarray, power: np.ndarray) -> SoftmaxMoments:
    """Return the moments of n tilted densities.

    Parameters
    ----------
    counts : ndarray, (n, K)
    mean, covariance : ndarray, (n, D) and (n, D, D)
        Moments of the cavity, for the D = K - 1 log-odds to the first category.
    power : ndarray, (n,)
    """
    root, inverse = _root_and_inverse(covariance)
    sites = _Sites(counts, mean, root, power)
    at, sd = sites.mode()
    spread = _largest_sd(sites.root @ sd)
    whitened = sites.moments(at, sd, 0, np.ones(len(mean), dtype=bool))
    telling = 1.0 - _between(np.square(sd).sum(axis=1).min(axis=1), _TELLING)
    for level, band in enumerate(_BANDS):
        share = np.maximum(_between(spread, band), telling * (level == 0))
        if (wide := share > 0.0).any():
            finer = sites.moments(at, sd, level + 1, wide)
            moved = _Whitened(*(a[wide] for a in whitened)).towards(finer, share[wide])
            for a, b in zip(whitened, moved):
                a[wide] = b
    told = whitened.told
    kept = np.eye(told.shape[1]) - told
    # Pi = (L (I - B) L')^-1 - V^-1 = L'^-1 (I - B)^-1 B L^-1.
    precision = inverse.transpose(0, 2, 1) @ np.linalg.solve(kept, told) @ inverse
    # Mean m + L E[z], covariance L (I - B) L', and d log Z / d m = V^-1 (mean - m) = L'^-1 E[z].
    return SoftmaxMoments(
        whitened.log_z,
        mean + (root @ whitened.mean[..., None])[..., 0],
        root @ kept @ root.transpose(0, 2, 1),
        (inverse.transpose(0, 2, 1) @ whitened.mean[..., None])[..., 0],
        0.5 * (precision + precision.transpose(0, 2, 1)),
    )


def rule_errors(counts: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the largest difference in means of z, (n,), between the last two rules, in cavity standard deviations.

    It is zero where the last rule is not used. For arguments see `softmax_moments`; the power is one.
    """
    sites = _Sites(counts, mean, _root_and_inverse(covariance)[0], np.ones(len(mean)))
    at, sd = sites.mode()
    wide, last = _largest_sd(sites.root @ sd) > _BANDS[-1][0], len(_BANDS)
    errors = np.zeros(len(mean))
    if wide.any():
        second, third = (sites.moments(at, sd, level, wide).mean for level in (last - 1, last))
        errors[wide] = np.abs(third - second).max(axis=1)
    return errors


def _largest_sd(root: np.ndarray) -> np.ndarray:
    """Return the largest standard deviation of the log-odds of any two categories, (n,), from a root, (n, D, D)."""
    # Var(eta_i - eta_j) = |row i - row j|^2, with a row of zeros for the first category.
    of_all = np.concatenate([np.zeros_like(root[:, :1]), root], axis=1)
    first, second = np.triu_indices(of_all.shape[1], 1)
    return np.sqrt(np.square(of_all[:, first] - of_all[:, second]).sum(axis=2).max(axis=1))


def log_probabilities(log_odds: np.ndarray) -> np.ndarray:
    """Return the log probabilities of all categories, (K, ...), from log-odds to the first, (K - 1, ...)."""
    return log_softmax(np.concatenate([np.zeros_like(log_odds[:1]), log_odds]), axis=0)


def _root_and_inverse(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return L, with V = L L', and its inverse, (n, D, D) each."""
    try:
        root = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(root)
        if np.square(inverse).sum(axis=2).max() * np.diagonal(covariance, axis1=1, axis2=2).max() < 1.0 / _LEAST:
            return root, inverse
    except np.linalg.LinAlgError:  # of log-odds that are functions of others, or known
        pass
    # V = U D U': L = U D^(1/2) and L^-1 = D^(-1/2) U'.
    variances, axes = np.linalg.eigh(covariance)
    scale = np.sqrt(np.maximum(variances, _LEAST * variances[:, -1:]))[:, None, :]
    return axes * scale, (axes / scale).transpose(0, 2, 1)


class _Sites(NamedTuple):
    """Sites with cavities m + L z.

    Attributes
    ----------
    counts : ndarray, (n, K)
    centre : ndarray, (n, D)
        Means m of the cavities.
    root : ndarray, (n, D, D)
        Roots L of the covariances of the cavities.
    power : ndarray, (n,)
    """

    counts: np.ndarray
    centre: np.ndarray
    root: np.ndarray
    power: np.ndarray

    def among(self, chosen: np.ndarray) -> "_Sites":
        """Return some of the sites."""
        return _Sites(*(array[chosen] for array in self))

    @property
    def total(self) -> np.ndarray:
        """Sums N of the counts, (n,)."""
        return self.counts.sum(axis=1)

    def log_density(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return power log t, (n, q), and probabilities of all but the first category, (n, D, q), at z, (n, D, q)."""
        log_p = log_probabilities((self.centre[:, :, None] + self.root @ z).transpose(1, 0, 2))
        return self.power[:, None] * np.einsum("nk,knq->nq", self.counts, log_p), np.exp(log_p[1:]).transpose(1, 0, 2)

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the tilted mode of z, (n, D), and a root of its inverse curvature there, (n, D, D).

        The mode is found by Newton's method, as the tilted density is log-concave. The root, a Cholesky factor, is a
        smooth function of the cavity. Principal axes would not be smooth where categories are exchangeable, and EP
        would not converge.
        """
        z = np.zeros_like(self.centre)
        for _ in range(_NEWTON):
            value, slope, curvature = self._derivatives(z)
            step = np.linalg.solve(curvature, slope[..., None])[..., 0]
            length = np.ones(len(z))
            for _ in range(_HALVINGS):
                moved = z + length[:, None] * step
                lower = self._log_tilted(moved)[0] < value - _LEAST
                if not lower.any():
                    break
                length[lower] *= 0.5
            z = moved
            if np.square(step).sum(axis=1).max(initial=0.0) < _CLOSE**2:
                break
        return z, np.linalg.cholesky(np.linalg.inv(self._derivatives(z)[2]))

    def _derivatives(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the log of the tilted density of z, (n,), its slope, (n, D), and its curvature, (n, D, D)."""
        value, p = self._log_tilted(z)
        total = (self.power * self.total)[:, None]
        # With r and W of the module's text: slope power L' r - z, curvature power N L' W L + I.
        slope = self.power[:, None] * self.counts[:, 1:] - total * p
        of_root = np.einsum("ndk,nd->nk", self.root, p)
        curvature = np.einsum("nd,ndk,ndl->nkl", total * p, self.root, self.root)
        curvature -= total[..., None] * of_root[:, :, None] * of_root[:, None, :]
        back = np.einsum("ndk,nd->nk", self.root, slope) - z
        return value, back, curvature + np.eye(z.shape[1])

    def _log_tilted(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log of the tilted density of z, (n,), and the probabilities, (n, D), at z, (n, D)."""
        value, p = self.log_density(z[..., None])
        return value[:, 0] - 0.5 * np.square(z).sum(axis=1), p[..., 0]

    def moments(self, at: np.ndarray, sd: np.ndarray, level: int, chosen: np.ndarray) -> _Whitened:
        """Return the moments of the chosen sites, by the rule number `level` about the mode."""
        nodes, weights = _rule(at.shape[1], level)
        index = np.flatnonzero(chosen)
        pieces = (index[chunk] for chunk in chunks(len(index), nodes.size + len(weights)))
        moments = [self.among(piece)._moments(at[piece], sd[piece], nodes, weights) for piece in pieces]
        return _Whitened(*(np.concatenate(field) for field in zip(*moments)))

    def _moments(self, at: np.ndarray, sd: np.ndarray, nodes: np.ndarray, weights: np.ndarray) -> _Whitened:
        z = at[:, :, None] + sd @ nodes
        value, p = self.log_density(z)
        # With z = mode + S x and x standard normal, Z = |S| E[t^power N(z; 0, I) / N(x; 0, I)].
        log_ratio = value - 0.5 * np.square(z).sum(axis=1) + 0.5 * np.square(nodes).sum(axis=0)
        top = log_ratio.max(axis=1, keepdims=True)
        share = weights * np.exp(log_ratio - top)
        whole = share.sum(axis=1)
        share /= whole[:, None]
        log_z = np.log(whole) + top[:, 0] + np.linalg.slogdet(sd)[1]
        # By parts: in L' r, with r = power (y - N p).
        expected = (p @ share[..., None])[..., 0]
        spread = (p * share[:, None]) @ p.transpose(0, 2, 1)
        total = (self.power * self.total)[:, None]
        slope = self.power[:, None] * self.counts[:, 1:] - total * expected
        outer = expected[:, :, None] * expected[:, None, :]
        # power E[N W] - power^2 Cov(r), with E[W] = diag(E p) - E[p p'] and Cov(r) = N^2 Cov(p).
        told = total[..., None] * (expected[:, :, None] * np.eye(at.shape[1]) - spread)
        told -= total[..., None] ** 2 * (spread - outer)
        back = self.root.transpose(0, 2, 1)
        by_parts = _Whitened(log_z, (back @ slope[..., None])[..., 0], back @ told @ self.root)
        mean = (z @ share[..., None])[..., 0]
        covariance = (z * share[:, None]) @ z.transpose(0, 2, 1) - mean[:, :, None] * mean[:, None, :]
        direct = _Whitened(log_z, mean, np.eye(at.shape[1]) - covariance)
        return direct.towards(by_parts, _between(np.linalg.eigvalsh(covariance)[:, 0], _TELLING))


def _between(value: np.ndarray, band: tuple[float, float]) -> np.ndarray:
    """Return shares, shaped like `value`, that rise smoothly from 0 at ``band[0]`` and below to 1 at ``band[1]``."""
    inside = np.clip((value - band[0]) / (band[1] - band[0]), 0.0, 1.0)
    return inside**2 * (3.0 - 2.0 * inside)


@lru_cache(maxsize=64)
def _rule(dimensions: int, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes, (D, q), and weights, (q,), of the rule number `level` for a standard normal vector."""
    if level == 0:
        return _fifth_degree(dimensions)
    if dimensions in _NODES:
        return _gauss_hermite(dimensions, _NODES[dimensions][level - 1])
    half = norm.ppf(qmc.Sobol(dimensions, rng=0).random(_POINTS[level - 1])).T
    nodes = np.concatenate([half, -half], axis=1)
    count = nodes.shape[1]
    # With the mean and the covariance of a standard normal.
    return np.linalg.solve(np.linalg.cholesky(nodes @ nodes.T / count), nodes), np.full(count, 1.0 / count)


def _fifth_degree(dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a rule of degree 5, with nodes at 0, on the axes and on the diagonals of any two axes (Stroud 1971)."""
    # Weights by E x_i^2 = 1, E x_i^4 = 3 and E x_i^2 x_j^2 = 1; the other moments up to degree 5 are zero by symmetry.
    unit = np.sqrt(3.0) * np.eye(dimensions)
    first, second = np.triu_indices(dimensions, 1)
    signs = list(product((1.0, -1.0), repeat=2))
    nodes = [np.zeros((1, dimensions)), unit, -unit, *(a * unit[first] + b * unit[second] for a, b in signs)]
    weights = [1.0 + dimensions * (dimensions - 7) / 18.0, (4 - dimensions) / 18.0, 1.0 / 36.0]
    counts = [1, 2 * dimensions, len(signs) * len(first)]
    return np.concatenate(nodes).T, np.repeat(weights, counts)


def _gauss_hermite(dimensions: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    node, weight = standard_normal_rule(count)
    nodes = np.array(list(product(node, repeat=dimensions))).T
    weights = np.array(list(product(weight, repeat=dimensions))).prod(axis=1)
    # Those of a corner count for nothing.
    kept = weights > 1e-7 * weights.max()
    return nodes[:, kept], weights[kept] / weights[kept].sum()
