"""Recognition of latent Gaussian models: Gaussian variables, and likelihoods of one or more affine predictors each."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.shapes import require_shape
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError, at_index, did_you_mean, first_index
from pymc_ep.graphs.densities import outside_support
from pymc_ep.graphs.gaussian_variables import PriorOf, gaussian_of
from pymc_ep.graphs.hyperparameters import (
    coordinates_of,
    follows_from,
    hyper_fields,
    initial_values,
    kind_of,
    relevant_variables,
)
from pymc_ep.graphs.predictor import (
    AffineTest,
    Found,
    NotAffineError,
    needing_gradients,
    warn_of_missing_groups,
)
from pymc_ep.graphs.prior_parameters import require_parameters
from pymc_ep.graphs.queries import depends_on, evaluate_constants, without_casts
from pymc_ep.graphs.random_nodes import parameters_of, separated
from pymc_ep.models.latent_gaussian.distances import scaled_inputs
from pymc_ep.models.latent_gaussian.form import AffineVariable, FixedTerm, LatentGaussian, NoiseBlock, SiteGroup
from pymc_ep.models.latent_gaussian.recognise.latent_variables import (
    gaussian_candidates,
    largest_affine_set,
    named_among,
    no_latent_message,
)
from pymc_ep.models.latent_gaussian.recognise.likelihoods import find_site, require_univariate
from pymc_ep.models.latent_gaussian.recognise.noise_blocks import NoiseGraphs, absorb_factor
from pymc_ep.models.latent_gaussian.recognise.observed_vectors import (
    correlated_gaussian,
    correlated_group,
    correlated_parameters,
)
from pymc_ep.models.latent_gaussian.recognise.potentials import find_potential, terms_of
from pymc_ep.models.latent_gaussian.recognise.scales import absorb_scales
from pymc_ep.models.latent_gaussian.recognise.softmax import SeveralPredictorsError, is_counted

__all__ = ["recognise_latent_gaussian"]


_MOST_OUTSIDE = 3
"""Largest number of values of Gaussian variables outside of the first predictor that become hyperparameters. If there
are more, they become a second predictor: integrals over hyperparameters have no error of EP, but a cost that rises with
the cube of their number."""
Finish = Callable[[LatentGaussian, Sequence[TensorVariable], NoiseGraphs], LatentGaussian]
"""``finish(form, latent variables, rewriter of graphs)``: function that returns an extended form."""


def recognise_latent_gaussian(
    model: Model,
    latent: Sequence[str] | None = None,
    wanted: Sequence[str] = (),
    *,
    finish: Finish = lambda form, latents, graphs: form,
    prior: PriorOf = gaussian_of,
    two: bool = True,
) -> LatentGaussian:
    """Return the latent Gaussian form of a model.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        Variables to integrate out; by default the largest jointly Gaussian set in which every predictor is affine.
    wanted : sequence of str, optional
        Variables to predict. Their Gaussian ancestors that no observation depends on are added to the latent variables.
        Likelihoods among the variables are added to the form's predictions.
    finish : callable
        A `Finish`, applied to each form that is tried, before the form is accepted.
    prior : callable
        ``prior(rv)`` returns the `Gaussian` of a variable, or None where it cannot be latent.
    two : bool
        Whether likelihoods may have two predictors.

    Raises
    ------
    UnsupportedModelError
        If the model has no such form; the message names the variable, its problem and the remedy.
    InvalidDataError
        For a prior with parameters outside their range.
    """
    relevant = relevant_variables(model)
    require_parameters(model)

    def build(
        latents: Sequence[TensorVariable], *, wanted: Sequence[str], registered: bool, two: bool = False
    ) -> LatentGaussian:
        return finish(*_build(model, relevant, latents, wanted, prior=prior, registered_only=registered, two=two))

    candidates = gaussian_candidates(model, relevant, prior) or gaussian_candidates(model, relevant, prior, shared=True)
    # What is left out of one predictor may have a second one.
    of_two = gaussian_candidates(model, relevant, prior, two=True) if two else candidates
    if latent is not None:
        names = [latent] if isinstance(latent, str) else latent
        chosen = _chosen(model, names, relevant, prior, candidates, of_two)

        def with_chosen(with_second: bool) -> LatentGaussian:
            return _try_in_order(
                lambda registered: build(chosen, wanted=wanted, registered=registered, two=with_second)
            )

        if not two:
            return with_chosen(False)
        return _first_or_its_refusal(lambda: with_chosen(False), lambda: with_chosen(True))
    if not candidates and not any(map(correlated_gaussian, model.observed_RVs)):
        for rv in model.observed_RVs:
            require_univariate(separated(rv))
        raise UnsupportedModelError(no_latent_message(model, relevant))

    def with_all(registered: bool) -> LatentGaussian:
        return build(candidates, wanted=wanted, registered=registered)

    def with_most(registered: bool) -> LatentGaussian:
        latents = largest_affine_set(model, candidates, partial(build, wanted=(), registered=registered))
        return build(latents, wanted=wanted, registered=registered)

    def with_one() -> LatentGaussian:
        return _try_in_order(with_all, with_most)

    if not two:
        return with_one()

    def with_two() -> LatentGaussian:
        return build(of_two, wanted=wanted, registered=False, two=True)

    def left(names: Collection[str]) -> int:
        return _size(model, [rv for rv in of_two if rv.name not in names])

    if left([rv.name for rv in candidates]) > _MOST_OUTSIDE:
        return _first_that_fits(with_two, with_one)
    form = _first_or_its_refusal(with_one, with_two)
    return _first_that_fits(with_two, lambda: form) if left(form.latent_names) > _MOST_OUTSIDE else form


def _chosen(
    model: Model,
    names: Sequence[str],
    relevant: Sequence[TensorVariable],
    prior: PriorOf,
    *candidates: Sequence[TensorVariable],
) -> list[TensorVariable]:
    """Return the latent variables that the user names, from the first set of candidates that has them all."""

    def sets() -> Iterator[Sequence[TensorVariable]]:
        of_one, of_two = candidates
        yield of_one
        # Without this choice, the predictor may have been assigned to other variables.
        behind = set(ancestors([model[name] for name in names if name in model.named_vars]))
        yield gaussian_candidates(model, relevant, prior, among=behind)
        yield of_two

    refusals = []
    for among in sets():
        try:
            return named_among(model, names, among, prior)
        except UnsupportedModelError as refusal:
            refusals.append(refusal)
    raise refusals[1]


def _first_that_fits(first: Callable[[], LatentGaussian], second: Callable[[], LatentGaussian]) -> LatentGaussian:
    try:
        return first()
    except UnsupportedModelError:
        return second()


def _first_or_its_refusal(first: Callable[[], LatentGaussian], second: Callable[[], LatentGaussian]) -> LatentGaussian:
    try:
        return first()
    except SeveralPredictorsError:
        return second()
    except UnsupportedModelError as refusal:
        try:
            return second()
        except UnsupportedModelError:
            raise refusal from None


def _size(model: Model, variables: Sequence[TensorVariable]) -> int:
    """Return the number of values of variables."""
    starts = initial_values(model, [model.rvs_to_values[rv] for rv in variables]) if variables else []
    return sum(np.size(start) for start in starts)


def _try_in_order(*ways: Callable[[bool], LatentGaussian]) -> LatentGaussian:
    """Return the first form that `ways` build; each way is tried with registered sites alone, then with any density.

    Where none succeeds, raise the error of the first attempt.
    """
    refusals = []
    for way in ways:
        for registered in (True, False):
            try:
                return way(registered)
            except NotAffineError as error:
                refusals.append(error)
    raise refusals[0]


def _build(
    model: Model,
    relevant: Sequence[TensorVariable],
    latents: Sequence[TensorVariable],
    wanted: Sequence[str] = (),
    *,
    prior: PriorOf,
    registered_only: bool,
    two: bool,
) -> tuple[LatentGaussian, list[TensorVariable], NoiseGraphs]:
    """Return the form, its latent variables with the ones that only predictions need, and the rewriter of graphs.

    Raise where the model is not of the form.
    """
    potentials = [p for p in model.potentials if depends_on([p], latents)]
    hyper = [rv for rv in relevant if rv not in latents]
    for rv in hyper:
        if depends_on(parameters_of(rv), latents, blockers=model.basic_RVs):
            raise NotAffineError(
                f"The prior of {rv.name!r} depends on a latent variable, so it cannot be a hyperparameter; name "
                f"{rv.name!r} in latent=[...] as well, or what it depends on neither."
            )
    unobserved, predicted = _prediction_variables(model, wanted, relevant, latents)
    latents = [*latents, *unobserved]
    deterministics = [d for d in model.deterministics if follows_from(model, d, [*relevant, *unobserved])]
    likelihoods = [*model.observed_RVs, *predicted]
    present = [separated(rv) for rv in likelihoods]
    graphs = NoiseGraphs(model, latents, prior)
    # One call for all graphs, so that common subexpressions stay shared.
    vectors = [correlated_gaussian(rv) if rv in model.observed_RVs else None for rv in likelihoods]
    parameter_groups = [
        correlated_parameters(rv, vector) if vector else parameters_of(rv) for rv, vector in zip(present, vectors)
    ]
    parameters = [p for rv_parameters in parameter_groups for p in rv_parameters]
    first = len(parameters)
    written = graphs([*parameters, *latents, *deterministics, *(terms_of(p, latents) for p in potentials)])
    blocks, outputs = _absorb_factors(graphs, latents, evaluate_constants(written), first)
    of_sites = [*range(first), *range(len(outputs) - len(potentials), len(outputs))]
    blocks, outputs, replacement = absorb_scales(blocks, outputs, of_sites, [model.rvs_to_values[rv] for rv in hyper])
    graphs.substitute(replacement)
    # A Deterministic first: it has the name that a Gaussian process was given.
    behind = {d.name: [graph] for d, graph in zip(deterministics, written[first + len(latents) :])}
    behind |= {block.name: [block.covariance] for block in blocks if block.factor is None}
    given_by = iter(written)
    behind |= {
        rv.name: [next(given_by) for _ in rv_parameters] for rv, rv_parameters in zip(likelihoods, parameter_groups)
    }
    inputs = scaled_inputs(behind, [block.noise for block in blocks])

    test = _working_point(model, blocks, hyper)
    blocks = graphs.with_precisions(blocks, test.noise)
    for rv, graph in zip(latents, outputs[first:]):
        with needing_gradients(rv.name):
            affine_mean = test(graph)
        if not affine_mean:
            raise NotAffineError(
                f"The mean of {rv.name!r} is not affine in the other latent variables. Name all but one of them in "
                f"latent=[...], which becomes a hyperparameter."
            )
    groups, fixed = [], []
    rest = iter(outputs)
    for rv, present_rv, vector, given in zip(likelihoods, present, vectors, parameter_groups):
        rv_parameters = [next(rest) for _ in given]
        # Without latent variables, the noise of an observed vector is what is integrated out.
        alone = vector is not None and not latents
        if rv in model.observed_RVs and not depends_on(rv_parameters, list(test.noise)) and not alone:
            fixed.append(_fixed_term(model, rv, test))
            continue
        if vector is not None:
            if not test(rv_parameters[0]):
                raise NotAffineError(f"The mean of the observed vector {rv.name!r} is not affine in latent variables.")
            block, group = correlated_group(rv.name, without_casts(model.rvs_to_values[rv]), rv_parameters)
            blocks.append(block)
            groups.append(group)
            continue
        require_univariate(present_rv)
        observed = without_casts(model.rvs_to_values[rv]) if rv in model.observed_RVs else None
        with needing_gradients(rv.name):
            match = find_site(present_rv, rv_parameters, observed, test, registered_only=registered_only, two=two)
        warn_of_missing_groups(rv.name, match.predictor, list(test.noise))
        if is_counted(present_rv) and observed is not None:
            observed = observed.sum(axis=-1)
        groups.append(_site_group(rv.name, match, observed))
    terms = outputs[len(outputs) - len(potentials) :]
    of_potentials = [_site_group(p.name, *find_potential(p.name, array, test)) for p, array in zip(potentials, terms)]
    n_observed = len(model.observed_RVs) - len(fixed)
    if not n_observed and not potentials:
        raise NotAffineError(
            f"{', '.join(repr(term.name) for term in fixed)} depend on no latent variable, so there is nothing to "
            f"integrate out; name other variables with latent=[...]."
        )
    origins = {b.name: b for b in blocks if b.origin is not None}
    named = dict(zip([v.name for v in (*latents, *deterministics)], outputs[first:]))
    scaled = {rv.name: b for rv, b in zip(latents, blocks) if b.elementwise and graphs.is_central(rv)}
    affine = [
        AffineVariable(name, graph, origins.get(name), scaled.get(name))
        for name, graph in named.items()
        if name in origins or test(graph)
    ]
    form = LatentGaussian(
        **hyper_fields(model, hyper, without=potentials),
        hyper_coordinates=coordinates_of(model, hyper),
        blocks=tuple(blocks),
        groups=tuple(groups[:n_observed]),
        predictions=tuple(groups[n_observed:]),
        affine=tuple(affine),
        deterministics={n: graph for n, graph in named.items() if n not in {a.name for a in affine}},
        ignored=tuple(rv.name for rv in model.free_RVs if rv not in relevant),
        fixed=tuple(fixed),
        scaled_inputs=inputs,
        potentials=tuple(of_potentials),
    )
    return form, latents, graphs


def _fixed_term(model: Model, rv: TensorVariable, test: AffineTest) -> FixedTerm:
    """Return the term of an observed variable without latent variables; raise where its log density is not finite."""
    (density,) = model.logp(vars=[rv], sum=False)
    at_start = test.compile(density, [], without_checks=True)()
    if not np.all(np.isfinite(at_start)):
        index = first_index(~np.isfinite(at_start))
        raise InvalidDataError(
            f"{rv.name!r} has the log density {at_start[index]}{at_index(index)} at the model's initial point. Correct "
            f"that observation, or give the variables that its distribution depends on other initial values."
        )
    return FixedTerm(rv.name, outside_support([density])[0], joint=rv.owner.op.ndim_supp > 0)


def _prediction_variables(
    model: Model, wanted: Sequence[str], relevant: Sequence[TensorVariable], latents: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Return latent variables that only predictions depend on, and likelihoods that are predicted."""
    for name in wanted:
        if name not in model.named_vars:
            raise UnsupportedModelError(f"The model has no variable {name!r}.{did_you_mean(name, model.named_vars)}")
    targets = [model[name] for name in wanted]
    outside = [rv for rv in model.free_RVs if rv not in relevant and depends_on(targets, [rv])]
    unobserved = [rv for rv in outside if gaussian_of(rv)]
    # A Gaussian variable may be wanted as a latent variable, or as a likelihood with a predictor.
    predicted = [rv for rv in outside if rv in targets and _has_predictor(rv, [*latents, *unobserved])]
    for rv in outside:
        if rv not in unobserved and rv not in predicted:
            raise UnsupportedModelError(
                f"{rv.name!r}, a {kind_of(rv)} variable, is neither Gaussian nor a likelihood with a site, so it has "
                f"no Gaussian prediction; use pm.sample_posterior_predictive."
            )
    return unobserved, predicted


def _has_predictor(rv: TensorVariable, latents: Sequence[TensorVariable]) -> bool:
    """Whether a variable has independent elements and parameters that depend on another latent variable."""
    others = [v for v in latents if v is not rv]
    return (is_counted(rv) or not rv.owner.op.ndim_supp) and depends_on(parameters_of(rv), others)


def _site_group(name: str, match: Found, observed: TensorVariable | None) -> SiteGroup:
    """Return the sites of an observed variable, with predictor and parameters broadcast to its observations."""
    observed = match.predictor if observed is None else observed
    predictors = []
    for predictor in (match.predictor, *match.others):
        require_shape(name, observed.type.shape, predictor.type.shape)
        whole = predictor.type.broadcastable == observed.type.broadcastable
        predictors.append(predictor if whole else pt.broadcast_to(predictor, observed.shape))
    for parameter in match.parameters:
        require_shape(name, observed.type.shape, parameter.type.shape, "parameter beside the predictor")
    return SiteGroup(
        name=name,
        site=match.site,
        options=match.options,
        observed=observed,
        predictor=predictors[0],
        parameters=tuple(pt.broadcast_to(p, observed.shape).ravel().astype("float64") for p in match.parameters),
        link=match.link,
        others=tuple(predictors[1:]),
    )


def _absorb_factors(
    graphs: NoiseGraphs, latents: Sequence[TensorVariable], outputs: list[TensorVariable], first: int
) -> tuple[list[NoiseBlock], list[TensorVariable]]:
    """Return blocks and outputs in which w = L v replaces each v that enters only as L v; see `absorb_factor`.

    `outputs[first + i]` is the graph of latent variable i itself.
    """
    blocks = graphs.blocks()
    for i, rv in enumerate(latents):
        if not graphs.is_standard(rv):
            continue
        others = [o for k, o in enumerate(outputs) if k != first + i]
        absorbed = absorb_factor(blocks[i], others, [b.noise for b in blocks])
        if absorbed is not None:
            blocks[i], replacement = absorbed
            outputs = graph_replace(outputs, replacement, strict=False)
    return blocks, outputs


def _working_point(model: Model, blocks: Sequence[NoiseBlock], hyper: Sequence[TensorVariable]) -> AffineTest:
    """Return the affine test with hyperparameters at PyMC's initial point."""
    values = [model.rvs_to_values[rv] for rv in hyper]
    point = dict(zip(values, initial_values(model, values)))
    sizes = pt.stack([pt.as_tensor(n) for b in blocks for n in b.shape] or [pt.zeros((), "int64")])
    lengths = iter(AffineTest({}, point).compile(sizes, [])())
    zeros = {b.noise: pt.zeros(b.shape, dtype=b.noise.dtype) for b in blocks}
    return AffineTest({b.noise: tuple(int(next(lengths)) for _ in b.shape) for b in blocks}, point, zeros)
