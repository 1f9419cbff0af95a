"""Recognise a model of paired symbols: one `PairedSymbols`, Gaussian matrices and biases, Dirichlet popularities."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.basic import DirichletRV, ExponentialRV, GammaRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.hyperparameters import follows_from, hyper_fields, relevant_variables, require_all_latent
from pymc_ep.graphs.queries import depends_on, evaluated, without_casts
from pymc_ep.graphs.random_nodes import distribution_name, parameters_of
from pymc_ep.models.paired_symbols.distribution import PairedSymbolsRV
from pymc_ep.models.paired_symbols.form import (
    GammaPrecision,
    GaussianEntries,
    PairedSymbolsForm,
    PairGroup,
    SideOfPairs,
)
from pymc_ep.modes import quick_mode

__all__ = ["recognise_paired_symbols"]

_TRIALS = (0.3, 1.0, 4.0)
"""Values of a Gamma variable at which a precision is tested to be proportional to the variable."""


def recognise_paired_symbols(
    model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()
) -> PairedSymbolsForm | None:
    """Return the form of a model with a `PairedSymbols`; None for a model without one.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        If given, it must name all variables that have a posterior in closed form.
    wanted : sequence of str, optional
        Variables to predict; ignored, as this form predicts none.

    Raises
    ------
    UnsupportedModelError
        If the model has a `PairedSymbols`, but is not of the form otherwise.
    """
    observed = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, PairedSymbolsRV)]
    if not observed:
        return None
    rv = observed[0]
    if others := [other.name for other in model.observed_RVs if other is not rv]:
        raise UnsupportedModelError(
            f"{rv.name!r} is a PairedSymbols, and beside one of these a model can have no other observed variable "
            f"({others[0]!r}). Fit them in models of their own, or use pm.sample."
        )
    form = _build(model, rv)
    why = f"a model of paired symbols is fitted with a posterior of all of {', '.join(form.latent_names)}"
    require_all_latent(form.latent_names, latent, why)
    return form


def _build(model: Model, rv: TensorVariable) -> PairedSymbolsForm:
    pi, psi, U, V, user_bias, item_bias, _, censored_ratio = parameters_of(rv)
    relevant = relevant_variables(model)
    sides = [(U, user_bias, pi), (V, item_bias, psi)]
    if rv.owner.op.alike:
        del sides[1]
    else:
        _require_two(model, rv, zip(("matrix", "bias", "popularity"), *sides))
    matrices = [_gaussian(model, rv, matrix, 2) for matrix, _, _ in sides]
    biases = [None if _constant(model, bias) else _gaussian(model, rv, bias, 1) for _, bias, _ in sides]
    popularities = [_dirichlet(model, rv, popularity) for _, _, popularity in sides]
    gaussian = [*matrices, *(b for b in biases if b is not None)]
    gammas = [gamma for gamma in relevant if _is_precision(model, rv, gamma, gaussian)]
    latents = [*gaussian, *popularities, *gammas]
    _require_apart(model, rv, latents, [censored_ratio, *(parameters_of(p)[0] for p in popularities)])
    stand_ins = {v: v.type(f"{v.name}_values") for v in latents}
    entries = [_entries(model, v, stand_ins[v], gammas) for v in gaussian]
    entries_of = dict(zip(gaussian, entries))
    form_sides = [
        SideOfPairs(
            entries_of[matrix],
            entries_of[variable] if variable is not None else _held(bias),
            popularity.name,
            stand_ins[popularity],
            parameters_of(popularity)[0],
        )
        for matrix, variable, popularity, (_, bias, _) in zip(matrices, biases, popularities, sides)
    ]
    deterministics = [d for d in model.deterministics if follows_from(model, d, relevant)]
    graphs = graph_replace(deterministics, stand_ins, strict=False) if deterministics else []
    return PairedSymbolsForm(
        **hyper_fields(model, [v for v in relevant if v not in latents]),
        hyper_coordinates=(),
        users=form_sides[0],
        items=form_sides[-1],
        precisions=tuple(_gamma(gamma, stand_ins[gamma]) for gamma in gammas),
        pairs=PairGroup(rv.name, without_casts(model.rvs_to_values[rv]), censored_ratio),
        deterministics=dict(zip([d.name for d in deterministics], model.replace_rvs_by_values(graphs))),
        ignored=tuple(v.name for v in model.free_RVs if v not in relevant),
    )


def _require_two(
    model: Model, rv: TensorVariable, variables: Iterable[tuple[str, TensorVariable, TensorVariable]]
) -> None:
    """Raise UnsupportedModelError if users and items have one variable in common that is not a constant."""
    for what, of_users, of_items in variables:
        if of_users is of_items and not _constant(model, of_users):
            raise UnsupportedModelError(
                f"{rv.name!r} has the {what} {of_users.name or of_users} for users and for items, and the updates of a "
                f"fit hold where each side has its own; give it two, or use pm.sample."
            )


def _constant(model: Model, bias: TensorVariable) -> bool:
    return not depends_on([bias], model.basic_RVs)


def _gaussian(model: Model, rv: TensorVariable, variable: TensorVariable, ndim: int) -> TensorVariable:
    """Return `variable`, a matrix or bias of `rv`; raise unless it is an untransformed normal random variable."""
    what = "matrix" if ndim == 2 else "bias"
    if variable not in model.free_RVs:
        raise UnsupportedModelError(
            f"The {what} {variable.name or variable} of {rv.name!r} is no random variable itself, but a function of "
            f"some. Write mean and scale into its prior, as in pm.Normal(name, mu, sd, dims=...), or use pm.sample."
        )
    if not isinstance(variable.owner.op, NormalRV) or model.rvs_to_transforms.get(variable) is not None:
        raise UnsupportedModelError(
            f"{variable.name!r} has the prior {distribution_name(variable.owner)}, and a {what} of {rv.name!r} must be "
            f"a pm.Normal, for which the updates have a closed form; give it one, or use pm.sample."
        )
    return variable


def _dirichlet(model: Model, rv: TensorVariable, variable: TensorVariable) -> TensorVariable:
    if variable in model.free_RVs and isinstance(variable.owner.op, DirichletRV):
        return variable
    raise UnsupportedModelError(
        f"The popularities {variable.name or variable} of {rv.name!r} are no pm.Dirichlet, for which the updates have "
        f"a closed form; leave them out, so that {rv.name!r} makes its own, or use pm.sample."
    )


def _is_precision(model: Model, rv: TensorVariable, tau: TensorVariable, gaussian: Sequence[TensorVariable]) -> bool:
    """Return whether `tau` has a Gamma prior with constant parameters, and only occurs as a factor of precisions."""
    if not isinstance(tau.owner.op, GammaRV | ExponentialRV) or tau.ndim > 1:
        return False
    if depends_on(parameters_of(tau), model.basic_RVs):
        return False
    scaled = [v for v in gaussian if depends_on([parameters_of(v)[1]], [tau])]
    if depends_on([parameters_of(v)[0] for v in scaled], model.free_RVs):
        # The gradient in a prior mean involves the precision, which then counts as a hyperparameter too.
        return False
    elsewhere = [parameters_of(v)[0] for v in gaussian] + list(model.potentials)
    elsewhere += [p for v in model.free_RVs if v not in gaussian for p in parameters_of(v)]
    elsewhere += [p for p in parameters_of(rv) if p not in gaussian and p.owner is not None]
    if not scaled or depends_on([g for g in elsewhere if g not in model.free_RVs], [tau], blockers=gaussian):
        return False
    return all(_proportional(model, v, tau) for v in scaled)


def _proportional(model: Model, v: TensorVariable, tau: TensorVariable) -> bool:
    """Return whether the prior precision of `v` is a constant times `tau`, a scalar or one value for each column."""
    sd = parameters_of(v)[1]
    if (tau.ndim and v.ndim != 2) or depends_on([sd], [other for other in model.free_RVs if other is not tau]):
        # A scale that is a product of several variables is left to the optimiser.
        return False
    (length,), rng, stand_in = evaluated([tau.shape]), np.random.default_rng(0), tau.type()
    graph = graph_replace([sd], {tau: stand_in}, strict=False)[0]
    # Prior precision over tau, 1 / (sd^2 tau), which is the same at all tau if they are proportional.
    ratio = compiled_function([stand_in], 1.0 / (graph**2 * stand_in), mode=quick_mode())
    ratios = [ratio(trial * rng.uniform(0.5, 2.0, size=length)) for trial in _TRIALS]
    return all(np.allclose(r, ratios[0], rtol=1e-9) for r in ratios)


def _entries(
    model: Model, v: TensorVariable, stand_in: TensorVariable, gammas: Sequence[TensorVariable]
) -> GaussianEntries:
    mean, sd = parameters_of(v)
    learned = [k for k, tau in enumerate(gammas) if depends_on([sd], [tau])]
    # 1 / (s |s|) keeps the sign of a negative standard deviation s, so that checks of the precision detect it.
    precision = 1.0 / (sd * pt.abs(sd))
    if learned:
        tau = gammas[learned[0]]
        precision = graph_replace([precision], {tau: _ones(tau)}, strict=False)[0]
    shape = infer_shape([v], (), ())[0]
    mean, precision = model.replace_rvs_by_values([pt.broadcast_to(p, shape) for p in (mean, precision)])
    return GaussianEntries(v.name, stand_in, mean, precision, learned[0] if learned else -1)


def _held(bias: TensorVariable) -> GaussianEntries:
    """Return constant biases as Gaussian entries of infinite precision."""
    values = bias.astype("float64")
    return GaussianEntries("", None, values, pt.full_like(values, np.inf))


def _gamma(tau: TensorVariable, stand_in: TensorVariable) -> GammaPrecision:
    parameters = parameters_of(tau)
    ones = _ones(tau)
    # The last parameter is the scale, 1 / rate; an exponential is a Gamma of shape 1.
    shape = parameters[0] * ones if isinstance(tau.owner.op, GammaRV) else ones
    return GammaPrecision(tau.name, stand_in, shape, ones / parameters[-1])


def _ones(tau: TensorVariable) -> TensorVariable:
    """Return ones of the shape of a random variable, as a graph without that variable."""
    return pt.ones(infer_shape([tau], (), ())[0])


def _require_apart(
    model: Model, rv: TensorVariable, latents: Sequence[TensorVariable], constants: Sequence[TensorVariable]
) -> None:
    """Raise if a latent variable enters other parts of the model too, or if `constants` depend on free variables."""
    gammas = [v for v in latents if isinstance(v.owner.op, GammaRV | ExponentialRV)]
    others = [p for v in model.free_RVs if v not in latents for p in parameters_of(v)]
    priors = [p for v in latents for p in parameters_of(v)]
    for v in latents:
        elsewhere = [*others, *model.potentials, *(() if v in gammas else priors)]
        if depends_on(elsewhere, [v]):
            raise UnsupportedModelError(
                f"{v.name!r} enters the model elsewhere than in {rv.name!r}, so that its updates have no closed form; "
                f"use pm.sample."
            )
    for graph in constants:
        if not isinstance(graph, Constant) and depends_on([graph], model.free_RVs):
            raise UnsupportedModelError(
                f"The concentrations of popularities and the censored_ratio of {rv.name!r} must be numbers, as no fit "
                f"learns them; give them values and compare log evidences."
            )
