"""Biases of the rows of two matrices among what is added to inner products of these."""

from collections.abc import Sequence

import numpy as np
from pymc import Model
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.bilinear.recognise.matrix_priors import all_latent, is_gaussian
from pymc_ep.graphs.inner_products import InnerProducts, broadcast_vector, indexed_rows, row_counts, same_index
from pymc_ep.graphs.queries import depends_on, elementwise_function_of, evaluated, without_casts

__all__ = ["with_biases"]


def with_biases(
    model: Model, terms: Sequence[TensorVariable], products: InnerProducts, latent: Sequence[str] | None
) -> tuple[list[TensorVariable | None], list[TensorVariable]]:
    """Return the biases of the left and of the right rows, None where there is none, and all other terms.

    Raises
    ------
    UnsupportedModelError
        For terms that are a bias but for how they are written, which would make hyperparameters of it.
    """
    biases: list[TensorVariable | None] = [None, None]
    rest = []
    for term in terms:
        found = _bias(model, term, products, biases)
        if found is None or not all_latent([found[1]], latent):
            rest.append(term)
        else:
            biases[found[0]] = found[1]
    _require_own_index(model, rest, products, latent)
    _require_plain_biases(model, rest, products, latent)
    return biases, rest


def _bias(
    model: Model,
    term: TensorVariable,
    products: InnerProducts,
    known: Sequence[TensorVariable | None],
) -> tuple[int, TensorVariable] | None:
    """Return of which rows, left (0) or right (1), a term is a bias, and that bias; None where it is none.

    Where rows and columns of all cells are equal, the variable of the index tells, or else the length of the bias.
    """
    bias, places = _vector_and_places(term, products)
    if bias not in model.free_RVs or not is_gaussian(model, bias, 1) or any(bias is one for one in known):
        # One vector for rows and columns alike is no pair of independent ones.
        return None
    places = [k for k in places if known[k] is None]
    if places:
        length, *lengths = evaluated(row_counts(bias, *products.matrices))
        places = [k for k in places if lengths[k] == length]
    return (places[0], bias) if places else None


def _vector_and_places(term: TensorVariable, products: InnerProducts) -> tuple[TensorVariable | None, list[int]]:
    """Return the vector whose entries a term takes or repeats, and of which rows it may be the bias, best first."""
    if products.graph.ndim == 2:
        vector, *axes = broadcast_vector(term) or (None,)
        return vector, axes
    vector, index = indexed_rows(term) or (None, None)
    index = None if index is None else without_casts(index)
    places = [k for k in range(2) if index is not None and same_index(index, products.indices[k])]
    return vector, sorted(places, key=lambda k: products.indices[k] is not index)


def _require_own_index(
    model: Model, terms: Sequence[TensorVariable], products: InnerProducts, latent: Sequence[str] | None
) -> None:
    """Raise where a vector that could be a bias is taken at the indices of a matrix by another variable."""
    for vector, index in filter(None, map(indexed_rows, terms)):
        if not _may_be_bias(model, vector, latent):
            continue
        if any(same_index(without_casts(index), own) for own in products.indices):
            continue
        for matrix, own in zip(products.matrices, products.indices):
            if depends_on([index, own], model.basic_RVs):
                continue
            here, there = evaluated([index, own])
            if np.array_equal(here, there):
                raise UnsupportedModelError(
                    f"{vector.name!r} is taken at the indices at which {matrix.name!r} is, but these are two "
                    f"variables, so that it cannot be told whether {vector.name!r} is a bias of its rows. Take both at "
                    f"one, such as rows = pm.Data('rows', ...)."
                )


def _require_plain_biases(
    model: Model, terms: Sequence[TensorVariable], products: InnerProducts, latent: Sequence[str] | None
) -> None:
    """Raise where something is done to a bias, which would make a hyperparameter of it."""
    for graph in ancestors(terms, blockers=model.basic_RVs):
        vector, places = _vector_and_places(graph, products) if isinstance(graph, TensorVariable) else (None, [])
        if not places or (any(graph is term for term in terms) and vector in model.free_RVs):
            continue
        for rv in model.free_RVs:
            if _may_be_bias(model, rv, latent) and elementwise_function_of(vector, rv, model.basic_RVs):
                raise UnsupportedModelError(
                    f"{rv.name!r} is a bias of the rows of {products.matrices[places[0]].name!r} of which a sign, a "
                    f"factor or something else makes another. Write its mean and scale into its prior, "
                    f"pm.Normal({rv.name!r}, mu, sd, ...), and add it as it is, or hold it at its mode by latent=[...]."
                )


def _may_be_bias(model: Model, rv: TensorVariable, latent: Sequence[str] | None) -> bool:
    return rv in model.free_RVs and is_gaussian(model, rv, 1) and all_latent([rv], latent)
