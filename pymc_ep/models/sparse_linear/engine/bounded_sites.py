"""All sites of a sparse linear form as one vector: their Gaussian lower bounds, and gradients in hyperparameters."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from pymc_ep.engines.options import NamedSite, require_bounds
from pymc_ep.engines.prior import FactorValues, Prior
from pymc_ep.evidence.ep.sweep import group_slices
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.sites.bounds import Bounded
from pymc_ep.sites.compiled import CompiledSite

__all__ = ["BoundedSites", "FactorForm", "FactorSites"]


class FactoredForm(Protocol):
    """Symbolic form, of which only the factors are used here."""

    @property
    def factors(self) -> Sequence[NamedSite]:
        """Observed variables, then potentials."""


class FactorForm(Protocol):
    """Functions of a compiled sparse linear form that the double loop and its start call."""

    @property
    def form(self) -> FactoredForm:
        """The symbolic form."""

    @property
    def sites(self) -> Sequence[CompiledSite]:
        """Compiled sites, one for each of `form.factors`."""

    @property
    def start(self) -> np.ndarray:
        """Unconstrained hyperparameters at the model's initial point, (p,)."""

    @property
    def varying_parameters(self) -> Sequence[bool]:
        """Whether the site parameters of each factor depend on hyperparameters."""

    def observed(self) -> Sequence[np.ndarray]:
        """Return the current observations, one array for each factor."""

    def residuals(self) -> Sequence[np.ndarray]:
        """Return, for each factor, the observations minus the origins of their predictors, (n,)."""

    def prior(self, theta: np.ndarray) -> Prior:
        """Evaluate the form at theta, (p,)."""

    def factors_at(self, theta: np.ndarray) -> FactorValues:
        """Evaluate the form as `prior` does, without the field `gaussian`."""

    def first_sites(self, prior: Prior | FactorValues) -> tuple[np.ndarray, np.ndarray]:
        """Return initial shift and precision of all sites, (n,) each."""

    def pullback(
        self,
        theta: np.ndarray,
        mean: np.ndarray,
        array: np.ndarray | None,
        parameters: Sequence[Sequence[np.ndarray]],
        *,
        density: str,
    ) -> np.ndarray:
        """Return the gradient in theta, (p,), of a function of the prior's arrays, from its gradients in these."""


class FactorSites:
    """The n sites of a compiled form, group after group.

    Parameters
    ----------
    form : FactorForm
        Compiled form; the constructor reads its observations, once.

    Attributes
    ----------
    slices : list of slice
        Slice of each group among all sites.

    Raises
    ------
    InvalidDataError
        If a group is empty, or an observation lies outside its site's domain.
    """

    def __init__(self, form: FactorForm):
        self.form = form
        self.sites = form.sites
        for group, y in zip(form.form.factors, form.observed()):
            if y.size == 0:
                raise InvalidDataError(f"{group.name!r} has no observations; pass at least one.")
            group.site.validate(y, group.name)
        self.observed = tuple(form.residuals())
        self.slices = group_slices(self.observed)

    def prior(self, theta: np.ndarray) -> FactorValues:
        """Evaluate the form at `theta`, (p,); raise for values that are not finite or outside their domain."""
        prior = self.form.factors_at(theta)
        for group, y, parameters in zip(self.form.form.factors, self.observed, prior.parameters):
            group.site.validate_parameters(parameters, group.name, y)
        bad = np.flatnonzero(~np.isfinite(prior.mean))
        if bad.size:
            group, places = next((g, s) for g, s in zip(self.form.form.factors, self.slices) if bad[0] < s.stop)
            raise NumericalError(
                f"The predictor of {group.name!r} has the constant {prior.mean[bad[0]]} at index "
                f"{bad[0] - places.start}; check offsets and the initial values of hyperparameters."
            )
        return prior


class BoundedSites(FactorSites):
    """Sites with Gaussian lower bounds.

    Raises
    ------
    UnsupportedModelError
        If a site has no Gaussian lower bound.
    """

    def __init__(self, form: FactorForm):
        require_bounds(form.form.factors)
        super().__init__(form)

    def bounded(self, prior: FactorValues, eta: np.ndarray, z: np.ndarray) -> Bounded:
        """Return the tightest Gaussian lower bounds at predictor means `eta` and variances `z`, (n,) each."""
        bounds = [
            site.bounded(y, eta[places], z[places], *parameters)
            for site, y, parameters, places in zip(self.sites, self.observed, prior.parameters, self.slices)
        ]
        return self._joined(bounds, eta, z)

    def hyper_objective(
        self, fitted: np.ndarray, z: np.ndarray, *, density: str = "natural"
    ) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Return theta -> (inner objective, gradient) at fixed parts D x, `fitted`, and variances z of predictors.

        The objective is the log prior plus the log excess plus the sum of the sites' values. With ``density="none"``
        its gradient leaves the log prior out.
        """
        varying = self.form.varying_parameters

        def evaluate(theta: np.ndarray) -> tuple[float, np.ndarray]:
            prior = self.prior(theta)
            eta = prior.mean + fitted
            bounds, gradients = [], []
            for site, y, parameters, places, varies in zip(
                self.sites, self.observed, prior.parameters, self.slices, varying
            ):
                if varies:
                    bound, gradient = site.bounded_with_gradient(y, eta[places], z[places], *parameters)
                else:
                    bound = site.bounded(y, eta[places], z[places], *parameters)
                    gradient = tuple(np.zeros(len(y)) for _ in parameters)
                bounds.append(bound)
                gradients.append(gradient)
            joined = self._joined(bounds, eta, z)
            value = float(joined.value.sum()) + prior.log_prior + prior.log_excess
            # With eta = m0 + D x and D x fixed, d value_i / d m0_i = d value_i / d eta_i.
            return value, self.form.pullback(theta, joined.gradient, None, gradients, density=density)

        return evaluate

    def _joined(self, by_group: Sequence[Bounded], eta: np.ndarray, z: np.ndarray) -> Bounded:
        """Concatenate the bounds of the groups; raise unless all are finite."""
        bounds = Bounded(*(np.concatenate(fields) for fields in zip(*by_group)))
        self._check_finite(bounds, eta, z)
        return bounds

    def _check_finite(self, bounds: Bounded, eta: np.ndarray, z: np.ndarray) -> None:
        finite = np.logical_and.reduce([np.isfinite(field) for field in bounds])
        if finite.all():
            return
        index = int(np.flatnonzero(~finite)[0])
        group, places = next((g, s) for g, s in zip(self.form.form.factors, self.slices) if index < s.stop)
        raise NumericalError(
            f"The bound of the {group.site.name} site at index {index - places.start} of {group.name!r} is not finite "
            f"for the predictor {eta[index]} with variance {z[index]}. Scale the predictor so that the likelihood is "
            f"finite there."
        )

    def require_determined(self, proper: bool) -> None:
        """Raise InvalidDataError unless `proper`: the sites leave some direction of the unknowns undetermined."""
        if not proper:
            names = ", ".join(repr(g.name) for g in self.form.form.factors)
            tree = any(g.site.coupled for g in self.form.form.factors)
            raise InvalidDataError(
                f"The factors {names} do not determine all unknowns: some direction, such as the mean of an image "
                f"of which only differences are known, is in none of their operators. Observe it, or add a potential "
                f"that does, such as a weak one on the unknowns themselves{', or scaling= of the WaveletTree' * tree}."
            )
