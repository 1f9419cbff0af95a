"""The form "sequences of items by users, under a recurrent network" (Ko, Maystre and Grossglauser 2016).

    P(y_{t+1} = i | y_1 .. y_t) = softmax(V h_t)_i,        h_t = cell(h_{t-1}, y_t, x_{t+1}; R_u, W, a),

with recurrent matrices R of each user, or of all, inputs W, outputs V and biases a of the context x of the event to
predict: points, with a Gaussian prior or none. The means of the matrices may be a variable that users share. Beside
items, the softmax may choose memories of the user's own items, with outputs of their own, and the logits of items that
the user had before may be shifted.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import LatentForm

__all__ = ["SequenceGroup", "SequencesForm", "WeightPrior"]


class WeightPrior(NamedTuple):
    """Independent Gaussians of the entries of weights.

    Attributes
    ----------
    name : str
        The random variable.
    stand_in : TensorVariable
        Placeholder of its values in all graphs of the form.
    mean, precision : TensorVariable
        Constants that broadcast to the shape of the variable. The precision is zero without a prior.
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
        The observed variable.
    observed : TensorVariable, (N, 2)
        Rows of user and item.
    initial : TensorVariable, ()
        Entries of the states before all events.
    half_lives : TensorVariable, (K,)
        Half-lives of the memories.
    contexts : TensorVariable, (N,) or (0,)
        Contexts of the events.
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
    """Weights of the network and the sequences observed.

    Attributes
    ----------
    recurrent, inputs, outputs : WeightPrior
    shapes : tuple of TensorVariable
        Shapes of the weights that are present, without the users where they share the matrices.
    sequences : SequenceGroup
    memory, known, bias : WeightPrior, optional
        Outputs of memories and of known items, and biases of the gates.
    shared : WeightPrior, optional
        Matrices about which users' matrices lie.
    deterministics : dict of str to TensorVariable
        Functions of the weights.
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
        """The weights by the fields of `pymc_ep.models.sequences.kernel.Weights`; None for weights that are absent."""
        return self.recurrent, self.inputs, self.outputs, self.memory, self.known, self.bias

    @property
    def weights(self) -> tuple[WeightPrior, ...]:
        """The weights that the network has."""
        return tuple(table for table in self.tables if table is not None)

    @property
    def variables(self) -> tuple[WeightPrior, ...]:
        """All variables that are trained: the weights, and the matrices that users share."""
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
