"""Recognise a model of sequences: one `CollaborativeRNN` whose weights are free variables, Gaussian or flat."""

from collections.abc import Sequence

import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.continuous import FlatRV
from pytensor.compile.builders import infer_shape
from pytensor.graph.replace import graph_replace
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.hyperparameters import follows_from, hyper_fields, relevant_variables, require_all_latent
from pymc_ep.graphs.queries import depends_on, without_casts
from pymc_ep.graphs.random_nodes import distribution_name, parameters_of
from pymc_ep.models.sequences.distribution import CollaborativeRNNRV
from pymc_ep.models.sequences.form import SequenceGroup, SequencesForm, WeightPrior

__all__ = ["recognise_sequences"]

_WHATS = ("recurrent matrices", "inputs", "outputs", "memories", "known items", "biases")
"""Words for the weights, in their order among the parameters."""


def recognise_sequences(
    model: Model, latent: Sequence[str] | None = None, wanted: Sequence[str] = ()
) -> SequencesForm | None:
    """Return the form of a model with a `CollaborativeRNN`; None for a model without one.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        If given, it must name all weights.
    wanted : sequence of str, optional
        Variables to predict; ignored, as this form predicts none.

    Raises
    ------
    UnsupportedModelError
        If the model has a `CollaborativeRNN`, but is not of the form otherwise.
    """
    sequences = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, CollaborativeRNNRV)]
    if not sequences:
        return None
    rv = sequences[0]
    if others := [variable.name for variable in (*model.observed_RVs, *model.potentials) if variable is not rv]:
        raise UnsupportedModelError(
            f"{rv.name!r} is a CollaborativeRNN, and beside one of these a model can have no other observed variable "
            f"or potential ({others[0]!r}). Fit them in models of their own, or use pm.find_MAP."
        )
    form = _build(model, rv)
    why = f"of a CollaborativeRNN all of {', '.join(form.latent_names)} are trained"
    require_all_latent(form.latent_names, latent, why)
    return form


def _build(model: Model, rv: TensorVariable) -> SequencesForm:
    *tables, initial, half_lives, contexts, _ = parameters_of(rv)
    present = {what: variable for what, variable in zip(_WHATS, tables) if variable.type.shape[0] != 0}
    weights = [_free(model, rv, what, variable) for what, variable in present.items()]
    relevant = relevant_variables(model)
    others = [variable for variable in relevant if variable not in weights]
    shared = _shared_mean(model, weights[0], others)
    if strange := [variable for variable in others if variable is not shared]:
        raise UnsupportedModelError(
            f"{rv.name!r} depends on {strange[0].name!r}, and training learns the weights of the network alone, not "
            f"scales or means of their priors: give it a value, or use pm.sample."
        )
    stand_ins = {variable: variable.type(f"{variable.name}_values") for variable in (*weights, *others)}
    priors = {what: _prior(rv, variable, stand_ins[variable], shared) for what, variable in zip(present, weights)}
    deterministics = [d for d in model.deterministics if follows_from(model, d, relevant)]
    graphs = graph_replace(deterministics, stand_ins, strict=False) if deterministics else []
    return SequencesForm(
        **hyper_fields(model, []),
        hyper_coordinates=(),
        recurrent=priors["recurrent matrices"],
        inputs=priors["inputs"],
        outputs=priors["outputs"],
        shapes=tuple(pt.stack(infer_shape([variable], (), ())[0]) for variable in weights),
        sequences=SequenceGroup(
            rv.name, without_casts(model.rvs_to_values[rv]), initial, half_lives, without_casts(contexts)
        ),
        memory=priors.get("memories"),
        known=priors.get("known items"),
        bias=priors.get("biases"),
        shared=None if shared is None else _prior(rv, shared, stand_ins[shared], None),
        deterministics=dict(zip([d.name for d in deterministics], model.replace_rvs_by_values(graphs))),
        ignored=tuple(variable.name for variable in model.free_RVs if variable not in relevant),
    )


def _free(model: Model, rv: TensorVariable, what: str, graph: TensorVariable) -> TensorVariable:
    """Return the free variable of the weights `graph`; raise if they are a function of variables, or constant."""
    variable = _without_leading_axes(graph)
    if variable not in model.free_RVs:
        raise UnsupportedModelError(
            f"The {what} of {rv.name!r}, {variable.name or 'a graph'}, are no free variable of the model, which "
            f"training needs; leave them out, or give a distribution such as pm.Normal.dist(0, 1)."
        )
    return variable


def _without_leading_axes(graph: TensorVariable) -> TensorVariable:
    """Return a graph without leading axes of length one that were added to it."""
    node = graph.owner
    if node is None or not isinstance(node.op, DimShuffle):
        return graph
    order = [axis for axis in node.op.new_order if axis != "x"]
    plain = order == list(range(node.inputs[0].ndim)) and list(node.op.new_order[-len(order) :]) == order
    return node.inputs[0] if plain else graph


def _shared_mean(model: Model, recurrent: TensorVariable, others: Sequence[TensorVariable]) -> TensorVariable | None:
    """Return the variable that is the prior mean of all users' matrices; None where no variable is."""
    if not isinstance(recurrent.owner.op, NormalRV):
        return None
    mean = _without_leading_axes(parameters_of(recurrent)[0])
    return mean if mean in others and mean.ndim == recurrent.ndim - 1 else None


def _prior(
    rv: TensorVariable, variable: TensorVariable, stand_in: TensorVariable, shared: TensorVariable | None
) -> WeightPrior:
    """Return the prior of weights, Gaussian or flat; raise for other priors. The mean is zero where it is `shared`."""
    if isinstance(variable.owner.op, FlatRV):
        return WeightPrior(variable.name, stand_in, pt.constant(0.0), pt.constant(0.0))
    if not isinstance(variable.owner.op, NormalRV):
        raise UnsupportedModelError(
            f"{variable.name!r} has the prior {distribution_name(variable.owner)}, and weights of {rv.name!r} have a "
            f"pm.Normal or none (pm.Flat); give it one, or use pm.find_MAP."
        )
    mean, sd = parameters_of(variable)
    if shared is not None and depends_on([mean], [shared]):
        mean = pt.constant(0.0)
    # 1 / sd^2 with the sign of sd, so that a check of precisions finds a negative sd.
    return WeightPrior(variable.name, stand_in, mean, 1.0 / (sd * pt.abs(sd)))
