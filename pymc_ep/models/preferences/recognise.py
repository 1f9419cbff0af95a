"""Recognise a model of pairwise comparisons: one `PreferenceUtility` and a Bernoulli variable of its differences."""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.logprob.transforms import LogTransform
from pytensor.compile.builders import infer_shape
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import indexed_first
from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.families import family_of
from pymc_ep.graphs.hyperparameters import follows_from, hyper_fields, initial_values, relevant_variables
from pymc_ep.graphs.inner_products import same_index
from pymc_ep.graphs.predictor import AffineTest, find_predictor
from pymc_ep.graphs.queries import depends_on, evaluated, without_casts
from pymc_ep.graphs.random_nodes import distribution_name, parameters_of
from pymc_ep.models.preferences.distributions.preference_utility import LowRankUtilityRV, PreferenceUtilityRV
from pymc_ep.models.preferences.form import ComparisonGroup, Preferences, PriorGraphs
from pymc_ep.modes import quick_mode

__all__ = ["recognise_preferences"]


def recognise_preferences(
    model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()
) -> Preferences | None:
    """Return the form of a model with a `PreferenceUtility`; None for a model without one.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        If given, it must name the utilities alone.
    wanted : sequence of str, optional
        Variables to predict. It is ignored, as this form predicts no variables.

    Raises
    ------
    UnsupportedModelError
        If the model has a `PreferenceUtility`, but is not of the form otherwise.
    """
    utilities = [
        rv for rv in relevant_variables(model) if isinstance(rv.owner.op, PreferenceUtilityRV | LowRankUtilityRV)
    ]
    if not utilities:
        return None
    f = utilities[0]
    if len(utilities) > 1:
        raise UnsupportedModelError(
            f"{f.name!r} and {utilities[1].name!r} are both a PreferenceUtility, and a model can have one; fit them in "
            f"models of their own, or use pm.sample."
        )
    if others := [rv.name for rv in model.observed_RVs if not depends_on([rv], [f])]:
        raise UnsupportedModelError(
            f"{others[0]!r} does not depend on {f.name!r}, and beside comparisons by a PreferenceUtility a model can "
            f"have no other observed variable. Fit it in a model of its own, or use pm.sample."
        )
    named = [f.name] if latent is None else [latent] if isinstance(latent, str) else list(latent)
    if named != [f.name]:
        raise UnsupportedModelError(
            f"latent={named} is not what a fit of comparisons integrates out, which is {f.name!r} alone; leave out "
            f"latent=."
        )
    return _build(model, f)


def _build(model: Model, f: TensorVariable) -> Preferences:
    rv = _only_observed(model, f)
    relevant = relevant_variables(model)
    hyper = [v for v in relevant if v is not f]
    graphs = [_without_batch(graph, ndim) for graph, ndim in zip(parameters_of(f), f.owner.op.ndims_params)]
    mean, factors, *kernel, sigma = graphs
    others = [p for v in hyper for p in parameters_of(v)]
    if depends_on([*others, *model.potentials], [f]):
        raise UnsupportedModelError(
            f"{f.name!r} enters the model elsewhere than in {rv.name!r}, so that its users are no longer independent "
            f"given its prior; use pm.sample."
        )
    comparisons = _comparisons(model, rv, f, hyper)
    stand_in = f.type(f"{f.name}_values")
    deterministics = [d for d in model.deterministics if follows_from(model, d, relevant)]
    functions = graph_replace(deterministics, {f: stand_in}, strict=False) if deterministics else []
    parameters = {"mean": mean, "factors": factors, "sigma": sigma}
    mean, factors, *kernel, sigma = model.replace_rvs_by_values(graphs)
    variables = {key: v for key, v in parameters.items() if v in hyper and _plain(model, v)}
    return Preferences(
        # Utilities are all that this form integrates out: that parameters of their prior are Gaussian is no remark.
        **(hyper_fields(model, hyper) | {"hyper_gaussian": ()}),
        hyper_coordinates=(),
        utilities=f.name,
        stand_in=stand_in,
        shape=tuple(infer_shape([f], (), ())[0]),
        prior=PriorGraphs(mean, factors, tuple(kernel), sigma),
        variables={key: v.name for key, v in variables.items()},
        flat=frozenset(key for key, v in variables.items() if isinstance(v.owner.op, FlatRV | HalfFlatRV)),
        comparisons=comparisons,
        deterministics=dict(zip([d.name for d in deterministics], model.replace_rvs_by_values(functions))),
        ignored=tuple(v.name for v in model.free_RVs if v not in relevant),
    )


def _plain(model: Model, v: TensorVariable) -> bool:
    """Return whether a variable equals its unconstrained value, or the exponential of its unconstrained value."""
    transform = model.rvs_to_transforms.get(v)
    return transform is None or isinstance(transform, LogTransform)


def _only_observed(model: Model, f: TensorVariable) -> TensorVariable:
    """Return the observed variable; raise if there are several."""
    if len(model.observed_RVs) > 1:
        names = " and ".join(repr(rv.name) for rv in model.observed_RVs[:2])
        raise UnsupportedModelError(
            f"{names} both depend on {f.name!r}; observe all comparisons in one variable, or use pm.sample."
        )
    return model.observed_RVs[0]


def _without_batch(graph: TensorVariable, ndim: int) -> TensorVariable:
    """Return a parameter that all users share as a graph with `ndim` axes: leading axes of length one are removed."""
    while graph.ndim > ndim and graph.owner is not None and isinstance(graph.owner.op, DimShuffle):
        graph = graph.owner.inputs[0]
    if graph.ndim > ndim:
        graph = graph[(0,) * (graph.ndim - ndim)]
    return graph


def _comparisons(
    model: Model, rv: TensorVariable, f: TensorVariable, hyper: Sequence[TensorVariable]
) -> ComparisonGroup:
    """Return the comparisons that `rv` observes; raise UnsupportedModelError if it is not a comparison of two items."""
    imputed = f"{rv.name.removesuffix('_observed')}_unobserved"
    if rv.name.endswith("_observed") and imputed in model.named_vars:
        raise UnsupportedModelError(
            f"{rv.name.removesuffix('_observed')!r} has missing outcomes, which PyMC draws as {imputed!r}. They tell "
            f"nothing of {f.name!r}: leave these comparisons out, and give log_predictive those to be predicted."
        )
    family, parameters = family_of(rv), parameters_of(rv)
    graphs, difference, indices = parameters, pt.vector("difference", dtype="float64"), None
    for graph in ancestors(parameters, blockers=[f]):
        if (indices := _difference(graph, f)) is not None:
            difference = graph.type("difference")
            graphs = graph_replace(parameters, {graph: difference}, strict=False)
            break
    if family is None or indices is None or depends_on(graphs, [f]):
        raise UnsupportedModelError(
            f"{rv.name!r} ({distribution_name(rv.owner)}) is no comparison of two items of {f.name!r}. Write it as "
            f"PairwiseProbit(name, {f.name}, users=..., winners=..., losers=...), as pm.Bernoulli of "
            f"pm.math.invprobit({f.name}[users, winners] - {f.name}[users, losers]), or use pm.sample."
        )
    first, second = indices
    graphs = list(model.replace_rvs_by_values(graphs))
    values = [model.rvs_to_values[v] for v in hyper]
    start = dict(zip(values, initial_values(model, values)))
    shape = tuple(int(n) for n in evaluated(first[-1].shape))
    test = AffineTest({difference: shape}, start, {difference: pt.zeros(first[-1].shape)})
    site = find_predictor(rv.name, rv.owner.op, family, graphs, test)
    if site.parameters or site.site.domain != "binary":
        raise UnsupportedModelError(
            f"{rv.name!r} has the likelihood {site.site.name!r}, and comparisons of items are binary: give it probit "
            f"or logit probabilities, or use pm.sample."
        )
    x = np.random.default_rng(0).standard_normal(shape)
    function = compiled_function([difference, *values], site.predictor, mode=quick_mode(), on_unused_input="ignore")
    at = function(x, *start.values())
    signs = [sign for sign in (1.0, -1.0) if np.shape(at) == shape and np.allclose(at, sign * x, rtol=1e-6)]
    if not signs:
        raise UnsupportedModelError(
            f"The predictor of {rv.name!r} must be a difference of two items of {f.name!r} and no more; write factors "
            f"into its sigma and V, and offsets into its b, or use pm.sample."
        )
    if signs[0] < 0:
        first, second = second, first
    users = first[0] if len(first) == 2 else None
    observed = without_casts(model.rvs_to_values[rv])
    return ComparisonGroup(rv.name, site.site, observed, users, first[-1], second[-1])


def _difference(graph: TensorVariable, f: TensorVariable) -> tuple[list, list] | None:
    """Return the indices of both items of ``f[u, i] - f[u, j]`` or ``f[i] - f[j]``; None for any other graph."""
    node = graph.owner
    if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Sub):
        return None
    sides = []
    for operand in node.inputs:
        subtensor = operand.owner
        if subtensor is None or not isinstance(subtensor.op, AdvancedSubtensor) or subtensor.inputs[0] is not f:
            return None
        indices = indexed_first(subtensor)
        if indices is None or len(indices) != f.ndim or any(index.dtype == "bool" for index in indices):
            return None
        sides.append(indices)
    first, second = sides
    return (first, second) if f.ndim == 1 or same_index(first[0], second[0]) else None
