"""Start points for MCMC from a fit."""

import numpy as np

from pymc_ep.compat import Container
from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.results import hyper_modes, posterior_moments, settings

__all__ = ["start_point"]


def start_point(idata: Container) -> dict[str, np.ndarray]:
    """Return values of all free variables at the posterior mean of the latent ones, for ``pm.sample(initvals=...)``.

    Hyperparameters are at their mode. A model with a rectified likelihood has no finite density at PyMC's own
    start point, where its predictor is 0. Latent variables whose moments were too many to be stored are left out.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.

    Returns
    -------
    dict
        Values by name.

    Raises
    ------
    InvalidDataError
        Where a value is not finite, or an array of the result is missing.
    """
    means = posterior_moments(idata, "mean")
    latent = {name: means[name] for name in settings(idata)["latent"] if name in means}
    values = {name: np.asarray(value) for name, value in (hyper_modes(idata) | latent).items()}
    for name, value in values.items():
        if not (finite := np.isfinite(value)).all():
            index = first_index(~finite)
            raise InvalidDataError(
                f"The result has the value {value[index]}{at_index(index)} of {name!r}, where no chain can start; pass "
                f"what pymc_ep.fit returned, or give that variable an initial value of its own."
            )
    return values
