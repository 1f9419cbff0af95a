"""From a latent Gaussian form with sparse fields to the sparse linear form, whose priors are sites as well."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.sparse_field import SparseFieldRV
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.latent_gaussian import LatentGaussian, NoiseBlock, SiteGroup
from pymc_ep.forms.moments import deviations_of
from pymc_ep.forms.sparse_linear import SparseLinear
from pymc_ep.operators import apply_operator
from pymc_ep.recognise.families import family_of
from pymc_ep.recognise.noise import NoiseGraphs
from pymc_ep.recognise.random_nodes import parameters_of
from pymc_ep.sites.base import Site, get_site

__all__ = ["with_potentials"]


def with_potentials(
    form: LatentGaussian, latents: Sequence[TensorVariable], graphs: NoiseGraphs
) -> LatentGaussian | SparseLinear:
    """Return the form itself, or where a latent variable is a sparse field, one in which all priors are sites."""
    if not any(isinstance(rv.owner.op, SparseFieldRV) for rv in latents):
        return form
    blocks, potentials, maps = [], [], []
    for rv, block in zip(latents, form.blocks):
        if isinstance(rv.owner.op, SparseFieldRV):
            potentials.append(_of_field(rv, block, graphs))
            maps.append((len(blocks), rv.owner.op.linear_map))
        elif not block.flat:
            block, potential = _of_gaussian(block)
            potentials.append(potential)
            maps.append(None)
        blocks.append(block)
    parts = {f.name: getattr(form, f.name) for f in fields(form)}
    return SparseLinear(**parts | {"blocks": tuple(blocks)}, potentials=tuple(potentials), maps=tuple(maps))


def _of_field(rv: TensorVariable, block: NoiseBlock, graphs: NoiseGraphs) -> SiteGroup:
    op = rv.owner.op
    potential = op.potential_of(graphs(parameters_of(rv)))
    family = family_of(potential)
    own = parameters_of(potential)
    coefficients = apply_operator(op.linear_map, block.noise).ravel()
    site, parameters = get_site(family.links["identity"]), [own[i] for i in family.parameters.values()]
    return _potential(rv.name, site, coefficients, parameters, op.coefficients)


def _of_gaussian(block: NoiseBlock) -> tuple[NoiseBlock, SiteGroup]:
    """Return a block of independent Gaussian noise as a flat one with normal sites."""
    deviations = deviations_of(block)
    if block.factor is not None or deviations is None:
        raise UnsupportedModelError(
            f"{block.name!r} has a Gaussian prior whose values depend on each other, which does not go together with "
            f"a SparseField. Give it independent values (pm.Normal), or write its prior as a SparseField with "
            f"potential=pm.Normal.dist(0, sigma) and an operator that whitens it."
        )
    size = deviations.shape[0]
    excess = block.log_excess + 0.5 * np.log(2 * np.pi) * size
    flat = replace(block, covariance=pt.eye(size), root=pt.eye(size), log_excess=excess, flat=True)
    return flat, _potential(block.name, get_site("normal"), block.noise.ravel(), [deviations], size)


def _potential(
    name: str, site: Site, coefficients: TensorVariable, parameters: Sequence[TensorVariable], size: Any
) -> SiteGroup:
    return SiteGroup(
        name=name,
        site=site,
        options={},
        observed=pt.zeros(size),
        predictor=coefficients,
        parameters=tuple(pt.broadcast_to(p, (size,)).astype("float64") for p in parameters),
        link="identity",
    )
