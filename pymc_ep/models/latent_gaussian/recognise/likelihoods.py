"""Site of a likelihood: a registered one, ordered categories, or quadrature of PyMC's log density."""

from collections.abc import Sequence

import numpy as np
from pymc import Model
from pymc.distributions.distribution import PartialObservedRV
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.families import family_of
from pymc_ep.graphs.gaussian_variables import gaussian_of
from pymc_ep.graphs.hyperparameters import initial_values
from pymc_ep.graphs.predictor import AffineTest, Found, NotAffineError, find_predictor
from pymc_ep.graphs.queries import depends_on
from pymc_ep.graphs.random_nodes import distribution_name, parameters_of, separated
from pymc_ep.models.latent_gaussian.recognise.any_density import find_generic
from pymc_ep.models.latent_gaussian.recognise.observed_vectors import correlated_gaussian
from pymc_ep.models.latent_gaussian.recognise.ordered import find_ordered
from pymc_ep.models.latent_gaussian.recognise.softmax import find_softmax, is_counted
from pymc_ep.models.latent_gaussian.recognise.two_predictors import find_two_predictors

__all__ = ["find_site", "outside_predictor", "require_univariate"]


def require_univariate(rv: TensorVariable) -> None:
    """Raise where the elements of an observed variable are not independent given its parameters."""
    if is_counted(rv):
        return
    if isinstance(rv.owner.op, PartialObservedRV):
        raise UnsupportedModelError(
            f"{rv.name.removesuffix('_observed')!r} is a vector with missing values, which depend on the observed "
            f"ones. Observe it as a shorter vector without them."
        )
    if not rv.owner.op.ndim_supp:
        return
    intro = f"The observed variable {rv.name!r} has the distribution {distribution_name(rv.owner)}"
    gaussian = gaussian_of(rv)
    if gaussian is not None and gaussian.degenerate:
        raise UnsupportedModelError(
            f"{intro}: values that sum to zero have no density as a vector. Observe all but one of them, as an "
            f"MvNormal."
        )
    if gaussian is not None:
        instead = "" if gaussian.flat else ", or observe an MvNormal with its covariance"
        raise UnsupportedModelError(
            f"{intro}, which is supported as a latent variable only, as its values depend on each other. Use it in the "
            f"mean of a pm.Normal{instead}."
        )
    raise UnsupportedModelError(
        f"{intro}, whose values depend on each other given its parameters, so that it has no site for each value, and "
        f"it is no Gaussian. Write it as a distribution of single values; pymc_ep.supported() lists those there are."
    )


def find_site(
    rv: TensorVariable,
    parameters: Sequence[TensorVariable],
    observed: TensorVariable | None,
    affine: AffineTest,
    *,
    registered_only: bool,
    two: bool = False,
) -> Found:
    """Return predictor, site and site parameters of a likelihood.

    Parameters
    ----------
    rv : TensorVariable
        Observed variable.
    parameters : sequence of TensorVariable
        Parameters of its distribution, as graphs of hyperparameters and noise.
    observed : TensorVariable, optional
        Observations; None for a likelihood that is predicted.
    affine : AffineTest
    registered_only : bool
        Whether a distribution with registered sites must match one of these.
    two : bool
        Whether the likelihood may have two predictors, or categories several.

    Raises
    ------
    UnsupportedModelError
        If there is no site; the message names the operation that prevents an affine predictor.
    """
    if isinstance(rv.owner.op, CategoricalRV) or is_counted(rv):
        return _find_categories(rv, parameters, observed, affine, several=two)
    if two:
        try:
            return find_site(rv, parameters, observed, affine, registered_only=registered_only)
        except NotAffineError:
            return find_two_predictors(rv, parameters, observed, affine)
        except UnsupportedModelError as refusal:
            # Columns of one matrix are no predictor value by value.
            try:
                return find_two_predictors(rv, parameters, observed, affine)
            except UnsupportedModelError:
                raise refusal from None
    family = family_of(rv)
    if family is None:
        return find_generic(rv.name, rv.owner, parameters, observed, affine)
    try:
        return find_predictor(rv.name, rv.owner.op, family, parameters, affine)
    except NotAffineError as refusal:
        if registered_only:
            raise
        try:
            return find_generic(rv.name, rv.owner, parameters, observed, affine)
        except NotAffineError:
            raise refusal from None


def _find_categories(
    rv: TensorVariable,
    parameters: Sequence[TensorVariable],
    observed: TensorVariable | None,
    affine: AffineTest,
    *,
    several: bool,
) -> Found:
    """Return predictors and site of categories, with or without an order."""
    match = None if is_counted(rv) else find_ordered(rv.name, parameters, affine)
    match = match or find_softmax(rv, parameters, observed, affine, several=several)
    if match is None:
        raise NotAffineError(
            f"The probabilities of the categories of {rv.name!r} are not a softmax of one array of affine predictors, "
            f"along its last axis, nor those of pm.OrderedLogistic or pm.OrderedProbit with one affine predictor. "
            f"Write them as pm.math.softmax(eta, axis=-1), or as logit_p=eta."
        )
    return match


def outside_predictor(
    model: Model, rv: TensorVariable, candidates: Sequence[TensorVariable], *, shared: bool
) -> set[TensorVariable]:
    """Return the candidate latent variables that enter a likelihood outside of its predictor.

    The predictor is taken to be the parameter, be it a mean, a scale or a shape, that depends on the largest number of
    candidate values. Ties go to a parameter with a registered site, then to the one of fewest dimensions (a mixture's
    components before its weights), then to the first.

    Parameters
    ----------
    model : pymc.Model
    rv : TensorVariable
        Observed variable.
    candidates : sequence of TensorVariable
    shared : bool
        Whether a variable of the predictor may enter other parameters as well. The distribution's registered sites are
        then excluded.
    """
    if isinstance(rv.owner.op, CategoricalRV):
        return set()
    if (vector := correlated_gaussian(rv)) is not None:
        return {c for c in candidates if depends_on(vector.covariance_inputs, [c], blockers=model.basic_RVs)}
    rv = separated(rv)
    reached = [{c for c in candidates if depends_on([p], [c], blockers=model.basic_RVs)} for p in parameters_of(rv)]
    variables = list(set().union(*reached))
    start = dict(
        zip(variables, initial_values(model, [model.rvs_to_values[c] for c in variables]) if len(variables) > 1 else [])
    )
    sizes = [sum(np.size(start.get(c, 0.0)) for c in variables) for variables in reached]
    family = family_of(rv)
    registered = () if family is None else family.carriers
    ndims = getattr(rv.owner.op, "ndims_params", None) or [0] * len(reached)
    widest = max(range(len(reached)), key=lambda i: (sizes[i], i in registered, -ndims[i], -i))
    if family is None or shared:
        return set().union(*reached) - reached[widest]
    carriers = registered if widest in registered else (widest,)
    return set().union(*(variables for i, variables in enumerate(reached) if i not in carriers))
