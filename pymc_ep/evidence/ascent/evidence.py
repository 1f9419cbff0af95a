"""Log evidence by Laplace's approximation, and variational bounds on it, with gradients in hyperparameters.

Bounds are stationary in the sites, as EP's evidence is, so that only their explicit dependence on prior and site
parameters counts. Laplace's evidence depends on the mode m as well: d log Z / d m_i = s_i = V_i (log t_i)''' / 2. With
u = (I + Pi K)^{-1} s, and a and E as in `pymc_ep.evidence.ep.evidence.Evidence.gradient`, its gradients are

    d/dm0 = a + u,    d/dK = (a a^T - E + a u^T + u a^T) / 2,
    d/dparameter = d/dparameter [log t_i + (K u)_i (log t_i)' + V_i (log t_i)'' / 2]  at fixed m, K u and V.
"""

from typing import Any, cast

import numpy as np

from pymc_ep.contracts.evidence import FitState
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.ascent.engine import Ascent
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import group_slices
from pymc_ep.exceptions import NumericalError, UnsupportedModelError

__all__ = ["AscentEvidence"]

_SAME = 1e-6
"""Difference of two maxima, in nats, below which they count as one: far above the rounding of either."""


class AscentEvidence(Evidence):
    """log Z(theta) by Laplace's approximation or a bound, with the sites of the engine's `Rule`; see `Evidence`."""

    def __init__(self, form: CompiledSiteForm, engine: Ascent, max_iter: int, **others: Any):
        for factor in form.form.factors:
            if why := engine.rule.refusal(factor.site):
                raise UnsupportedModelError(
                    f"Of {factor.name!r}, {why}. Use method='ep', or a likelihood that pymc_ep.supported() lists with "
                    f"this method."
                )
        super().__init__(form, cast(EP, engine), max_iter, **others)
        self.rule = engine.rule

    def at(self, theta: np.ndarray, start: FitState | None = None, **others: Any) -> EvidenceAt:
        """Fit at unconstrained hyperparameters; see `Evidence.at`.

        With sites that are not log-concave there may be several maxima. Without `start` there are then two fits, from
        `first_sites` and from the prior. The one with the higher maximum is returned; its status says if there may be
        others.
        """
        at = super().at(theta, start, **others)
        if start is not None or self.engine.log_concave:
            return at
        rise = 0.0
        try:
            other = super().at(theta, tuple(np.zeros((2, len(at.repeats.owner)))), **others)
            rise = other.run.state.objective - at.run.state.objective if other.status.converged else 0.0
        except NumericalError:
            other = at
        best = other if rise > 0.0 else at
        outliers = int((best.run.state.precision < 0.0).sum())
        if abs(rise) > _SAME:
            remark = f"there is another maximum {abs(rise):.2g} nats below"
        elif outliers:
            remark = f"{outliers} of the sites curve upwards there, as outliers do, and there may be other maxima"
        else:
            return best
        status = best.status._replace(sentence=f"{best.status.sentence}; {remark}, which this fit does not cover")
        return best._replace(run=best.run._replace(status=status))

    def first_sites(self, prior: Prior) -> FitState:
        """Return shift and precision, (n,) each, of sites with the typical moments of each factor.

        From a prior that is far from the data, full steps overshoot.
        """
        return self.form.typical_sites(prior)

    def gradient(self, at: EvidenceAt) -> np.ndarray:
        """Return the gradient of `EvidenceAt.value`, (p,)."""
        state, prior, problem = at.run.state, at.problem.prior, at.problem
        posterior = state.sweep.posterior
        d_mean, d_array = posterior.weights, prior.cotangent(posterior, state.precision)
        response = np.zeros(len(problem.mean))
        if not self.rule.of_variance:
            slope = np.concatenate(
                [
                    site.log_density_derivatives(y, posterior.mean[rows], *values)[3]
                    for site, y, values, rows in zip(
                        self.engine.sites, problem.observed, problem.parameters, group_slices(problem.observed)
                    )
                ]
            )
            # s = d log Z / dm, of -log|I + K Pi| / 2 alone with Pi = -(log t)'': the rest is stationary in m.
            moved = 0.5 * posterior.variance * slope
            # The derivative is quadratic in the weights, so that half a difference is its part linear in u.
            ahead, behind = (
                prior.shifted(posterior, problem.mean, state.shift + sign * moved, state.precision) for sign in (1, -1)
            )
            # Half differences of a = (I + Pi K)^-1 (b - Pi m0) and of m = m0 + K a are u and K u.
            d_mean = d_mean + 0.5 * (ahead.weights - behind.weights)
            response = 0.5 * (ahead.mean - behind.mean)
            d_ahead, d_behind = (prior.cotangent(end, state.precision) for end in (ahead, behind))
            if d_array is not None and d_ahead is not None and d_behind is not None:
                d_array = d_array + 0.5 * (d_ahead - d_behind)
        d_mean, d_array = at.repeats.cotangents(at.prior, d_mean, d_array)
        return self.form.pullback(at.theta, d_mean, d_array, self._slopes(at, response), density=self.density)

    def _slopes(self, at: EvidenceAt, response: np.ndarray) -> list[tuple[Any, ...]]:
        """Return the derivatives of log Z in the observations' parameters, by group; `response` is K u, (m,)."""
        posterior, out = at.run.state.sweep.posterior, []
        groups = zip(
            at.repeats.groups, self.form.varying_parameters, at.prior.parameters, group_slices(at.problem.observed)
        )
        for group, varies, values, rows in groups:
            if not varies:
                # Compiling the gradient may take seconds.
                out.append(tuple(np.zeros(len(group.y)) for _ in values))
                continue
            moments = (moment[rows][group.owner] for moment in (posterior.mean, posterior.variance, response))
            out.append(self.rule.slopes(group.single, group.y, *moments, *values))
        return out
