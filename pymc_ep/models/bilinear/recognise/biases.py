"""Recognise the biases of rows among the terms of a bilinear predictor."""

from collections.abc import Sequence

import numpy as np
from pymc import Model
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.inner_products import InnerProducts, broadcast_vector, indexed_rows, row_counts, same_index
from pymc_ep.graphs.queries import depends_on, elementwise_function_of, evaluated, without_casts
from pymc_ep.models.bilinear.recognise.matrix_priors import all_latent, is_gaussian

__all__ = ["with_biases"]


def with_biases(
    model: Model, terms: Sequence[TensorVariable], products: InnerProducts, latent: Sequence[str] | None
) -> tuple[list[TensorVariable | None], list[TensorVariable]]:
    """Return the biases of the left and of the right rows, each None if there is none, and all other terms.

    Raises
    ------
    UnsupportedModelError
        For a bias that is written in a form that would be read as hyperparameters.
    """
    biases: list[TensorVariable | None] = [None, None]
    rest = []
    for term in terms:
        side_and_bias = _bias(model, term, products, biases)
        if side_and_bias is None or not all_latent([side_and_bias[1]], latent):
            rest.append(term)
        else:
            biases[side_and_bias[0]] = side_and_bias[1]
    _require_own_index(model, rest, products, latent)
    _require_plain_biases(model, rest, products, latent)
    return biases, rest


def _bias(
    model: Model,
    term: TensorVariable,
    products: InnerProducts,
    biases: Sequence[TensorVariable | None],
) -> tuple[int, TensorVariable] | None:
    """Return the side, left (0) or right (1), whose bias a term is, and the bias; None if it is no bias.

    If rows and columns of all cells are equal, the side follows from the index variable, or else from the length of the
    bias.
    """
    bias, sides = _vector_and_sides(term, products)
    if bias not in model.free_RVs or not is_gaussian(model, bias, 1) or any(bias is other for other in biases):
        # A single vector for both sides is no pair of independent biases.
        return None
    sides = [k for k in sides if biases[k] is None]
    if sides:
        length, *lengths = evaluated(row_counts(bias, *products.matrices))
        sides = [k for k in sides if lengths[k] == length]
    return (sides[0], bias) if sides else None


def _vector_and_sides(term: TensorVariable, products: InnerProducts) -> tuple[TensorVariable | None, list[int]]:
    """Return the vector that a term indexes or broadcasts, and the sides whose bias it may be, likeliest first."""
    if products.graph.ndim == 2:
        vector, *axes = broadcast_vector(term) or (None,)
        return vector, axes
    vector, index = indexed_rows(term) or (None, None)
    index = None if index is None else without_casts(index)
    sides = [k for k in range(2) if index is not None and same_index(index, products.indices[k])]
    return vector, sorted(sides, key=lambda k: products.indices[k] is not index)


def _require_own_index(
    model: Model, terms: Sequence[TensorVariable], products: InnerProducts, latent: Sequence[str] | None
) -> None:
    """Raise if a possible bias is indexed with the values, but not the variable, of a matrix's index."""
    for vector, index in filter(None, map(indexed_rows, terms)):
        if not _may_be_bias(model, vector, latent):
            continue
        if any(same_index(without_casts(index), matrix_index) for matrix_index in products.indices):
            continue
        for matrix, matrix_index in zip(products.matrices, products.indices):
            if depends_on([index, matrix_index], model.basic_RVs):
                continue
            bias_places, matrix_places = evaluated([index, matrix_index])
            if np.array_equal(bias_places, matrix_places):
                raise UnsupportedModelError(
                    f"{vector.name!r} is taken at the indices at which {matrix.name!r} is, but these are two "
                    f"variables, so that it cannot be told whether {vector.name!r} is a bias of its rows. Take both at "
                    f"one, such as rows = pm.Data('rows', ...)."
                )


def _require_plain_biases(
    model: Model, terms: Sequence[TensorVariable], products: InnerProducts, latent: Sequence[str] | None
) -> None:
    """Raise if a bias is transformed, by a factor say, and so would be read as a hyperparameter."""
    for graph in ancestors(terms, blockers=model.basic_RVs):
        vector, sides = _vector_and_sides(graph, products) if isinstance(graph, TensorVariable) else (None, [])
        if not sides or (any(graph is term for term in terms) and vector in model.free_RVs):
            continue
        for rv in model.free_RVs:
            if _may_be_bias(model, rv, latent) and elementwise_function_of(vector, rv, model.basic_RVs):
                raise UnsupportedModelError(
                    f"{rv.name!r} is a bias of the rows of {products.matrices[sides[0]].name!r} of which a sign, a "
                    f"factor or something else makes another. Write its mean and scale into its prior, "
                    f"pm.Normal({rv.name!r}, mu, sd, ...), and add it as it is, or hold it at its mode by latent=[...]."
                )


def _may_be_bias(model: Model, rv: TensorVariable, latent: Sequence[str] | None) -> bool:
    return rv in model.free_RVs and is_gaussian(model, rv, 1) and all_latent([rv], latent)
