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
FINE = 0.2
"""Distance of the final nodes of log tau."""
NEGLIGIBLE = -14.0
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


def learned_reference(case: Case, numbers: Numbers) -> LearnedReference | None:
    """Return the posterior of a case whose sd has a HalfCauchy prior; None where none is at hand.

    With u = log tau, p(u | y) is proportional to Z(tau) p(tau) tau, of which nodes one apart find the support.
    Moments of the latent variables are those of the mixture of the references at the nodes.
    """
    single = case.likelihood == "normal" or case.block == "intercept"
    if not single and (not LIKELIHOODS[case.likelihood].log_concave or case.n > MOST):
        return None
    centre = np.log(numbers.sds[BLOCKS[case.block].learned])
    known: dict[float, Reference | None] = {}

    def log_density(u: float) -> float:
        if u not in known:
            known[u] = reference_of(case, _at(case, numbers, np.exp(u)))
        if known[u] is None:
            return np.nan
        return known[u].log_evidence + stats.halfcauchy.logpdf(np.exp(u - centre)) + u - centre

    coarse = centre + np.arange(-FAR, FAR + 1.0)
    values = np.array([log_density(u) for u in coarse])
    if np.any(np.isnan(values)):
        return None
    # A node without a good reference may be left out only where the prior lets it hold nothing.
    good = np.array([known[v].error < KNOWN for v in coarse])
    if not good.any():
        return None
    evidence = np.array([known[v].log_evidence for v in coarse])
    prior = values - evidence
    if np.any(~good & (prior + evidence[good].max() > values[good].max() + NEGLIGIBLE)):
        return None
    values = np.where(good, values, -np.inf)
    within = coarse[values > values.max() + NEGLIGIBLE - 2]
    u = np.arange(within[0] - 1, within[-1] + 1, FINE)
    values = np.array([log_density(v) for v in u])
    if np.any(np.isnan(values)):
        return None
    weights = np.exp(values - values.max())
    log_z = float(np.log(weights.sum() * FINE) + values.max())
    weights /= weights.sum()
    parts = [known[v] for v in u]
    means, sds = np.array([part.mean for part in parts]), np.array([part.sd for part in parts])
    mean = weights @ means
    squares = weights[:, None] * (sds**2 + (means - mean) ** 2)
    variance = squares.sum(axis=0)
    far_share = float((squares[np.cumsum(weights) > 0.99].sum(axis=0) / variance).max())
    sd = np.sqrt(variance)
    # Half as many nodes, where the posterior of log tau is not narrower than they are.
    half = np.log(np.exp(values - values.max())[::2].sum() * 2 * FINE) + values.max()
    error = max(weights @ np.array([part.error for part in parts]), abs(half - log_z))
    rounding = max(part.rounding for part in parts)
    return LearnedReference(parts[0].kind, log_z, mean, sd, float(error), rounding, u, weights, far_share)


def _at(case: Case, numbers: Numbers, tau: float) -> Numbers:
    """Return the numbers with the learned sd at a value."""
    sds = numbers.sds.copy()
    sds[BLOCKS[case.block].learned] = tau
    _, root = BLOCKS[case.block].matrices(case.n, sds, numbers.x)
    return replace(numbers, sds=sds, root=root)
