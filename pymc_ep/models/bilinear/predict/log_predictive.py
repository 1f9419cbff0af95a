"""Predictive densities of new cells of a bilinear model, and their calibration."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.bilinear.engine.values import NewCells
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.models.bilinear.posterior import BilinearMixture, BilinearPosterior
from pymc_ep.models.bilinear.predict.inputs import read_cells
from pymc_ep.models.bilinear.predict.rebuild import bilinear_posterior

__all__ = ["CellPredictions"]

_DRAWS = 1000
"""Number of draws of a row for each cell. The relative Monte Carlo error of a density is some 3 % of the spread of the
densities given each draw."""


class CellPredictions:
    """Predictive quantities of cells, whose predictors are inner products and so not Gaussian."""

    @staticmethod
    def rebuild(idata: Container, model: pm.Model) -> BilinearPosterior | BilinearMixture:
        """Return the posterior of a fit; raise a ValueError unless the fit is of the present model."""
        return bilinear_posterior(idata, model)

    @staticmethod
    def log_predictive(
        model: pm.Model, posterior: BilinearPosterior | BilinearMixture, data: Mapping[str, Any]
    ) -> xr.Dataset:
        """Return the log predictive density of each new cell: log int p(y | f) Q(f) df, with Q the posterior of f.

        Parameters
        ----------
        model : pymc.Model
        posterior : BilinearPosterior or BilinearMixture
        data : mapping of str to mapping
            The argument `given` of `read_cells`, by the name of the observed variable.

        Raises
        ------
        InvalidDataError
            For indices out of range, and observations outside their domain.
        """
        name, components = _parts(model, posterior, data)
        log_densities = [
            np.log(weight) + component.log_predictive(new, size, rng)
            for weight, component, new, size, rng in components
        ]
        # log sum_k w_k int p(y | f) Q_k(f) df, over the components k of a mixture.
        return xr.Dataset({name: ((f"{name}_cell",), logsumexp(log_densities, axis=0))})

    @staticmethod
    def transforms(
        model: pm.Model, posterior: BilinearPosterior | BilinearMixture, data: Mapping[str, Any]
    ) -> xr.Dataset:
        """Return ``<y>_lower`` and ``<y>_upper``, P(Y < y) and P(Y <= y), of new cells; see `log_predictive`."""
        name, components = _parts(model, posterior, data)
        mixed = np.sum(
            [
                weight * np.array(component.transforms(new, size, rng))
                for weight, component, new, size, rng in components
            ],
            0,
        )
        arrays = {f"{name}_{suffix}": ((f"{name}_cell",), values) for suffix, values in zip(("lower", "upper"), mixed)}
        return xr.Dataset(arrays, attrs={"domain": posterior.form.form.cells.site.domain})

    @staticmethod
    def no_cumulants(form: Bilinear) -> str:
        """Return the reason why tilted distributions have no cumulants here."""
        return f"the predictors of {form.cells.name!r} are inner products, no Gaussians"

    @staticmethod
    def remark(form: Bilinear) -> str:
        """Return the reason why there are no Gaussian predictions, and the alternatives."""
        names = ", ".join(map(repr, form.latent_names))
        return (
            f"The predictors of {form.cells.name!r} are inner products of {names}, which are not Gaussian, so that "
            f"they have no Gaussian predictions and no sites; use the moments in the group 'fit', "
            f"pm.sample_posterior_predictive, or log_predictive and diagnostics.predictive_pit of new cells."
        )


def _parts(
    model: pm.Model, posterior: BilinearPosterior | BilinearMixture, data: Mapping[str, Any]
) -> tuple[str, list[tuple[float, BilinearPosterior, NewCells, int, np.random.Generator]]]:
    """Return the name of the cells; for each component weight, posterior, new cells, number of draws, generator."""
    form, rng = posterior.form, np.random.default_rng(0)
    name = form.form.cells.name
    if list(data) != [name]:
        raise UnsupportedModelError(f"The model's cells are those of {name!r}; give these, not {', '.join(data)}.")
    components = list(posterior.components())
    size = -(-_DRAWS // len(components))
    return name, [
        (weight, component, read_cells(model, form, component.theta, data[name]), size, rng)
        for weight, component in components
    ]
