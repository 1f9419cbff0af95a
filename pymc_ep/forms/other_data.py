"""Fits whose model has other data by now: the prior is that of the fitted data, everything else that of the present.

A posterior is held in the coefficients' space here: independent standard normals, which are the same whatever the data,
so that their posterior given the fitted data meets the effects that they have on present predictors.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.latent_gaussian import LatentGaussian
from pymc_ep.forms.values import Prior

__all__ = ["OfOtherData", "exchanged", "made_of"]

Values = Mapping[SharedVariable, np.ndarray]


@contextmanager
def exchanged(values: Values) -> Iterator[None]:
    """Give shared variables other values for a while."""
    # The same arrays come back, so that what is kept for them is found again.
    before = {variable: variable.get_value(borrow=True) for variable in values}
    try:
        for variable, value in values.items():
            variable.set_value(value, borrow=True)
        yield
    finally:
        for variable, value in before.items():
            variable.set_value(value, borrow=True)


class OfOtherData(CompiledLatentGaussian):
    """A form whose prior is evaluated at the data of its fit, and affine variables at present data.

    Parameters
    ----------
    form : CompiledLatentGaussian
    fitted : mapping of SharedVariable to ndarray
        Values of the fit where they are others now.
    """

    def __init__(self, form: CompiledLatentGaussian, fitted: Values):
        self.__dict__ = dict(form.__dict__)
        self._fitted = fitted
        self.solve_in("coefficients")
        self._of_fit = form.twin()
        self._of_fit.solve_in("coefficients")
        # Each keeps the design of its own data.
        self._of_fit.__dict__.pop("_maps", None)

    def prior(self, theta: np.ndarray) -> Prior:
        """Evaluate the form at unconstrained hyperparameters `theta`, (p,), and the data of the fit."""
        with exchanged(self._fitted):
            return self._of_fit.prior(theta)


def made_of(form: LatentGaussian, latent: list[str]) -> tuple[set[Variable], dict[str, set[Variable]]]:
    """Return the variables behind the sites of a form, and those behind each of its latent variables of these names."""
    of_sites = [v for group in form.factors for v in (group.predictor, group.observed, *group.parameters)]
    affine = {variable.name: variable.expression for variable in form.affine}
    of_latent = {}
    for block in form.blocks:
        if block.name in latent:
            parts = [affine.get(block.name), block.covariance, block.root, block.factor]
            parts += [*block.shape, *block.origin_shape]
            of_latent[block.name] = set(ancestors([v for v in parts if isinstance(v, Variable)]))
    return set(ancestors(of_sites)).union(*of_latent.values()), of_latent
