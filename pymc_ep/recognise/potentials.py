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
from pymc_ep.recognise.graph import depends_on
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
        _require_observed(rv, block, form)
        if isinstance(rv.owner.op, SparseFieldRV):
            potentials.append(_of_field(rv, block, graphs))
            maps.append((len(blocks), rv.owner.op.linear_map))
        elif not block.flat:
            block, potential = _of_gaussian(block, rv.type.shape)
            potentials.append(potential)
            maps.append(None)
        blocks.append(block)
    parts = {f.name: getattr(form, f.name) for f in fields(form)}
    return SparseLinear(**parts | {"blocks": tuple(blocks)}, potentials=tuple(potentials), maps=tuple(maps))


def _require_observed(rv: TensorVariable, block: NoiseBlock, form: LatentGaussian) -> None:
    """Raise for a variable that is there to be predicted, which has no site among those of a fit."""
    if depends_on([group.predictor for group in form.groups], [block.noise]):
        return
    if isinstance(rv.owner.op, SparseFieldRV):
        raise UnsupportedModelError(
            f"{rv.name!r} is a SparseField that no observation depends on; its prior is improper, so that there is "
            f"nothing to predict. Leave it out."
        )
    raise UnsupportedModelError(
        f"{rv.name!r} is a Gaussian variable that no observation depends on; beside a SparseField it has no prediction "
        f"in closed form. Draw it by pm.sample_posterior_predictive(idata, var_names=[{rv.name!r}]), or predict a "
        f"Deterministic of variables of the fit."
    )


def _of_field(rv: TensorVariable, block: NoiseBlock, graphs: NoiseGraphs) -> SiteGroup:
    op = rv.owner.op
    potential = op.potential_of(graphs(parameters_of(rv)))
    family = family_of(potential)
    own = parameters_of(potential)
    coefficients = apply_operator(op.linear_map, block.noise).ravel()
    site, parameters = get_site(family.links["identity"]), [own[i] for i in family.parameters.values()]
    return _potential(rv.name, site, coefficients, parameters, op.coefficients)


def _of_gaussian(block: NoiseBlock, sides: Sequence[int | None]) -> tuple[NoiseBlock, SiteGroup]:
    """Return a block of independent Gaussian noise, with the sides that are known, as a flat one with normal sites."""
    deviations = deviations_of(block)
    if block.factor is not None or deviations is None:
        raise UnsupportedModelError(
            f"{block.name!r} has a Gaussian prior whose values depend on each other, which does not go together with "
            f"a SparseField. Give it independent values (pm.Normal), or write its prior as a SparseField with "
            f"potential=pm.Normal.dist(0, sigma) and an operator that whitens it."
        )
    # Not the length of the deviations: hyperparameters may take part in these, and never do in observations.
    known = [side if n is None else n for n, side in zip(sides, block.shape)]
    size = pt.prod(pt.stack(known)) if known else pt.constant(1)
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
