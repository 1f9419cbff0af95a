"""The form "sequences of items by users, under a recurrent network" (Ko, Maystre and Grossglauser 2016).

    P(y_{t+1} = i | y_1 .. y_t) = softmax(V h_t)_i,        h_t = cell(h_{t-1}, y_t, x_{t+1}; R_u, W, a),

for the items y_t of user u, with the context x_{t+1} of the event to predict. The weights are recurrent matrices R_u of
each user, or one R for all users, inputs W, outputs V and biases a of contexts. Weights have Gaussian or flat priors,
and a fit gives point estimates of them. The prior mean of users' matrices may be a variable that all users share. In
addition to items, the softmax may choose memories of the user's earlier items, which have outputs of their own. The
logits of items that the user had before may be shifted.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import LatentForm

__all__ = ["SequenceGroup", "SequencesForm", "WeightPrior"]


class WeightPrior(NamedTuple):
    """Prior of one variable of weights: independent Gaussians of its entries, or flat.

    Attributes
    ----------
    name : str
        Name of the random variable.
    stand_in : TensorVariable
        Placeholder of the variable's values in all graphs of the form.
    mean, precision : TensorVariable
        Constants that broadcast to the shape of the variable. The precision is zero for a flat prior.
    """

    name: str
    stand_in: TensorVariable
    mean: TensorVariable
    precision: TensorVariable


class SequenceGroup(NamedTuple):
    """The observed sequences.

    Attributes
    ----------
    name : str
        Name of the observed variable.
    observed : TensorVariable, (N, 2)
        Rows of user and item.
    initial : TensorVariable, ()
        Value of all entries of the states before the first events.
    half_lives : TensorVariable, (K,)
        Half-lives of the memories, in events.
    contexts : TensorVariable, (N,) or (0,)
        Contexts of the events, if any.
    site : None
        Sequences have no univariate site.
    """

    name: str
    observed: TensorVariable
    initial: TensorVariable
    half_lives: TensorVariable
    contexts: TensorVariable
    site: None = None


@dataclass(frozen=True)
class SequencesForm(LatentForm):
    """A model of sequences: priors of the network's weights, and the observed sequences.

    Attributes
    ----------
    recurrent, inputs, outputs : WeightPrior
        Recurrent matrices R, inputs W and outputs V.
    shapes : tuple of TensorVariable
        Shapes of the weights that are present; matrices that users share have no axis of users.
    sequences : SequenceGroup
    memory, known, bias : WeightPrior, optional
        Outputs of memories, weights of the shift of known items' logits, and biases of the gates.
    shared : WeightPrior, optional
        Variable that is the prior mean of users' matrices.
    deterministics : dict of str to TensorVariable
        Deterministic variables by name, as functions of the weights.
    ignored : tuple of str
        Random variables of the model that no observed variable depends on.
    """

    recurrent: WeightPrior
    inputs: WeightPrior
    outputs: WeightPrior
    shapes: tuple[TensorVariable, ...]
    sequences: SequenceGroup
    memory: WeightPrior | None = None
    known: WeightPrior | None = None
    bias: WeightPrior | None = None
    shared: WeightPrior | None = None
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[WeightPrior | None, ...]:
        """The weights in the order of `pymc_ep.models.sequences.kernel.Weights`; None for weights that are absent."""
        return self.recurrent, self.inputs, self.outputs, self.memory, self.known, self.bias

    @property
    def weights(self) -> tuple[WeightPrior, ...]:
        """The weights that the network has."""
        return tuple(table for table in self.tables if table is not None)

    @property
    def variables(self) -> tuple[WeightPrior, ...]:
        """All variables that are trained: the weights, and the shared mean of users' matrices."""
        return self.weights if self.shared is None else (*self.weights, self.shared)

    @property
    def stand_ins(self) -> dict[str, TensorVariable]:
        """Placeholders of all weights, by name."""
        return {variable.name: variable.stand_in for variable in self.variables}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the weights."""
        return tuple(self.stand_ins)

    @property
    def groups(self) -> tuple[SequenceGroup]:
        """The observed variables."""
        return (self.sequences,)

    @property
    def factors(self) -> tuple[SequenceGroup]:
        """The factors of the model: the sequences."""
        return self.groups
