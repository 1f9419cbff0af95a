"""Predictive probabilities of new pairs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.distributions.pair_data import as_counts, packed_links, packed_pairs
from pymc_ep.evidence.fit_mixture import FitMixture
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.paired_symbols.form import PairedSymbolsForm
from pymc_ep.models.paired_symbols.posterior import PairedSymbolsPosterior
from pymc_ep.models.paired_symbols.predict.rebuild import paired_symbols_posterior
from pymc_ep.numerics.memory import chunks

__all__ = ["PairPredictions"]


class PairPredictions:
    """Predictive probabilities of pairs; see `pymc_ep.forms.registry.Predictions`."""

    @staticmethod
    def rebuild(idata: Container, model: pm.Model) -> PairedSymbolsPosterior | FitMixture[PairedSymbolsPosterior]:
        """Return the posterior of a fit; raise a ValueError unless the fit is of the present model."""
        return paired_symbols_posterior(idata, model)

    @staticmethod
    def log_predictive(
        model: pm.Model,
        posterior: PairedSymbolsPosterior | FitMixture[PairedSymbolsPosterior],
        data: Mapping[str, Any],
    ) -> xr.Dataset:
        """Return log p(item | user) of new observed pairs, (D,), or of the cells of new counts, (n,).

        Where both sides are the same symbols, it is log p(second | first), over all symbols except the first.

        Parameters
        ----------
        model : pymc.Model
        posterior : PairedSymbolsPosterior or FitMixture
        data : mapping of str to pairs, (D, 2), or SciPy sparse counts
            By the name of the observed variable.

        Raises
        ------
        InvalidDataError
            For indices out of range and counts that are negative or fractional.
        """
        name = posterior.form.form.pairs.name
        if list(data) != [name]:
            raise UnsupportedModelError(f"The model's pairs are those of {name!r}; give these, not {', '.join(data)}.")
        n_users, n_items, _ = posterior.form.shapes
        alike = posterior.form.form.alike
        rows = packed_links(name, data[name], n_users) if alike else packed_pairs(name, data[name], (n_users, n_items))
        users, items, _ = as_counts(rows)
        distinct, place = np.unique(users, return_inverse=True)
        out = np.empty(len(users))
        order = np.argsort(place, kind="stable")
        ends = np.searchsorted(place[order], np.arange(len(distinct) + 1))
        for chunk in chunks(len(distinct), n_items):
            pair_indices = order[ends[chunk.start] : ends[chunk.stop]]
            places = place[pair_indices] - chunk.start, items[pair_indices]
            log_p = [
                np.log(weight) + component.log_probabilities(0, distinct[chunk])[places]
                for weight, component in posterior.components()
            ]
            # log sum_k w_k p_k(j | i), over the components k of a mixture.
            out[pair_indices] = logsumexp(log_p, axis=0)
        dim = f"{name}_pair"
        coords = {f"{name}_user": (dim, users), f"{name}_item": (dim, items)}
        what = "log p(second | first)" if alike else "log p(item | user)"
        return xr.Dataset({name: ((dim,), out)}, coords=coords, attrs={"log_predictive_is": what})

    @staticmethod
    def transforms(
        model: pm.Model,
        posterior: PairedSymbolsPosterior | FitMixture[PairedSymbolsPosterior],
        data: Mapping[str, Any],
    ) -> xr.Dataset:
        """Raise UnsupportedModelError: symbols have no order, so that pairs have no probability integral transform."""
        raise UnsupportedModelError(
            f"Pairs of symbols such as {posterior.form.form.pairs.name!r} have no order, and so no probability "
            f"integral transform; compare log_predictive of held-out pairs, or rank_items."
        )

    @staticmethod
    def no_cumulants(form: PairedSymbolsForm) -> str:
        """Return the reason why tilted distributions have no cumulants here."""
        return f"the pairs of {form.pairs.name!r} have no univariate sites"

    @staticmethod
    def remark(form: PairedSymbolsForm) -> str:
        """Return the reason why there are no Gaussian predictions, and the alternatives."""
        return (
            f"{form.pairs.name!r} is a stream of pairs, which has no Gaussian predictions and no sites; use recommend, "
            f"rank_items, similar, log_predictive of new pairs, or the moments in the group 'posterior_mean'."
        )
