"""From a latent Gaussian form with sparse priors to the sparse linear form, whose priors are sites as well."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.mixture import MixtureRV
from pytensor.tensor.random.basic import LaplaceRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.families import family_of
from pymc_ep.graphs.gaussian_variables import Gaussian, flat_prior, gaussian_of
from pymc_ep.graphs.matrix_parameters import depends_on_unknowns
from pymc_ep.graphs.queries import depends_on, has_slopes_free_of
from pymc_ep.graphs.random_nodes import parameters_of
from pymc_ep.models.latent_gaussian.form import LatentGaussian, NoiseBlock, SiteGroup
from pymc_ep.models.latent_gaussian.prior_moments import deviations_of
from pymc_ep.models.latent_gaussian.recognise.noise_blocks import NoiseGraphs
from pymc_ep.models.latent_gaussian.recognise.recogniser import recognise_latent_gaussian
from pymc_ep.models.sparse_linear.distributions.sparse_field import SparseFieldRV
from pymc_ep.models.sparse_linear.distributions.wavelet_tree import WaveletTreeRV, each_probability
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.modes import quick_mode
from pymc_ep.numerics.factorisation.quad_forest import quad_forest
from pymc_ep.operators import LinearMap, apply_operator
from pymc_ep.sites.base import Site, get_site
from pymc_ep.sites.tree_mixture import tree_mixture

__all__ = ["SPARSE_PRIORS", "field_sites", "recognise_sparse_linear"]

_PREDICTORS = np.array([0.3, 0.8, 1.7])
"""Predictors at which a density is tested for being even: a few of different sizes, so that none agrees by chance."""
_PARAMETER = 0.7
"""Value of all parameters where a density is tested for being even: positive and below 1, so inside most domains."""


def recognise_sparse_linear(
    model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()
) -> LatentGaussian | SparseLinear | None:
    """Read a model as sparse linear; None if it has neither a field with sparse coefficients nor sparse variables.

    Laplace variables, and mixtures of two normals about one location, that do not fit the form are hyperparameters,
    unless `latent` names them. If `latent` names no variable with a sparse prior, the form is latent Gaussian. For
    parameters and errors see `recognise_latent_gaussian`.
    """
    has_field = any(isinstance(rv.owner.op, tuple(_FIELDS)) for rv in model.free_RVs)
    has_sparse = any(_sparse_prior(rv) is not None for rv in model.free_RVs)
    if has_sparse and latent is None:
        # Whatever is predicted later, the form is that of the fit.
        try:
            form = recognise_latent_gaussian(model, finish=_with_potentials, prior=_prior_of, two=False)
        except UnsupportedModelError:
            has_sparse = False
        else:
            if not wanted:
                return form
    if not has_field and not has_sparse:
        return None
    prior = _prior_of if has_sparse else gaussian_of
    return recognise_latent_gaussian(model, latent, wanted, finish=_with_potentials, prior=prior, two=False)


class _SparsePrior(NamedTuple):
    """Sparse prior of each value of a variable, about a location.

    Attributes
    ----------
    location : TensorVariable
    scales : tuple of TensorVariable
        Scale of a Laplace density, or scales of the two normals of a mixture.
    weight : TensorVariable, optional
        Probability of the second normal.
    """

    location: TensorVariable
    scales: tuple[TensorVariable, ...]
    weight: TensorVariable | None = None


def _sparse_prior(rv: TensorVariable) -> _SparsePrior | None:
    """Return the sparse prior of a variable; None where it has none."""
    if isinstance(rv.owner.op, LaplaceRV):
        location, scale = parameters_of(rv)
        return _SparsePrior(location, (scale,))
    return _mixture_prior(rv) if isinstance(rv.owner.op, MixtureRV) else None


def _mixture_prior(rv: TensorVariable) -> _SparsePrior | None:
    """Return the prior of a mixture of two normals about a constant location; None for any other mixture."""
    _, weights, *components = rv.owner.inputs
    if not all(isinstance(component.owner.op, NormalRV) for component in components):
        return None
    if len(components) == 1 and components[0].type.shape[-1] == 2:
        means, scales = (_two_of(parameter) for parameter in parameters_of(components[0]))
    elif len(components) == 2:
        means, scales = zip(*map(parameters_of, components))
    else:
        return None
    if depends_on_unknowns(pt.stack(pt.broadcast_arrays(*means))):
        return None
    first, second = (mean.eval(mode=quick_mode()) for mean in means)
    if np.any(first != second):
        return None
    return _SparsePrior(means[0], scales, weights[..., 1])


def _two_of(parameter: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return the two entries along the last axis; a single entry, shared by both normals, is returned twice."""
    if parameter.ndim == 0 or parameter.type.shape[-1] == 1:
        return parameter, parameter
    return parameter[..., 0], parameter[..., 1]


def _prior_of(rv: TensorVariable) -> Gaussian | None:
    """Return a variable's Gaussian prior, if any; for a sparse prior a flat one about its location.

    The potentials of a sparse prior become sites, see `_with_potentials`.
    """
    if (sparse := _sparse_prior(rv)) is None:
        return gaussian_of(rv)
    inputs = sparse.scales if sparse.weight is None else (*sparse.scales, sparse.weight)
    return replace(flat_prior(rv), mean=lambda shape: sparse.location, covariance_inputs=inputs)


def _with_potentials(
    form: LatentGaussian, latents: Sequence[TensorVariable], graphs: NoiseGraphs
) -> LatentGaussian | SparseLinear:
    """Return the form itself; if a latent variable has a sparse prior, the form with all priors as sites."""
    sparse_priors = [_sparse_prior(rv) for rv in latents]
    if not any(isinstance(rv.owner.op, tuple(_FIELDS)) or sparse for rv, sparse in zip(latents, sparse_priors)):
        return form
    for group in form.factors:
        _require_independent(group)
        _require_signed(group, may_fall=group in form.potentials)
    blocks: list[NoiseBlock] = []
    potentials = list(form.potentials)
    maps: list[tuple[int, LinearMap] | None] = [None] * len(potentials)
    for rv, sparse, block in zip(latents, sparse_priors, form.blocks):
        _require_observed(rv, block, form)
        if isinstance(rv.owner.op, tuple(_FIELDS)):
            for potential, linear_map in _FIELDS[type(rv.owner.op)](rv, block, graphs):
                potentials.append(potential)
                maps.append((len(blocks), linear_map))
        elif sparse is not None:
            _require_constant_map(rv, block, form)
            potentials.append(_of_sparse(rv, sparse, block, graphs))
            maps.append(None)
        elif not block.flat:
            block, potential = _of_gaussian(block, rv.type.shape)
            potentials.append(potential)
            maps.append(None)
        blocks.append(block)
    attributes = {f.name: getattr(form, f.name) for f in fields(form)}
    replaced = {"blocks": tuple(blocks), "potentials": tuple(potentials)}
    return SparseLinear(**attributes | replaced, maps=tuple(maps))


def _require_independent(group: SiteGroup) -> None:
    if group.correlated:
        raise UnsupportedModelError(
            f"{group.name!r} is an observed vector of correlated values, which does not go together with a sparse "
            f"prior. Multiply mean and data by the inverse of the Cholesky factor of its covariance, and observe the "
            f"result as pm.Normal with sigma=1."
        )


def _require_signed(group: SiteGroup, *, may_fall: bool) -> None:
    """Raise for a likelihood that is an even function of the predictor.

    Registered sites are never even. The density of an interpreted site is compared at a few predictors and their
    negatives, at an observation and parameters inside the domain of most densities. The predictor of a potential may be
    a residual: with `may_fall`, a density that decreases from zero on is accepted, as it has one mode.
    """
    if not group.site.interpreted:
        return
    eta = pt.dvector("eta")
    values = [pt.constant(_PARAMETER)] * len(group.parameters)
    density = compiled_function([eta], group.site.logp(pt.constant(1.0), eta, *values), mode=quick_mode())
    with np.errstate(all="ignore"):
        at_eta, at_minus_eta = density(_PREDICTORS), density(-_PREDICTORS)
    if may_fall and np.all(np.diff(at_eta) < 0):
        return
    if np.all(np.isfinite(at_eta)) and np.ptp(at_eta) > 0 and np.allclose(at_eta, at_minus_eta, rtol=1e-10, atol=0.0):
        raise UnsupportedModelError(
            f"The density of {group.name!r} is the same for a predictor and its negative, as where that is squared "
            f"or its absolute value is taken. A sparse linear model needs predictors that are linear in the field, so "
            f"that the posterior has one mode: leave the square out."
        )


def _require_observed(rv: TensorVariable, block: NoiseBlock, form: LatentGaussian) -> None:
    """Raise for a variable that no observation depends on: it has no predictions in this form."""
    if depends_on([group.predictor for group in form.factors], [block.noise]):
        return
    if isinstance(rv.owner.op, tuple(_FIELDS)):
        raise UnsupportedModelError(
            f"{rv.name!r} is a field with sparse coefficients that no observation depends on, so that there is nothing "
            f"to predict. Leave it out."
        )
    raise UnsupportedModelError(
        f"{rv.name!r} is a Gaussian variable that no observation depends on; beside a SparseField it has no prediction "
        f"in closed form. Draw it by pm.sample_posterior_predictive(idata, var_names=[{rv.name!r}]), or predict a "
        f"Deterministic of variables of the fit."
    )


def _require_constant_map(rv: TensorVariable, block: NoiseBlock, form: LatentGaussian) -> None:
    """Raise UnsupportedModelError if a hyperparameter takes part in a linear map of a model with a sparse variable."""
    for group in form.factors:
        for other in form.blocks:
            if has_slopes_free_of(group.predictor, [other.noise], form.hyper_values):
                continue
            raise UnsupportedModelError(
                f"{rv.name!r} has a sparse prior, beside which all predictors need linear maps that are constant, and "
                f"a hyperparameter takes part in that from {other.name!r} to {group.name!r}. Put the scale into the "
                f"prior, as in pm.Laplace({rv.name!r}, 0, b), instead of b times a variable."
            )


def _of_sparse(rv: TensorVariable, sparse: _SparsePrior, block: NoiseBlock, graphs: NoiseGraphs) -> SiteGroup:
    site, parameters = get_site("laplace"), list(sparse.scales)
    if sparse.weight is not None:
        # Each coefficient is a root of its own, so that the two probabilities of a node are one.
        roots = quad_forest(1, 1, int(np.prod(block.sizes)), 1)
        site = tree_mixture(get_site("normal"), get_site("normal"), roots)
        parameters += [sparse.weight, sparse.weight]
    values = [pt.broadcast_to(parameter, block.shape).ravel() for parameter in graphs(parameters)]
    return _potential(rv.name, site, block.noise.ravel(), values, _size(block, rv.type.shape))


def _of_field(rv: TensorVariable, block: NoiseBlock, graphs: NoiseGraphs) -> Iterator[tuple[SiteGroup, LinearMap]]:
    op = rv.owner.op
    site, parameters = _site_of(op.potential_of(graphs(parameters_of(rv))))
    coefficients = apply_operator(op.linear_map, block.noise).ravel()
    yield _potential(rv.name, site, coefficients, parameters, op.coefficients), op.linear_map


def _of_tree(rv: TensorVariable, block: NoiseBlock, graphs: NoiseGraphs) -> Iterator[tuple[SiteGroup, LinearMap]]:
    op = rv.owner.op
    names = rv.name, f"{rv.name}_scaling"
    for name, component, (by_potential, probabilities) in zip(
        names, op.components, op.split(graphs(parameters_of(rv)))
    ):
        groups, forest = component.linear_map.groups, component.forest
        sites, parameters = [], []
        for potential, values in zip(component.potentials, by_potential):
            site, site_parameters = _site_of(potential.random(potential.each(values, groups))[1])
            sites.append(site)
            parameters += site_parameters
        if probabilities:
            low, high = sites
            sites = [tree_mixture(low, high, forest)]
            parameters += each_probability(forest, probabilities)
        coefficients = apply_operator(component.linear_map, block.noise).ravel()
        yield _potential(name, sites[0], coefficients, parameters, forest.size), component.linear_map


def _site_of(potential: TensorVariable) -> tuple[Site, list[TensorVariable]]:
    family = family_of(potential)
    assert family is not None, "fields take potentials that have sites only"
    return get_site(family.links["identity"]), family.site_parameters(parameters_of(potential))


def field_sites() -> list[tuple[str, str, Site]]:
    """Return, for each distribution of fields, its name, the potentials it accepts, in words, and one of its sites."""
    takes, laplace = "laplace, normal or student_t", get_site("laplace")
    mixture = tree_mixture(laplace, get_site("normal"), quad_forest(1, 1, 1, 1))
    return [("SparseField", takes, laplace), ("WaveletTree", f"tree of two of {takes}", mixture)]


_FIELDS = {SparseFieldRV: _of_field, WaveletTreeRV: _of_tree}
"""Readers of the random variables whose priors are potentials on coefficients, by type."""
SPARSE_PRIORS = (*_FIELDS, LaplaceRV, MixtureRV)
"""Ops of sparse priors; a model of this form has at least one of them."""


def _of_gaussian(block: NoiseBlock, sides: Sequence[int | None]) -> tuple[NoiseBlock, SiteGroup]:
    """Return a block of independent Gaussian noise as a flat block and its normal sites.

    `sides` is its static shape, None where unknown.
    """
    deviations = deviations_of(block)
    if block.factor is not None or deviations is None:
        raise UnsupportedModelError(
            f"{block.name!r} has a Gaussian prior whose values depend on each other, which does not go together with "
            f"the sparse prior of another variable. Give it independent values (pm.Normal), or write its prior as a "
            f"SparseField with potential=pm.Normal.dist(0, sigma) and an operator that whitens it."
        )
    size = _size(block, sides)
    # N(w; 0, C) with C diagonal is (2 pi)^(d/2), times the flat density (2 pi)^(-d/2), times the sites N(w_i; 0, C_ii).
    excess = block.log_excess + 0.5 * np.log(2 * np.pi) * size
    flat = replace(block, covariance=pt.eye(size), root=pt.eye(size), log_excess=excess, flat=True)
    return flat, _potential(block.name, get_site("normal"), block.noise.ravel(), [deviations], size)


def _size(block: NoiseBlock, sides: Sequence[int | None]) -> TensorVariable:
    """Return the number of values of a block, whose static shape is `sides`."""
    # Not the length of its scales: their graph may have hyperparameters in it, that of observations must not.
    lengths = [side if n is None else n for n, side in zip(sides, block.shape)]
    return pt.prod(pt.stack(lengths)) if lengths else pt.constant(1)


def _potential(
    name: str, site: Site, coefficients: TensorVariable, parameters: Sequence[TensorVariable], size: TensorVariable
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
