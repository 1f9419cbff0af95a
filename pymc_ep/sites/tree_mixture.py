"""Mixtures of two sites on the nodes of a forest, as one factor of all coefficients.

Given the states delta the factor is a product of sites t(s_j; delta_j), low or high. Bounds and moments of the mixture
follow by sum-product from bounds and moments of both sites. With e_jd the log of the factor of coefficient j in state
d,

    log sum_delta P(delta) exp(sum_j e_j,delta_j) = max_Q sum_jd Q(delta_j = d) e_jd - KL(Q || P),

where the maximum is at the posterior of the states. A bound on each site thus gives a bound on the mixture, which is
maximised over Q at every point. Its derivatives are derivatives of the e_jd, weighted by Q (Ko and Seeger 2012).

Moments come from EP on coefficients and states together. The approximation of t(s_j; delta_j) is a Gaussian in s_j
times a factor of delta_j, and P(delta) is exact. With Zhat_jd = int N(s; m_j, v_j) t_d(s)^power ds the message to a
state is Zhat_jd^(1 / power). Sum-product gives the marginals Q of the states, and the marginal of s_j is the mixture of
its two tilted densities with weights Q_j. In the evidence the log normaliser of the states replaces the sum of log Z of
the sites; the evidence is then stationary at fixed points of EP.

If the cavities are the likelihoods of independent Gaussian observations, one for each coefficient, then marginals, Q
and evidence are exact for power one. The approximation leaves out the correlation of coefficients through their states.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike
from pytensor.compile.mode import Mode

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.factorisation.quad_forest import Forest, TreePosterior
from pymc_ep.sites.base import Site, Tilted
from pymc_ep.sites.bounds import Bounded
from pymc_ep.sites.compiled import COMPILED, CompiledSite, compile_site

__all__ = ["CompiledTreeMixture", "TreeMixture", "tree_mixture"]


@dataclass(frozen=True, kw_only=True)
class TreeMixture(Site):
    """Mixture of two sites on the nodes of a forest.

    Parameters of the site are the low site's, the high site's, and the probabilities of the high state given a parent
    in the low and in the high state.

    Attributes
    ----------
    low, high : Site
        Sites of a coefficient whose node is in the low or in the high state.
    forest : Forest
        Forest with one node for each coefficient.
    """

    low: Site
    high: Site
    forest: Forest

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the two sites and the forest."""
        return tree_mixture, (self.low, self.high, self.forest)

    def validate_parameters(self, values: Sequence[ArrayLike], name: str, y: ArrayLike | None = None) -> None:
        """Raise `InvalidDataError` at the first parameter outside its domain.

        Parameters
        ----------
        values : sequence of array_like, (n,) or ()
            Parameters by node, equal within a level. The index in the message is the level's, the finest first.
        name : str
            Name of the variable, for the message.
        y : array_like, optional
            Not used.
        """
        try:
            super().validate_parameters([self.by_level(value) for value in values], name)
        except InvalidDataError as error:
            raise InvalidDataError(f"{error} Indices are levels of the tree, the finest first.") from None

    def by_level(self, value: ArrayLike) -> np.ndarray:
        """Return one value per level, (levels,), from values by node, (n,), or from one for all nodes, ()."""
        nodes = np.broadcast_to(np.asarray(value, dtype=float), self.forest.size)
        return np.array([level.flat[0] for level in self.forest.levels(nodes)])

    @property
    def has_bound(self) -> bool:
        """True if Gaussian lower bounds on both sites are known."""
        return self.low.has_bound and self.high.has_bound

    @property
    def coupled(self) -> bool:
        """True: all nodes have one joint factor."""
        return True

    @property
    def independent(self) -> bool:
        """True for a forest of roots, whose states do not depend on each other."""
        return len(self.forest.shapes) == 1


def tree_mixture(low: Site, high: Site, forest: Forest) -> TreeMixture:
    """Return the mixture of two sites on the nodes of a forest, see `TreeMixture`."""
    names = [f"{state} {name}" for state, site in (("low", low), ("high", high)) for name in site.parameters]
    domains = [
        domain for site in (low, high) for domain in site.parameter_domains or ["positive"] * len(site.parameters)
    ]

    def typical(y: Any, *parameters: Any) -> tuple[Any, Any]:
        first, second, (below_low, below_high) = _split(low, high, parameters)
        (mean, narrow), (_, wide) = low.typical(y, *first), high.typical(y, *second)
        # (1 - q) narrow + q wide with q = (p_0 + p_1) / 2, the mean of the probabilities below both states.
        return mean, narrow + 0.5 * (below_low + below_high) * (wide - narrow)

    return TreeMixture(
        name=f"{'tree' if len(forest.shapes) > 1 else 'mixture'} of {low.name} and {high.name}",
        parameters=(*names, "probability below low", "probability below high"),
        domain="real",
        log_concave=False,
        logp=_no_log_density_of_one_node,
        typical=typical,
        parameter_domains=(*domains, "unit interval", "unit interval"),
        low=low,
        high=high,
        forest=forest,
    )


class CompiledTreeMixture(CompiledSite):
    """Compiled functions of a mixture on a forest; all arrays are (n,), one entry per node."""

    site: TreeMixture

    def __init__(self, site: TreeMixture, mode: Mode | str | None, loop: bool, options: dict[str, Any]) -> None:
        super().__init__(site, mode, loop, options)
        self.forest = site.forest
        self._states = compile_site(site.low, mode, loop=loop), compile_site(site.high, mode, loop=loop)

    def moments(self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array) -> Tilted:
        """Return the tilted moments of each node; for arguments see `CompiledSite.moments`.

        The sum of `log_z` is power times log sum_delta P(delta) prod_j Zhat_j,delta_j^(1 / power).
        """
        return self._tilted(self._tilted_states(y, mean, variance, power, parameters), variance, power, parameters)[0]

    def moments_and_nearby(
        self, y: Array, mean: Array, variance: Array, power: float, *parameters: Array
    ) -> tuple[Tilted, Callable[[Array], Tilted]]:
        """Return the tilted moments, and a function of other cavity means, (n,), that returns the moments there."""
        *by_state, _ = _split(self.site.low, self.site.high, parameters)
        firsts, nearby = zip(
            *(
                state.moments_and_nearby(y, mean, variance, power, *arguments)
                for state, arguments in zip(self._states, by_state)
            )
        )

        def moved(centre: Array) -> Tilted:
            return self._tilted([at(centre) for at in nearby], variance, power, parameters)[0]

        return self._tilted(firsts, variance, power, parameters)[0], moved

    def parameter_gradient(
        self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array
    ) -> tuple[Array, ...]:
        """Return the derivatives, (n,) each, of the sum of `log_z` in each parameter of each node at fixed cavities."""
        *by_state, _ = _split(self.site.low, self.site.high, parameters)
        tree = self._tilted(self._tilted_states(y, mean, variance, power, parameters), variance, power, parameters)[1]
        # d / d theta_jd of power log sum_delta P prod_j Zhat_j,delta_j^(1 / power) is Q_jd d log Zhat_jd / d theta_jd.
        weighted = [
            weight * d
            for state, weight, arguments in zip(self._states, (1.0 - tree.high, tree.high), by_state)
            for d in state.parameter_gradient(y, mean, variance, power, *arguments)
        ]
        return (*weighted, *(power * d for d in _probability_gradient(tree, *parameters[-2:])))

    def tilted_report(self, y: Array, mean: Array, variance: Array, power: Array, *parameters: Array) -> dict[str, Any]:
        """Return the posterior of the states given the cavities.

        Returns
        -------
        dict
            ``indicator``, (n,): probability of the high state of each node. ``log_normaliser``, float: sum of
            `log_z` of `moments`, divided by the power.
        """
        states = self._tilted_states(y, mean, variance, power, parameters)
        tilted, tree = self._tilted(states, variance, power, parameters)
        return {"indicator": tree.high, "log_normaliser": float(np.asarray(tilted.log_z).sum() / power)}

    def _tilted_states(
        self, y: Array, mean: Array, variance: Array, power: Array, parameters: Sequence[Any]
    ) -> list[Tilted]:
        *by_state, _ = _split(self.site.low, self.site.high, parameters)
        return [state.moments(y, mean, variance, power, *arguments) for state, arguments in zip(self._states, by_state)]

    def _tilted(
        self, states: Sequence[Tilted], variance: Array, power: Array, parameters: Sequence[Any]
    ) -> tuple[Tilted, TreePosterior]:
        low, high = states
        tree = self.forest.posterior((high.log_z - low.log_z) / power, *parameters[-2:])
        q = tree.high
        # The means m + v g_d of both states have the variance q (1 - q) v^2 (g_1 - g_0)^2, v times `between`.
        between = q * (1.0 - q) * variance * (high.gradient - low.gradient) ** 2
        within = (1.0 - q) * low.variance + q * high.variance
        spread = within + variance * between
        # 1 / V - 1 / v = (v - V) / (v V); v - V is the mean of v - V_d minus the variance of the means of the states.
        reduction = (1.0 - q) * low.precision * low.variance + q * high.precision * high.variance
        return Tilted(
            low.log_z + power * tree.log_normaliser,
            low.mean + q * (high.mean - low.mean),
            spread,
            low.gradient + q * (high.gradient - low.gradient),
            (reduction - between) / spread,
        ), tree

    def bounded(self, y: Array, eta: Array, z: Array, *parameters: Array) -> Bounded:
        """Return the best Gaussian lower bounds of all nodes; for arguments see `CompiledSite.bounded`.

        The sum of the values is a lower bound on the expected log of the mixture.
        """
        return _mixed(*self._bounded_states(y, eta, z, parameters))

    def bounded_parameter_gradient(self, y: Array, eta: Array, z: Array, *parameters: Array) -> tuple[Array, ...]:
        """Return the derivatives, (n,) each, of the sum of the values of `bounded` in each parameter of each node."""
        return self.bounded_with_gradient(y, eta, z, *parameters)[1]

    def bounded_with_gradient(
        self, y: Array, eta: Array, z: Array, *parameters: Array
    ) -> tuple[Bounded, tuple[Array, ...]]:
        """Return `bounded` and `bounded_parameter_gradient`, from one pass of sum-product."""
        states, tree = self._bounded_states(y, eta, z, parameters)
        weighted = self._weighted_gradient(y, eta, z, tree.high, parameters)
        return _mixed(states, tree), (*weighted, *_probability_gradient(tree, *parameters[-2:]))

    def assigned(
        self, y: Array, eta: Array, z: Array, high: Array, *parameters: Array
    ) -> tuple[float, tuple[Array, ...]]:
        """Return the sum of both sites' bound values, weighted by probabilities of their states, and its derivatives.

        Parameters
        ----------
        y, eta, z
            As in `bounded`.
        high : ndarray, (n,)
            Probability of the high state of each node under Q.
        *parameters
            As in `bounded`; the last two, which are probabilities, are not used, and their derivatives are zero.
        """
        (low, other), _ = self._bounded_states(y, eta, z, parameters)
        # sum_jd Q(delta_j = d) e_jd.
        value = float((low.value + high * (other.value - low.value)).sum())
        none = np.zeros(len(high))
        return value, (*self._weighted_gradient(y, eta, z, high, parameters), none, none)

    def _weighted_gradient(
        self, y: Array, eta: Array, z: Array, high: Array, parameters: Sequence[Any]
    ) -> Iterator[Array]:
        *by_state, _ = _split(self.site.low, self.site.high, parameters)
        for state, weight, arguments in zip(self._states, (1.0 - high, high), by_state):
            gradients = state.bounded_parameter_gradient(y, eta, z, *arguments)
            # At a scale of zero a derivative is infinite; its product with a weight of zero is defined as zero.
            yield from (weight * np.where(weight == 0.0, 0.0, d) for d in gradients)

    def log_density(self, y: Array, eta: Array, *parameters: Array) -> Array:
        """Return terms by node, (n,) or (draws, n), whose sum over the nodes is the log density of the mixture."""
        *by_state, probabilities = _split(self.site.low, self.site.high, parameters)
        logs = [np.asarray(state.log_density(y, eta, *arguments)) for state, arguments in zip(self._states, by_state)]
        shape = np.broadcast_shapes(*map(np.shape, (*logs, *probabilities)))
        low, high, *given = (np.broadcast_to(a, shape).reshape(-1, shape[-1]) for a in (*logs, *probabilities))
        rows = zip(low, high - low, *given)
        return np.reshape([first + self.forest.posterior(*rest).log_normaliser for first, *rest in rows], shape)

    def report(self, y: Array, eta: Array, z: Array, *parameters: Array) -> dict[str, Any]:
        """Return the posterior of the states under the bounds.

        Returns
        -------
        dict
            ``indicator``, (n,): probability of the high state of each node. ``log_normaliser``, float: sum of the
            values of `bounded`.
        """
        (low, _), tree = self._bounded_states(y, eta, z, parameters)
        return {"indicator": tree.high, "log_normaliser": float((low.value + tree.log_normaliser).sum())}

    def _bounded_states(
        self, y: Array, eta: Array, z: Array, parameters: Sequence[Any]
    ) -> tuple[list[Bounded], TreePosterior]:
        *by_state, probabilities = _split(self.site.low, self.site.high, parameters)
        bounds = [state.bounded(y, eta, z, *arguments) for state, arguments in zip(self._states, by_state)]
        return bounds, self.forest.posterior(bounds[1].value - bounds[0].value, *probabilities)


COMPILED[TreeMixture] = CompiledTreeMixture


def _mixed(states: Sequence[Bounded], tree: TreePosterior) -> Bounded:
    """Return the bound on the mixture: gradient, precision and weight are means over the states of each node."""
    low, high = states
    # Infinite at scales near zero; the caller checks for that.
    with np.errstate(invalid="ignore", over="ignore"):
        mixed = [at_low + tree.high * (at_high - at_low) for at_low, at_high in zip(low[1:], high[1:])]
    return Bounded(low.value + tree.log_normaliser, *mixed)


def _split(low: Site, high: Site, parameters: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the parameters of the low site, of the high site, and the two probabilities."""
    first, second = len(low.parameters), len(low.parameters) + len(high.parameters)
    return parameters[:first], parameters[first:second], parameters[second:]


def _probability_gradient(tree: TreePosterior, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the derivatives of the log normaliser in the probabilities p_d of each node, (n,) each.

    These are P(parent in d) (P(high | parent in d) - p_d) / (p_d (1 - p_d)), given all emissions.
    """
    below_low = (1.0 - tree.parent) * (tree.below_low - low) / (low * (1.0 - low))
    below_high = tree.parent * (tree.below_high - high) / (high * (1.0 - high))
    return below_low, below_high


def _no_log_density_of_one_node(*arguments: object) -> NoReturn:
    raise TypeError("The density of a mixture on a forest is one of all its nodes together.")
