"""Predictive probabilities of new comparisons."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.models.preferences.distributions.pairwise import compared_positions
from pymc_ep.models.preferences.form import Preferences
from pymc_ep.models.preferences.predict.rebuild import UtilityPosterior, preference_posterior
from pymc_ep.numerics.skewed_normal import gaussian_parts
from pymc_ep.sites.compiled import compile_site

__all__ = ["ComparisonPredictions"]


class ComparisonPredictions:
    """Predictive probabilities of comparisons; see `pymc_ep.forms.registry.Predictions`."""

    @staticmethod
    def rebuild(idata: Container, model: pm.Model) -> UtilityPosterior:
        """Return the posterior of a fit; raise a ValueError unless the fit is of the present model."""
        return preference_posterior(idata, model)

    @staticmethod
    def log_predictive(model: pm.Model, posterior: UtilityPosterior, data: Mapping[str, Any]) -> xr.Dataset:
        """Return log P(the winner wins), (n,), of new comparisons.

        Parameters
        ----------
        model : pymc.Model
        posterior : UtilityPosterior
        data : mapping of str to tuple of array_like, (n,)
            Under the name of the observed variable, (users, winners, losers), or (winners, losers) for utilities of one
            user.

        Raises
        ------
        UnsupportedModelError
            For names other than the observed variable's.
        InvalidDataError
            For unknown labels, an item compared with itself, and arrays of different lengths.
        """
        group = posterior.form.form.comparisons
        if list(data) != [group.name]:
            raise UnsupportedModelError(
                f"The model's comparisons are those of {group.name!r}; give these, not {', '.join(data)}."
            )
        users, firsts, seconds = compared_rows(model, posterior, group.name, data[group.name])
        site, won, log_p = compile_site(group.site), np.ones(len(users)), np.full(len(users), -np.inf)
        for weight, component in posterior.components():
            mean, sd, skewness = component.differences(users, firsts, seconds)
            gaussians = zip(*gaussian_parts(skewness)) if skewness.any() else [(1.0, 0.0, 1.0)]
            for share, centre, width in gaussians:
                # log sum_k w_k int t(d) N(d; m_k, v_k) dd, over the Gaussian parts k of all components.
                log_probability = site.moments(won, mean + sd * centre, (sd * width) ** 2).log_z
                log_p = np.logaddexp(log_p, np.log(weight * share) + np.asarray(log_probability))
        dim = f"{group.name}_comparison"
        return xr.Dataset({group.name: (dim, log_p)}, attrs={"log_predictive_is": "log P(winner wins)"})

    @staticmethod
    def transforms(model: pm.Model, posterior: UtilityPosterior, data: Mapping[str, Any]) -> xr.Dataset:
        """Raise UnsupportedModelError: binary outcomes have no informative probability integral transform."""
        raise UnsupportedModelError(
            f"Comparisons such as {posterior.form.form.comparisons.name!r} are binary, and have no informative "
            f"probability integral transform; compare log_predictive of held-out comparisons."
        )

    @staticmethod
    def no_cumulants(form: Preferences) -> str:
        """Return the reason why cumulants of tilted distributions are not available for this form."""
        return f"the fit itself corrects the shape of utilities by those of {form.comparisons.name!r}"

    @staticmethod
    def remark(form: Preferences) -> str:
        """Return the reason why there are no predictions of each observation, and the alternatives."""
        return (
            f"{form.comparisons.name!r} are comparisons of items; use log_predictive of new comparisons, rank_items, "
            f"or the moments in the group 'posterior_mean'."
        )


def compared_rows(
    model: pm.Model, posterior: UtilityPosterior, name: str, given: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the positions of users, winners and losers, (n,) each, of comparisons given by labels or positions."""
    form = posterior.form
    words = ("winners", "losers") if len(form.shape) == 1 else ("users", "winners", "losers")
    if not isinstance(given, tuple | list) or len(given) != len(words):
        raise InvalidDataError(f"{name!r} takes comparisons as ({', '.join(words)}), with one entry of each.")
    positions = compared_positions(model, form.form.utilities, name, form.shape, dict(zip(words, given)))
    return (
        positions.get("users", np.zeros(len(positions["winners"]), dtype=np.int64)),
        positions["winners"],
        positions["losers"],
    )
