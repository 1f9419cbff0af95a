"""Recognise a bilinear model: one likelihood, in terms of sums of products of rows of two Gaussian matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.continuous import FlatRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import quick_mode, random_draw
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.forms.bilinear import Bilinear, CellGroup, Entries
from pymc_ep.recognise.families import family_of
from pymc_ep.recognise.graph import depends_on, without_casts
from pymc_ep.recognise.hyperparameters import follows_from, hyper_fields, relevant_variables
from pymc_ep.recognise.inner_products import InnerProducts, inner_products, is_sum, same_index, taken, terms
from pymc_ep.recognise.predictor import AffineTest, NotAffineError, find_predictor
from pymc_ep.recognise.random_nodes import distribution_name, parameters_of
from pymc_ep.sites.cells import cell_site, cell_site_names

__all__ = ["bilinear_sites", "recognise_bilinear"]


def bilinear_sites() -> list[tuple[str, str, Any]]:
    """Return the likelihoods that inner products can have: distribution, link and site, for the table."""
    return [(f"{name}, bilinear", link, cell_site(site, truncated=False)) for name, link, site in _LIKELIHOODS]


_LIKELIHOODS = (
    ("Poisson", "exp", "poisson"),
    ("NegBinomial", "exp", "negative_binomial"),
    ("Bernoulli", "logistic", "logit"),
    ("Poisson", "softplus", "softplus_poisson"),
    ("Normal", "identity", "normal"),
)


def recognise_bilinear(
    model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()
) -> Bilinear | None:
    """Read a model as one likelihood of inner products of rows of two Gaussian matrices.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        Variables to integrate out. A model is read like this only if both matrices are among them, or none are named.
    wanted : sequence of str, optional
        Variables to predict, which there are none of in this form.

    Raises
    ------
    UnsupportedModelError
        Where there are such inner products, and something else about the model does not fit.
    """
    found = [(rv, products) for rv in model.observed_RVs if (products := _products(model, rv, latent)) is not None]
    if not found or not _all_latent(found[0][1].matrices, latent):
        return None
    rv, products = found[0]
    imputed = f"{rv.name.removesuffix('_observed')}_unobserved"
    if rv.name.endswith("_observed") and imputed in model.named_vars:
        raise UnsupportedModelError(
            f"{imputed.removesuffix('_unobserved')!r} has missing observations, which PyMC draws as {imputed!r}. Cells "
            f"that are not given are missing in a bilinear model; leave these out."
        )
    if others := [other.name for other in model.observed_RVs if other is not rv]:
        raise UnsupportedModelError(
            f"{rv.name!r} is a bilinear likelihood, and beside one of these a model can have no other observed "
            f"variable ({others[0]!r}). Fit them in models of their own."
        )
    return _build(model, rv, products, latent)


def _all_latent(variables: Sequence[TensorVariable], latent: Sequence[str] | None) -> bool:
    return latent is None or all(v.name in ([latent] if isinstance(latent, str) else latent) for v in variables)


def _products(model: Model, rv: TensorVariable, latent: Sequence[str] | None) -> InnerProducts | None:
    """Return the inner products that a likelihood depends on; None where there are none."""
    for graph in ancestors(parameters_of(rv), blockers=model.basic_RVs):
        products = inner_products(graph)
        if products is None or not all(matrix in model.free_RVs for matrix in products.matrices):
            continue
        v, u = products.matrices
        gaussian = [one for one in (v, u) if _gaussian(model, one, 2)]
        if len(gaussian) == 1 and latent is None:
            (other,) = (one for one in (v, u) if one is not gaussian[0])
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


def _gaussian(model: Model, rv: TensorVariable, ndim: int) -> bool:
    """Whether a variable has independent Gaussian entries, or a flat prior, or is a matrix of alike Gaussian rows."""
    op = None if rv.owner is None else rv.owner.op
    known = isinstance(op, NormalRV | FlatRV) or (ndim == 2 and _covariance(rv) is not None)
    return known and rv.ndim == ndim and model.rvs_to_transforms.get(rv) is None


def _covariance(rv: TensorVariable) -> TensorVariable | None:
    """Return the covariance that all rows of a multivariate normal variable have; None where there is none such."""
    if rv.owner is None or not isinstance(rv.owner.op, MvNormalRV):
        return None
    graph = rv.owner.op.dist_params(rv.owner)[1]
    while graph.ndim > 2 and graph.type.broadcastable[0]:
        graph = graph[0]
    return graph if graph.ndim == 2 else None


def _build(model: Model, rv: TensorVariable, products: InnerProducts, latent: Sequence[str] | None) -> Bilinear:
    eta = _predictor(model, rv, products.graph)
    added = terms(eta)
    if sum(term is products.graph for term in added) != 1:
        raise _not_plain(rv, products)
    biases: list[TensorVariable | None] = [None, None]
    rest = []
    for term in added:
        if term is products.graph:
            continue
        place = _bias_place(model, term, products, biases)
        if place is None or not _all_latent([taken(term)[0]], latent):  # type: ignore[index]
            rest.append(term)
        else:
            biases[place] = taken(term)[0]  # type: ignore[index]
    latents = [*products.matrices, *(b for b in biases if b is not None)]
    offset = pt.add(*rest, pt.zeros(())) if rest else pt.zeros(())
    _require_apart(model, rv, eta, latents, rest, products)
    relevant = relevant_variables(model)
    hyper = [v for v in relevant if v not in latents]
    cells = _cells(model, rv, eta, offset, products, hyper)
    stand_ins = {v: v.type(f"{v.name}_values") for v in latents}
    deterministics = [d for d in model.deterministics if follows_from(model, d, relevant)]
    graphs = graph_replace(deterministics, stand_ins, strict=False) if deterministics else []
    own = {v: _entries(model, v, stand_ins[v]) for v in latents}
    pairs = tuple(None if b is None else own[b] for b in biases)
    return Bilinear(
        **hyper_fields(model, hyper),
        matrices=(own[products.matrices[0]], own[products.matrices[1]]),
        biases=(pairs[0], pairs[1]),
        cells=cells,
        deterministics=dict(zip([d.name for d in deterministics], model.replace_rvs_by_values(graphs))),
        ignored=tuple(v.name for v in model.free_RVs if v not in relevant),
    )


def _predictor(model: Model, rv: TensorVariable, products: TensorVariable) -> TensorVariable:
    """Return the last sum that inner products are a term of."""
    while True:
        larger = [
            v
            for v in ancestors(parameters_of(rv), blockers=model.basic_RVs)
            if is_sum(v) and products in v.owner.inputs and v.ndim == 1
        ]
        if not larger:
            return products
        products = larger[0]


def _bias_place(
    model: Model,
    term: TensorVariable,
    products: InnerProducts,
    known: Sequence[TensorVariable | None],
) -> int | None:
    """Return whether a term is a bias of the left (0) or of the right (1) rows; None where it is neither.

    Where rows and columns of all cells are equal, the variable of the index tells, or else the length of the bias.
    """
    rows = taken(term)
    if rows is None or rows[0] not in model.free_RVs or not _gaussian(model, rows[0], 1):
        return None
    if any(rows[0] is bias for bias in known):
        # One vector for rows and columns alike is no pair of independent ones.
        return None
    bias, index = rows[0], without_casts(rows[1])
    places = [k for k in range(2) if known[k] is None and same_index(index, products.indices[k])]
    if places:
        length, *lengths = _lengths(bias, *products.matrices)
        places = [k for k in places if lengths[k] == length]
    return min(places, key=lambda k: products.indices[k] is not index, default=None)


def _lengths(*variables: TensorVariable) -> list[int]:
    """Return the numbers of rows of random variables, which are not drawn for that."""
    lengths = [pt.as_tensor(shape[0]) for shape in infer_shape(variables, (), ())]
    return [int(n) for n in pytensor.function([], lengths, mode=quick_mode(), on_unused_input="ignore")()]


def _require_apart(
    model: Model,
    rv: TensorVariable,
    eta: TensorVariable,
    latents: Sequence[TensorVariable],
    rest: Sequence[TensorVariable],
    products: InnerProducts,
) -> None:
    """Raise where matrices or biases enter elsewhere than in the predictor."""
    graphs = graph_replace(parameters_of(rv), {eta: eta.type()}, strict=False)
    for v in latents:
        others = [p for other in model.free_RVs for p in parameters_of(other)]
        if depends_on([*graphs, *rest, *products.indices, *others, *model.potentials], [v]):
            raise UnsupportedModelError(
                f"{v.name!r} enters the model elsewhere than in the inner products of {rv.name!r}, or as a bias of "
                f"their rows: write the predictor as (V[rows] * U[cols]).sum(-1) + offset, with other variables in "
                f"scales and offsets, or use pm.sample."
            )


def _cells(
    model: Model,
    rv: TensorVariable,
    eta: TensorVariable,
    offset: TensorVariable,
    products: InnerProducts,
    hyper: Sequence[TensorVariable],
) -> CellGroup:
    """Return the likelihood of the predictor."""
    name, (node, parameters, truncated) = rv.name, _truncated(rv)
    family = family_of(node)
    stand_in = pt.vector("predictor", dtype=eta.dtype)
    parameters = graph_replace(parameters, {eta: stand_in}, strict=False)
    parameters, offset = (list(model.replace_rvs_by_values(part)) for part in (parameters, [offset]))
    start = model.initial_point()
    point = {model.rvs_to_values[v]: start[model.rvs_to_values[v].name] for v in hyper}
    indices = products.indices
    size = int(pt.as_tensor(indices[0]).shape[0].eval())
    zeros = {stand_in: pt.zeros_like(indices[0], dtype=stand_in.dtype)}
    found = None
    if family is not None:
        test = AffineTest({stand_in: (size,)}, point, zeros)
        try:
            found = find_predictor(name, node.owner.op, family, parameters, test)
        except NotAffineError:
            _require_exposures(name, parameters[family.predictor], stand_in, size, test)
            raise
    site = None if found is None else cell_site(found.site.name, truncated=truncated)
    if found is None or site is None:
        what = distribution_name(rv.owner) if found is None else f"site {found.site.name!r}"
        raise UnsupportedModelError(
            f"{name!r} has a bilinear predictor, and its likelihood ({what}) is none of those that there are for "
            f"these: {', '.join(cell_site_names())}. Use one of these, or pm.sample."
        )
    _require_plain(rv, found.predictor, stand_in, size, point, products)
    at = graph_replace([found.predictor], {stand_in: pt.zeros_like(zeros[stand_in]) + offset[0]}, strict=False)[0]
    return CellGroup(
        name=name,
        site=site,
        observed=without_casts(model.rvs_to_values[rv]),
        rows=indices[0],
        cols=indices[1],
        offset=pt.broadcast_to(at, zeros[stand_in].shape).astype("float64"),
        parameters=tuple(pt.broadcast_to(p, zeros[stand_in].shape).astype("float64") for p in found.parameters),
        link=found.link,
    )


def _require_exposures(
    name: str, parameter: TensorVariable, stand_in: TensorVariable, size: int, test: AffineTest
) -> None:
    """Raise where a factor of the parameter is zero: cells have no site for what has no logarithm."""
    function = test.compile(parameter, [stand_in], without_checks=True)
    x = np.random.default_rng(0).standard_normal(size).astype(stand_in.dtype)
    zero = (function(x) == 0) & (function(-x) == 0)
    if zero.any() and not zero.all():
        raise InvalidDataError(
            f"{name!r} has the exposure 0 at index {int(np.argmax(zero))}, and zero has no logarithm that could be "
            f"part of a predictor. That cell says nothing of the matrices: leave it out."
        )


def _require_plain(
    rv: TensorVariable,
    predictor: TensorVariable,
    stand_in: TensorVariable,
    size: int,
    point: dict[TensorVariable, np.ndarray],
    products: InnerProducts,
) -> None:
    """Raise unless a predictor is its sum, element by element, plus what is free of it."""
    values = list(point)
    function = pytensor.function([stand_in, *values], predictor, mode=quick_mode(), on_unused_input="ignore")
    rng = np.random.default_rng(0)
    # Away from the start, too: there a factor that is learned may be one.
    for shift in (0.0, 0.1):
        at = [np.asarray(x + shift * rng.standard_normal(np.shape(x)), dtype=v.dtype) for v, x in point.items()]
        x = rng.standard_normal((2, size)).astype(stand_in.dtype)
        one, other = (function(part, *at) for part in x)
        if one.shape != x[0].shape or not np.allclose(one - other, x[0] - x[1], rtol=1e-5, atol=1e-5):
            raise _not_plain(rv, products)


def _not_plain(rv: TensorVariable, products: InnerProducts) -> UnsupportedModelError:
    v, u = (matrix.name for matrix in products.matrices)
    return UnsupportedModelError(
        f"The predictor of {rv.name!r} must be the inner products of rows of {v!r} and {u!r}, once, plus offsets; here "
        f"they are multiplied, counted twice, selected or reordered. Write a factor or sign into the prior of {v!r}, "
        f"and a selection into the indices."
    )


def _truncated(rv: TensorVariable) -> tuple[TensorVariable, list[TensorVariable], bool]:
    """Return a variable of the distribution that is cut off at zero, its parameters, and whether one is cut off."""
    op = rv.owner.op
    if not isinstance(op, TruncatedRV):
        return rv, parameters_of(rv), False
    *own, lower, upper = parameters_of(rv)
    at_one = isinstance(lower, Constant) and np.all(lower.data == 1)
    endless = isinstance(upper, Constant) and np.all(np.isposinf(upper.data))
    if not (at_one and endless):
        raise UnsupportedModelError(
            f"{rv.name!r} is truncated, and for bilinear predictors only zeros can be cut off: give it lower=1 and no "
            f"upper."
        )
    return random_draw(op.base_rv_op, *own, size=None, rng=None)[1], own, True


def _entries(model: Model, rv: TensorVariable, stand_in: TensorVariable) -> Entries:
    """Return the prior of a matrix or bias."""
    shape = infer_shape([rv], (), ())[0]
    parts = []
    if not isinstance(rv.owner.op, FlatRV):
        mu, scale = (part.astype("float64") for part in rv.owner.op.dist_params(rv.owner))
        covariance = _covariance(rv)
        # With the sign of what can be no standard deviation, so that it is seen.
        variance = scale * pt.abs(scale) if covariance is None else pt.diagonal(covariance)
        parts = [pt.broadcast_to(p, shape).astype("float64") for p in (mu, variance)]
        parts += [] if covariance is None else [covariance.astype("float64")]
    return Entries(rv.name, stand_in, tuple(shape), *(model.replace_rvs_by_values(parts) if parts else (None, None)))
