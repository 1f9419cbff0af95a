"""Posteriors of small models with one learned standard deviation: quadrature over its logarithm."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from docs.benchmarks._fuzz_likelihoods import LIKELIHOODS
from docs.benchmarks._fuzz_models import BLOCKS, Case, Numbers
from docs.benchmarks._fuzz_references import Reference, reference_of

__all__ = ["LearnedReference", "learned_reference"]

FAR = 40
"""Logarithms that tau may be from its prior's scale on either side: the prior falls by exp(-40) there."""
COARSE, FINE = 2.0, 0.25
"""Distance of the first nodes of log tau, and of the final ones."""
NEGLIGIBLE = -10.0
"""Log density, of its maximum, of a node that says nothing."""
KNOWN = 0.05
"""Error of the reference at a node up to which it counts."""
MOST = 3
"""Observations up to which importance sampling at all nodes is affordable."""


@dataclass(frozen=True)
class LearnedReference(Reference):
    """A reference with the posterior of log tau: nodes (m,) and their weights, which sum to one.

    `far_share` is the greatest share that the last hundredth of tau's posterior has in a variance: where it is large
    the variance is that of a tail which falls like a power, if it is finite.
    """

    log_tau: np.ndarray
    weights: np.ndarray
    far_share: float

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return quantiles of log tau; the mass of a node is spread to half way to the next."""
        edges = np.append(self.log_tau - FINE / 2, self.log_tau[-1] + FINE / 2)
        return np.interp(shares, np.append(0.0, np.cumsum(self.weights)), edges)


class _Nodes:
    """References of a case at values u of log tau, each found once."""

    def __init__(self, case: Case, numbers: Numbers):
        self.case, self.numbers = case, numbers
        self.centre = float(np.log(numbers.sds[BLOCKS[case.block].learned]))
        self.known: dict[float, Reference | None] = {}

    def at(self, u: np.ndarray) -> list[Reference] | None:
        """Return the references at all of u; None where one is missing."""
        for value in u:
            if value not in self.known:
                self.known[value] = reference_of(self.case, _at(self.case, self.numbers, np.exp(value)))
            if self.known[value] is None:
                return None
        return [found for value in u if (found := self.known[value]) is not None]

    def log_prior(self, u: np.ndarray) -> np.ndarray:
        """Return the log density of log tau."""
        return stats.halfcauchy.logpdf(np.exp(u - self.centre)) + u - self.centre

    def support(self) -> np.ndarray | None:
        """Return fine nodes where there is mass, found by coarse ones; None where bad references may hide some."""
        coarse = self.centre + np.arange(-FAR, FAR + 1.0, COARSE)
        found = self.at(coarse)
        if found is None:
            return None
        prior, evidence = self.log_prior(coarse), np.array([part.log_evidence for part in found])
        good = np.array([part.error < KNOWN for part in found])
        if not good.any():
            return None
        top = (prior + evidence)[good].max()
        if np.any(~good & (prior + evidence[good].max() > top + NEGLIGIBLE)):
            return None
        within = coarse[good & (prior + evidence > top + NEGLIGIBLE - COARSE)]
        return np.arange(within[0] - COARSE, within[-1] + COARSE, FINE)


def learned_reference(case: Case, numbers: Numbers) -> LearnedReference | None:
    """Return the posterior of a case whose sd has a HalfCauchy prior; None where none is at hand.

    With u = log tau, p(u | y) is proportional to Z(tau) p(tau) tau. Moments of the latent variables are those of the
    mixture of the references at the nodes.
    """
    single = case.likelihood == "normal" or case.block == "intercept"
    if not single and (not LIKELIHOODS[case.likelihood].log_concave or case.n > MOST):
        return None
    nodes = _Nodes(case, numbers)
    u = nodes.support()
    parts = None if u is None else nodes.at(u)
    if u is None or parts is None:
        return None
    values = nodes.log_prior(u) + np.array([part.log_evidence for part in parts])
    weights = np.exp(values - values.max())
    # Half as many nodes, where the posterior of log tau is not narrower than they are.
    half = abs(2 * weights[::2].sum() / weights.sum() - 1.0)
    log_z = float(np.log(weights.sum() * FINE) + values.max())
    weights /= weights.sum()
    means, sds = np.array([part.mean for part in parts]), np.array([part.sd for part in parts])
    mean = weights @ means
    squares = weights[:, None] * (sds**2 + (means - mean) ** 2)
    variance = squares.sum(axis=0)
    far_share = float((squares[np.cumsum(weights) > 0.99].sum(axis=0) / variance).max())
    error = max(weights @ np.array([part.error for part in parts]), half)
    rounding = max(part.rounding for part in parts)
    return LearnedReference(
        parts[0].kind, log_z, mean, np.sqrt(variance), float(error), rounding, u, weights, far_share
    )


def _at(case: Case, numbers: Numbers, tau: float) -> Numbers:
    """Return the numbers with the learned sd at a value."""
    sds = numbers.sds.copy()
    sds[BLOCKS[case.block].learned] = tau
    _, root = BLOCKS[case.block].matrices(case.n, sds, numbers.x)
    return replace(numbers, sds=sds, root=root)
