"""Choice of the variables that are integrated out: of the Gaussian candidates, the ones named or the largest set."""

from collections.abc import Callable, Collection, Sequence

from pymc import Model
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError, did_you_mean
from pymc_ep.graphs.gaussian_variables import PriorOf, gaussian_of
from pymc_ep.graphs.hyperparameters import initial_values, keeps_gaussian, kind_of
from pymc_ep.graphs.inner_products import SPELLINGS
from pymc_ep.graphs.predictor import NotAffineError
from pymc_ep.graphs.queries import depends_on
from pymc_ep.graphs.random_nodes import parameters_of
from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.models.latent_gaussian.recognise.likelihoods import outside_predictor
from pymc_ep.models.latent_gaussian.recognise.observed_vectors import correlated_gaussian

__all__ = ["gaussian_candidates", "largest_affine_set", "named_among", "no_latent_message"]


def gaussian_candidates(
    model: Model,
    relevant: Sequence[TensorVariable],
    prior: PriorOf,
    *,
    shared: bool = False,
    two: bool = False,
    among: Collection | None = None,
) -> list[TensorVariable]:
    """Return the Gaussian variables that enter nothing but means of Gaussians and predictors of likelihoods.

    With `shared`, a variable of a predictor may enter other parameters of the same likelihood as well. With `two`,
    other variables may enter other parameters of the same likelihood, as its second predictor. With `among`, only the
    elements of `among` are considered.
    """
    wanted = relevant if among is None else [rv for rv in relevant if rv in among]
    candidates = [rv for rv in wanted if keeps_gaussian(model, rv) and prior(rv)]
    while True:
        covariance_inputs = _latent_free_graphs(relevant, candidates, prior)
        observed = [rv for rv in model.observed_RVs if not two or correlated_gaussian(rv) is not None]
        elsewhere = set().union(*(outside_predictor(model, rv, candidates, shared=shared) for rv in observed))
        kept = [
            rv
            for rv in candidates
            if rv not in elsewhere and not depends_on(covariance_inputs, [rv], blockers=model.basic_RVs)
        ]
        if len(kept) == len(candidates):
            return kept
        candidates = kept


def _latent_free_graphs(
    relevant: Sequence[TensorVariable], candidates: Sequence[TensorVariable], prior: PriorOf
) -> list[TensorVariable]:
    graphs: list[TensorVariable] = []
    for rv in relevant:
        gaussian = prior(rv) if rv in candidates else None
        graphs += parameters_of(rv) if gaussian is None else gaussian.covariance_inputs
    return graphs


def largest_affine_set(
    model: Model, candidates: Sequence[TensorVariable], build: Callable[[list[TensorVariable]], LatentGaussian]
) -> list[TensorVariable]:
    """Return the set of candidates with most values in which all predictors are affine; raise for ties.

    Sets that lack one candidate are tried first. If none fits, sets are grown from single candidates, by each further
    one that fits. `build` returns the form for a set, or raises NotAffineError.
    """
    refusals: list[NotAffineError] = []

    def fits(latents: list[TensorVariable]) -> bool:
        try:
            build(latents)
        except NotAffineError as error:
            refusals.append(error)
            return False
        return True

    def greedy_set(seed: TensorVariable) -> list[TensorVariable]:
        latents = [seed] if fits([seed]) else []
        for rv in candidates if latents else ():
            larger = [c for c in candidates if c in latents or c is rv]
            if rv not in latents and fits(larger):
                latents = larger
        return latents

    sets = [[rv for rv in candidates if rv is not left_out] for left_out in candidates if len(candidates) > 1]
    sets = [latents for latents in sets if fits(latents)]
    if not sets:
        for rv in candidates:
            if not any(rv in latents for latents in sets):
                sets.append(greedy_set(rv))
    sets = [latents for latents in sets if latents]
    if not sets:
        raise refusals[-1]
    if len(sets) > 1:
        starts = initial_values(model, [model.rvs_to_values[rv] for rv in candidates])
        size_of = {rv: start.size for rv, start in zip(candidates, starts)}
        sizes = [sum(size_of[rv] for rv in latents) for latents in sets]
        sets = [latents for latents, size in zip(sets, sizes) if size == max(sizes)]
    if len(sets) > 1:
        fits(list(candidates))
        together, _, _ = str(refusals[-1]).partition(". ")
        tied = [rv.name for rv in candidates if any(rv not in latents for latents in sets)]
        raise UnsupportedModelError(
            f"Predictors are affine in some of {tied} but not in all of them together, and these have as many values. "
            f"{together}. Say which to integrate out with latent=[...]; the others become hyperparameters. Inner "
            f"products of rows of two matrices are another form: use BilinearPoisson, BilinearBernoulli, or a "
            f"predictor with {SPELLINGS}."
        )
    return sets[0]


def named_among(
    model: Model, names: Sequence[str], candidates: Sequence[TensorVariable], prior: PriorOf
) -> list[TensorVariable]:
    """Return the Gaussian variables that the user names; a Deterministic stands for its Gaussian ancestors."""
    chosen: set[TensorVariable] = set()
    for name in names:
        if name not in model.named_vars:
            raise UnsupportedModelError(
                f"latent= names {name!r}, which the model does not have.{did_you_mean(name, model.named_vars)}"
            )
        variable = model[name]
        if variable in model.deterministics:
            reached = [c for c in candidates if depends_on([variable], [c], blockers=model.basic_RVs)]
            # Beside arrays, a scalar is the level of a field, not the field itself.
            matches = [c for c in reached if c.ndim > 0] or reached
        else:
            matches = [c for c in candidates if c is variable]
        if not matches:
            raise UnsupportedModelError(_not_latent_message(model, variable, prior))
        chosen.update(matches)
    return [c for c in candidates if c in chosen]


def _not_latent_message(model: Model, variable: TensorVariable, prior: PriorOf) -> str:
    name = variable.name
    if variable in model.deterministics:
        return f"latent= names the Deterministic {name!r}, which depends on no Gaussian variable."
    if variable not in model.free_RVs:
        return f"latent= names {name!r}, which is not a free random variable of the model."
    if not prior(variable):
        return (
            f"latent= names {name!r}, a {kind_of(variable)} variable, not a Gaussian one (Normal or MvNormal). Leave "
            f"it out and it becomes a hyperparameter."
        )
    return (
        f"latent= names {name!r}, which enters a scale, a covariance or a non-Gaussian variable (or no observed "
        f"variable at all), so the model is not jointly Gaussian in it. Leave it out and it becomes a hyperparameter."
    )


def no_latent_message(model: Model, relevant: Sequence[TensorVariable]) -> str:
    """Return the message that says, for at most six free variables, why each of them cannot be integrated out."""
    reasons = []
    for rv in relevant:
        if not gaussian_of(rv):
            reason = f"{rv.name!r} is {kind_of(rv)}"
        elif not keeps_gaussian(model, rv):
            reason = f"{rv.name!r} has a transform"
        else:
            reason = f"{rv.name!r} enters a scale or a non-Gaussian variable"
        reasons.append(reason)
    if not reasons:
        return (
            "The observed variables depend on no free random variable, so there is nothing to integrate out; give them "
            "a mean or a predictor with Gaussian latent variables."
        )
    # A message of a few lines.
    most = 6
    reasons[most:] = [f"and {len(reasons) - most} more"] * (len(reasons) > most)
    return (
        f"The model has no Gaussian latent variable (Normal, Flat, MvNormal or another that the documentation lists) "
        f"that enters its observed variables through a mean or a predictor, so there is nothing to integrate out: "
        f"{', '.join(reasons)}. Give coefficients Gaussian priors, Laplace ones, or mixtures of two normals about one "
        f"value, these with predictors that are affine in them by constant maps, or use pm.sample."
    )
