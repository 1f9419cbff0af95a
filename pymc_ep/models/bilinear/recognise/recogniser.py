"""Recognise a bilinear model: one likelihood of inner products of rows of two Gaussian matrices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import random_draw
from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError, at_index, first_index
from pymc_ep.graphs.families import family_of, site_names
from pymc_ep.graphs.hyperparameters import follows_from, hyper_fields, initial_values, relevant_variables
from pymc_ep.graphs.inner_products import (
    InnerProducts,
    inner_products,
    is_sum,
    push_selections_inward,
    summands,
)
from pymc_ep.graphs.predictor import AffineTest, NotAffineError, find_predictor
from pymc_ep.graphs.prior_parameters import require_matrices
from pymc_ep.graphs.queries import (
    depends_on,
    elementwise,
    elementwise_function_of,
    evaluated,
    without_casts,
    without_views,
)
from pymc_ep.graphs.random_nodes import distribution_name, parameters_of
from pymc_ep.models.bilinear.form import Bilinear, CellGroup
from pymc_ep.models.bilinear.recognise.biases import with_biases
from pymc_ep.models.bilinear.recognise.matrix_priors import all_latent, entries_of, is_gaussian
from pymc_ep.modes import quick_mode
from pymc_ep.sites.cells.base import cell_site, cell_site_names

__all__ = ["bilinear_sites", "recognise_bilinear"]


def bilinear_sites() -> list[tuple[str, str, Any]]:
    """Return the supported likelihoods, rows of the table of `pymc_ep.supported`: distribution, link and site."""
    rows = ((name, link, cell_site(site, truncated=False)) for name, link, site in site_names())
    return [(f"{name}, bilinear", link, site) for name, link, site in rows if site is not None]


class Likelihood(NamedTuple):
    """An observed variable, and its distribution's parameters with selections moved inside elementwise operations."""

    rv: TensorVariable
    parameters: list[TensorVariable]

    @classmethod
    def of(cls, model: Model, rv: TensorVariable) -> "Likelihood":
        """Return the likelihood of an observed variable of a model."""
        return cls(rv, push_selections_inward(without_views(parameters_of(rv), model.basic_RVs)))


def recognise_bilinear(
    model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()
) -> Bilinear | None:
    """Read a model as one likelihood of inner products of rows of two Gaussian matrices.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        Variables to integrate out. If given, both matrices have to be among them.
    wanted : sequence of str, optional
        Variables to predict; ignored by this form.

    Raises
    ------
    UnsupportedModelError
        If the model has such inner products, but does not fit the form otherwise.
    """
    likelihoods = (Likelihood.of(model, rv) for rv in model.observed_RVs)
    candidates = [
        (candidate, products)
        for candidate in likelihoods
        if (products := _products(model, candidate, latent)) is not None
    ]
    if not candidates or not all_latent(candidates[0][1].matrices, latent):
        return None
    likelihood, products = candidates[0]
    rv = likelihood.rv
    imputed = f"{rv.name.removesuffix('_observed')}_unobserved"
    if rv.name.endswith("_observed") and imputed in model.named_vars:
        raise UnsupportedModelError(
            f"{imputed.removesuffix('_unobserved')!r} has missing observations, which PyMC draws as {imputed!r}. Cells "
            f"that are not given are missing in a bilinear model; leave these out, as (V @ U.T)[seen] with "
            f"observed=values[seen] does."
        )
    if others := [other.name for other in model.observed_RVs if other is not rv]:
        raise UnsupportedModelError(
            f"{rv.name!r} is a bilinear likelihood, and beside one of these a model can have no other observed "
            f"variable ({others[0]!r}). Fit them in models of their own."
        )
    return _build(model, likelihood, products, latent)


def _products(model: Model, likelihood: Likelihood, latent: Sequence[str] | None) -> InnerProducts | None:
    """Return the inner products that a likelihood depends on; None if there are none."""
    rv = likelihood.rv
    for graph in ancestors(likelihood.parameters, blockers=model.basic_RVs):
        products = inner_products(graph)
        if products is None or (products.graph.ndim == 2 and not _elementwise(likelihood, products.graph)):
            continue
        if not all(matrix in model.free_RVs for matrix in products.matrices):
            _require_not_made(model, rv, products, latent)
            continue
        v, u = products.matrices
        gaussian = [variable for variable in (v, u) if is_gaussian(model, variable, 2)]
        if len(gaussian) == 1 and latent is None:
            (other,) = (variable for variable in (v, u) if variable is not gaussian[0])
            raise UnsupportedModelError(
                f"{rv.name!r} has inner products of rows of {v.name!r} and {u.name!r}, and the prior of "
                f"{other.name!r} is no pm.Normal, pm.MvNormal of rows that are alike, or pm.Flat. Give it one of "
                f"these, hold it at its mode by latent=[{gaussian[0].name!r}], or use pm.sample."
            )
        if len(gaussian) < 2:
            continue
        if v is u:
            raise UnsupportedModelError(
                f"{rv.name!r} has inner products of rows of {v.name!r} with rows of {v.name!r} itself, which are "
                f"not bilinear: a bilinear model has two matrices of their own. Use two, or pm.sample."
            )
        return products
    return None


def _require_not_made(model: Model, rv: TensorVariable, products: InnerProducts, latent: Sequence[str] | None) -> None:
    """Raise if both matrices are functions, such as multiples, of Gaussian variables that are to be integrated out."""
    gaussian = [
        variable for variable in model.free_RVs if is_gaussian(model, variable, 2) and all_latent([variable], latent)
    ]
    behind = [
        [variable for variable in gaussian if elementwise_function_of(matrix, variable, model.basic_RVs)]
        for matrix in products.matrices
    ]
    if all(behind):
        source = next(of[0] for of, matrix in zip(behind, products.matrices) if of[0] is not matrix)
        raise UnsupportedModelError(
            f"{rv.name!r} has inner products of rows that are made of {source.name!r}, by a factor or a sum, and only "
            f"random variables themselves are read as matrices. Write mean and scale into the prior, as in "
            f"pm.Normal({source.name!r}, mu, sd, ...)."
        )


def _elementwise(likelihood: Likelihood, graph: TensorVariable) -> bool:
    """Return whether each observation has its own element of a graph as its parameter.

    The product of two matrices may be something else: a covariance of all observations, or a factor of a third matrix.
    """
    return likelihood.rv.owner.op.ndim_supp == 0 and elementwise(likelihood.parameters, graph)


def _build(model: Model, likelihood: Likelihood, products: InnerProducts, latent: Sequence[str] | None) -> Bilinear:
    eta = _predictor(model, likelihood, products.graph)
    added = summands(eta)
    if sum(term is products.graph for term in added) != 1:
        raise _not_plain(likelihood.rv, products)
    biases, rest = with_biases(model, [term for term in added if term is not products.graph], products, latent)
    latents = [*products.matrices, *(b for b in biases if b is not None)]
    offset = pt.add(*rest, pt.zeros(())) if rest else pt.zeros(())
    _require_apart(model, likelihood, eta, latents, rest, products)
    relevant = relevant_variables(model)
    require_matrices(model)
    hyper = [v for v in relevant if v not in latents]
    cells = _cells(model, likelihood, eta, offset, products, hyper)
    stand_ins = {v: v.type(f"{v.name}_values") for v in latents}
    deterministics = [d for d in model.deterministics if follows_from(model, d, relevant)]
    graphs = graph_replace(deterministics, stand_ins, strict=False) if deterministics else []
    entries = {v: entries_of(model, v, stand_ins[v]) for v in latents}
    pairs = tuple(None if b is None else entries[b] for b in biases)
    return Bilinear(
        **hyper_fields(model, hyper),
        hyper_coordinates=(),
        matrices=(entries[products.matrices[0]], entries[products.matrices[1]]),
        biases=(pairs[0], pairs[1]),
        cells=cells,
        nested=_nested(hyper),
        deterministics=dict(zip([d.name for d in deterministics], model.replace_rvs_by_values(graphs))),
        ignored=tuple(v.name for v in model.free_RVs if v not in relevant),
    )


def _predictor(model: Model, likelihood: Likelihood, products: TensorVariable) -> TensorVariable:
    """Return the outermost sum that has the inner products as a term."""
    while True:
        larger = [
            v
            for v in ancestors(likelihood.parameters, blockers=model.basic_RVs)
            if is_sum(v) and products in v.owner.inputs and v.ndim == products.ndim
        ]
        if not larger:
            return products
        products = larger[0]


def _nested(hyper: Sequence[TensorVariable]) -> dict[str, str]:
    """Map each hyperparameter whose prior scale or rate depends on another hyperparameter to the other one."""
    scales = {rv: parameters_of(rv)[-1:] for rv in hyper}
    pairs = ((rv, other) for rv in hyper for other in hyper if other is not rv and depends_on(scales[rv], [other]))
    return {rv.name: other.name for rv, other in pairs}


def _require_apart(
    model: Model,
    likelihood: Likelihood,
    eta: TensorVariable,
    latents: Sequence[TensorVariable],
    rest: Sequence[TensorVariable],
    products: InnerProducts,
) -> None:
    """Raise if matrices or biases enter the model elsewhere than in the predictor."""
    graphs = graph_replace(likelihood.parameters, {eta: eta.type()}, strict=False)
    for v in latents:
        others = [p for other in model.free_RVs for p in parameters_of(other)]
        if depends_on([*graphs, *rest, *products.indices, *others, *model.potentials], [v]):
            raise UnsupportedModelError(
                f"{v.name!r} enters the model elsewhere than in the inner products of {likelihood.rv.name!r}, or as a "
                f"bias of their rows: write the predictor as (V[rows] * U[cols]).sum(-1) + offset, with other "
                f"variables in scales and offsets, or use pm.sample."
            )


def _cells(
    model: Model,
    likelihood: Likelihood,
    eta: TensorVariable,
    offset: TensorVariable,
    products: InnerProducts,
    hyper: Sequence[TensorVariable],
) -> CellGroup:
    """Return the observed cells with the site of their likelihood."""
    rv, (node, parameters, truncated) = likelihood.rv, _truncated(likelihood)
    name = rv.name
    family = family_of(node)
    stand_in = pt.tensor("predictor", dtype=eta.dtype, shape=(None,) * eta.ndim)
    parameters = graph_replace(parameters, {eta: stand_in}, strict=False)
    parameters, offset = (list(model.replace_rvs_by_values(graphs)) for graphs in (parameters, [offset]))
    values = [model.rvs_to_values[v] for v in hyper]
    point = dict(zip(values, initial_values(model, values)))
    shape = tuple(int(n) for n in evaluated(products.shape))
    zeros = pt.zeros(products.shape, dtype=stand_in.dtype)
    match = None
    if family is not None:
        test = AffineTest({stand_in: shape}, point, {stand_in: zeros})
        try:
            match = find_predictor(name, node.owner.op, family, parameters, test)
        except NotAffineError:
            _require_exposures(name, parameters[family.predictor], stand_in, shape, test)
            raise
    site = None if match is None else cell_site(match.site.name, truncated=truncated)
    if match is None or site is None:
        what = distribution_name(rv.owner) if match is None else f"site {match.site.name!r}"
        raise UnsupportedModelError(
            f"{name!r} has a bilinear predictor, and its likelihood ({what}) is none of those supported "
            f"here: {', '.join(cell_site_names())}. Use one of these, or pm.sample."
        )
    _require_plain(rv, match.predictor, stand_in, shape, point, products)
    # The offset is the predictor where inner products and biases are zero.
    at = graph_replace([match.predictor], {stand_in: zeros + offset[0]}, strict=False)[0]
    return CellGroup(
        name=name,
        site=site,
        observed=without_casts(model.rvs_to_values[rv]),
        shape=products.shape,
        rows=products.indices[0],
        cols=products.indices[1],
        offset=_of_cells(at, zeros),
        parameters=tuple(_of_cells(p, zeros) for p in match.parameters),
        link=match.link,
    )


def _of_cells(values: TensorVariable, zeros: TensorVariable) -> TensorVariable:
    """Return values broadcast to all cells, (n,)."""
    return pt.broadcast_to(values, zeros.shape).ravel().astype("float64")


def _require_exposures(
    name: str, parameter: TensorVariable, stand_in: TensorVariable, shape: tuple[int, ...], test: AffineTest
) -> None:
    """Raise if an exposure, a factor of the parameter, is zero: its logarithm could not be part of a predictor."""
    function = test.compile(parameter, [stand_in], without_checks=True)
    x = np.random.default_rng(0).standard_normal(shape).astype(stand_in.dtype)
    zero = (function(x) == 0) & (function(-x) == 0)
    if zero.any() and not zero.all():
        first = first_index(zero)
        raise InvalidDataError(
            f"{name!r} has the exposure 0{at_index(first)}, and zero has no logarithm that could be "
            f"part of a predictor. That cell says nothing of the matrices: leave it out."
        )


def _require_plain(
    rv: TensorVariable,
    predictor: TensorVariable,
    stand_in: TensorVariable,
    shape: tuple[int, ...],
    point: dict[TensorVariable, np.ndarray],
    products: InnerProducts,
) -> None:
    """Raise unless a predictor equals `stand_in`, element by element, plus terms that do not depend on it."""
    values = list(point)
    function = compiled_function([stand_in, *values], predictor, mode=quick_mode(), on_unused_input="ignore")
    rng = np.random.default_rng(0)
    # Away from the start as well, where a learned factor may happen to be one.
    for shift in (0.0, 0.1):
        at = [np.asarray(x + shift * rng.standard_normal(np.shape(x)), dtype=v.dtype) for v, x in point.items()]
        x = rng.standard_normal((2, *shape)).astype(stand_in.dtype)
        first, other = (function(eta, *at) for eta in x)
        if first.shape != x[0].shape or not np.allclose(first - other, x[0] - x[1], rtol=1e-5, atol=1e-5):
            raise _not_plain(rv, products)


def _not_plain(rv: TensorVariable, products: InnerProducts) -> UnsupportedModelError:
    v, u = (matrix.name for matrix in products.matrices)
    return UnsupportedModelError(
        f"The predictor of {rv.name!r} must be the inner products of rows of {v!r} and {u!r}, once, plus offsets; here "
        f"they are multiplied, counted twice, selected or reordered. Write a factor or sign into the prior of {v!r}, "
        f"and a selection into the indices."
    )


def _truncated(likelihood: Likelihood) -> tuple[TensorVariable, list[TensorVariable], bool]:
    """Return the variable without truncation of zeros, its parameters, and whether it was truncated."""
    rv, op = likelihood.rv, likelihood.rv.owner.op
    if not isinstance(op, TruncatedRV):
        return rv, likelihood.parameters, False
    *parameters, lower, upper = likelihood.parameters
    at_one = isinstance(lower, Constant) and np.all(lower.data == 1)
    endless = isinstance(upper, Constant) and np.all(np.isposinf(upper.data))
    if not (at_one and endless):
        raise UnsupportedModelError(
            f"{rv.name!r} is truncated, and for bilinear predictors only zeros can be cut off: give it lower=1 and no "
            f"upper."
        )
    return random_draw(op.base_rv_op, *parameters, size=None, rng=None)[1], parameters, True
