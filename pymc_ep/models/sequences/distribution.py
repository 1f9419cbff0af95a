"""Distribution of sequences of items by users, under a recurrent network with matrices of each user."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

from pymc_ep.datasets.events import SequenceTable
from pymc_ep.exceptions import InvalidDataError, did_you_mean
from pymc_ep.kernels import register_bodies
from pymc_ep.models.sequences.kernel import CELLS, Sequences, Weights, Window, initial_states, sequence_logp
from pymc_ep.models.sequences.kernel.body import forward
from pymc_ep.models.sequences.kernel.memory import recalled
from pymc_ep.models.sequences.kernel.op import require_rows
from pymc_ep.models.sequences.sequence_data import relabelled, stored_contexts, stored_rows

__all__ = ["CollaborativeRNN", "CollaborativeRNNRV"]

_HALF_LIVES = (5.0, np.inf)
"""Default half-lives of memories, in events. Of 5, 20 and 80 events, 5 predicts check-ins of Brightkite best by far.
For Foursquare 20 is the best, and 5 costs a few hundredths of a nat more."""
_SPREAD = 1.0
"""Default standard deviation of users' matrices about shared ones. On check-ins and films 0.3 is as good, or better by
0.01 nats an event to be predicted, and without memories by 0.07. For people who have little in common, 0.3 is far
worse."""


class CollaborativeRNNRV(RandomVariable):
    """Op of `CollaborativeRNN`: draws an item for each row, given its user's items in the rows before."""

    name = "collaborative_rnn"
    signature = "(u,g,d,d),(i,g,d),(i,d),(k,e),(z),(c,g,d),(),(k),(x),(n)->(n,m)"
    dtype = "int64"
    _print_name = ("CollaborativeRNN", "\\operatorname{CollaborativeRNN}")

    def _supp_shape_from_params(self, dist_params: Sequence[Any], param_shapes: Any = None) -> tuple[Any, ...]:
        users = dist_params[-1]
        length = users.shape[-1] if param_shapes is None else param_shapes[-1][-1]
        return length, pt.constant(2, dtype="int64")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, *args: Any) -> np.ndarray:
        """Draw rows of user and item, (*size, N, 2)."""
        *parameters, size = args
        cores = (4, 3, 2, 2, 1, 3, 0, 1, 1, 1)
        batches = [np.shape(p)[: np.ndim(p) - core] for p, core in zip(parameters, cores)]
        batch = np.broadcast_shapes(*batches) if size is None else tuple(size)
        if not batch:
            return _drawn(rng, *parameters)
        each = [np.broadcast_to(p, (*batch, *np.shape(p)[np.ndim(p) - c :])) for p, c in zip(parameters, cores)]
        draws = [_drawn(rng, *(p[index] for p in each)) for index in np.ndindex(*batch)]
        return np.stack(draws).reshape(*batch, *draws[0].shape)


def _drawn(rng: np.random.Generator, *parameters: Any) -> np.ndarray:
    """Return drawn rows of user and item, (N, 2); the t-th events of all users are drawn together."""
    *tables, initial, half_lives, contexts, users = parameters
    weights, users = Weights(*tables), np.asarray(users, dtype=np.int64)
    require_rows(weights, users, np.zeros_like(users), contexts)
    n_users, n_items = int(users.max(initial=-1)) + 1, len(weights.outputs)
    table, knows = np.concatenate([weights.outputs, weights.memory[:, :-1]]), len(weights.known) > 0
    is_known = np.zeros((n_users if knows else 0, n_items), dtype=bool)
    sequences, order = Sequences.of_rows(users, np.zeros_like(users), n_users, n_items)
    following = sequences.in_context(contexts[order]).following if len(contexts) else None
    lengths, h, items = sequences.lengths, initial_states(n_users, weights, float(initial)), sequences.items
    for t in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > t)
        # Logits v_i^T h of items and m_k^T h + b_k + log I of memories; known items have z^T h + c more.
        logits = h[active] @ table.T
        logits[:, n_items:] += np.log(n_items) + weights.memory[:, -1]
        if knows:
            logits[:, :n_items] += is_known[active] * weights.shift(h[active])[:, None]
        sums = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
        # Inversion: the number of cumulative sums below u times the last one.
        chosen, ends = (sums < (rng.random(len(active)) * sums[:, -1])[:, None]).sum(axis=1), sequences.ends[active] + t
        for k, half_life in enumerate(half_lives):
            uniform, from_memory = rng.random(len(active)), chosen == n_items + k
            if t:
                chosen[from_memory] = items[
                    ends[from_memory] - recalled(uniform[from_memory], np.full(from_memory.sum(), t), half_life)
                ]
            else:
                chosen[from_memory] = n_items * uniform[from_memory]
        items[ends] = chosen
        if knows:
            is_known[active, chosen] = True
        of_users = weights if len(weights.recurrent) == 1 else weights._replace(recurrent=weights.recurrent[active])
        of_next = None if following is None else following[ends]
        h[active] = forward(of_users, Window(chosen, np.array([len(active)]), following=of_next), h[active]).last
    out = np.stack([users, np.empty_like(users)], axis=1)
    out[order, 1] = items
    return out


collaborative_rnn = CollaborativeRNNRV()
register_bodies("numba", "pymc_ep.models.sequences.distribution_numba")


class CollaborativeRNN(Discrete):
    r"""Sequences of items by users: each item is predicted from its user's items before it [1]_.

    .. math:: P(y_{t+1} = i \mid y_1, \dots, y_t) \propto \exp(v_i^\top h_t), \qquad
              h_t = \tanh(W_{y_t} + a_{x_{t+1}} + R_u h_{t-1})

    or, with ``cell="gru"``, :math:`h_t = (1 - w_t) h_{t-1} + w_t \tanh(W_{y_t} + a_{x_{t+1}} + R_u (r_t h_{t-1}))` with
    gates :math:`w_t, r_t` that are logistic functions of such sums. Here :math:`h_t`, (D,), is the state of user u
    after item :math:`y_t`. Each user has its own matrices :math:`R_u`, one for each gate. All users share the inputs W
    and the outputs v, with a row for each item, and the biases a, with a row for each context x of the event to
    predict. All entries of :math:`h_0` are `initial`, so that the first item has the same probabilities for all users.

    With `repeats` the softmax chooses among the I items and memories of the user's past. The logit of memory k is
    :math:`m_k^\top h_t + b_k + \log I`. A memory that is chosen yields each of the user's earlier items with the
    probability of its share among the earlier events (as in the pointers of [2]_). In a memory of half-life H an event
    counts half as much after H others. Before the first event a memory yields all items with equal probability. Items
    that the user had before also have another logit than new ones, :math:`v_i^\top h_t + z^\top h_t + c`: where nobody
    chooses an item twice, as with films, training lowers it.

    Parameters
    ----------
    name : str
    n_items : int, optional
        Number of items; by default the length of the coordinates `item`.
    hidden : int
        Number of hidden units D.
    cell : {"gru", "tanh"}
    pooled : bool
        Whether all users share the matrices R.
    repeats : bool or sequence of float
        Half-lives of the memories, in events, which may be infinite. True stands for 5 and infinity. With an empty
        sequence there are no memories, but items that the user had before have another logit. With False there is
        neither.
    context : list of array_like of int, or pymc.Data, (N,), optional
        Context of each event, such as the hour, which is known before the item: for each user an array with one context
        for each event, or data with one context for each row. Contexts are positions of labels, which are coordinates
        of the table's dim of the context, or of ``<name>_context``. By default the context of the observed table, if
        any.
    recurrent, inputs, outputs, memory, known, bias : optional
        Priors of R, (users, gates, D, D), or (gates, D, D) if pooled; of W, (items, gates, D); of v, (items, D); of m
        and b, (memories, D + 1); of z and c, (D + 1,); of a, (contexts, gates, D), with one context if none are given.
        Each is a distribution such as ``pm.Normal.dist(0, 1)``, by default `pymc.Flat`, or a variable of the model. New
        variables are named ``<name>_recurrent``, ``<name>_input``, ``<name>_output``, ``<name>_memory``,
        ``<name>_known`` and ``<name>_bias``. Gates are in the order candidate, update, reset. With ``bias=False`` there
        are no biases; with ``repeats=False`` and ``spread=False`` too, the model is the network of [1]_.
    spread : bool or float
        Standard deviation of each user's R about a mean that all users share, the variable ``<name>_recurrent_mean``.
        True stands for 1, or for False if users share R or `recurrent` is given. With False there is no shared mean.
    initial : float
        Value of all entries of the state before the first event.
    n_users : int, optional
        Number of users, where nothing is observed and there are no coordinates `user`.
    lengths : array_like of int, (users,), optional
        Number of events of each user to draw, where nothing is observed; one by default.
    user, item : str, optional
        Dims of users and items; by default the columns of the table that is observed, otherwise ``user`` and ``item``.
        If the model has no coordinates of a dim, the table's labels are added, or numbers from zero.
    observed : list of array_like of int, SequenceTable, or pymc.Data, (N, 2)
        Positions of the items of each user, in their order; a table of `pymc_ep.from_events`, whose labels are found
        in the coordinates of the model; or rows of user and item. All are stored as rows of user and item, and the
        coordinates ``<name>_column`` are the dims of users and items.

    Raises
    ------
    InvalidDataError
        For users without events, numbers that are not whole, items and contexts out of range, numbers of users or items
        that differ from their coordinates, and a table of columns that are not `user` and `item`.
    ValueError
        For an unknown cell, half-lives that are not positive, and options that exclude each other.

    References
    ----------
    .. [1] Y. J. Ko, L. Maystre and M. Grossglauser (2016), Collaborative recurrent neural networks for dynamic
       recommender systems, ACML.
    .. [2] S. Merity, C. Xiong, J. Bradbury and R. Socher (2017), Pointer sentinel mixture models, ICLR.

    Examples
    --------
    >>> with pm.Model(coords={"item": ["home", "work", "gym"]}) as model:
    ...     visits = CollaborativeRNN("visits", hidden=4, observed=[[0, 1, 0, 1], [0, 2, 2]])
    """

    rv_op = collaborative_rnn

    def __new__(
        cls,
        name: str,
        *,
        n_items: int | None = None,
        hidden: int,
        cell: str = "gru",
        pooled: bool = False,
        repeats: bool | Sequence[float] = True,
        context: Any = None,
        recurrent: Any = None,
        inputs: Any = None,
        outputs: Any = None,
        memory: Any = None,
        known: Any = None,
        bias: Any = None,
        spread: bool | float = True,
        initial: float = 0.1,
        n_users: int | None = None,
        lengths: Any = None,
        user: str | None = None,
        item: str | None = None,
        observed: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Add the weights that are not given, then the sequences, to the model."""
        model = pm.modelcontext(None)
        _require_architecture(name, hidden, cell, initial)
        of_users, of_items, *_ = observed.coords if isinstance(observed, SequenceTable) else ("user", "item")
        user, item = user or of_users, item or of_items
        if isinstance(observed, SequenceTable):
            observed = relabelled(name, observed, (user, item), model.coords)
            model.add_coords({dim: labels for dim, labels in observed.coords.items() if dim not in model.coords})
        n_items = _agreed(model, name, "items", item, n_items)
        rows, users, n_observed = stored_rows(name, observed, lengths, n_items)
        n_users = _agreed(model, name, "users", user, n_users, n_observed)
        if users is None:
            users = np.arange(n_users)
        contexts, of_context = stored_contexts(model, name, observed, context, users, n_users)
        gates, half_lives = CELLS[cell], _half_lives(name, repeats)
        unit, earlier, gate = (f"{name}_{what}" for what in ("unit", "earlier_unit", "gate"))
        model.add_coords({unit: range(hidden), earlier: range(hidden), gate: gates})
        numbered = {side: range(n) for side, n in ((user, n_users), (item, n_items)) if side not in model.coords}
        # No variable of users that share their matrices has the dim of users.
        model.add_coords(numbered | {f"{name}_column": (user, item)})
        of_all = gate, unit, earlier
        shape = (len(gates), hidden, hidden)
        if spread is True:
            spread = _SPREAD if not pooled and recurrent is None else False
        if spread is not False:
            recurrent = _about_shared(name, spread, pooled, recurrent, shape, of_all)
        tables = [
            ("recurrent", recurrent, *((shape, of_all) if pooled else ((n_users, *shape), (user, *of_all)))),
            ("input", inputs, (n_items, *shape[:2]), (item, gate, unit)),
            ("output", outputs, (n_items, hidden), (item, unit)),
        ]
        if half_lives is not None:
            term = f"{name}_term"
            model.add_coords({term: (*map(str, range(hidden)), "constant")})
        if half_lives:
            half_life = f"{name}_half_life"
            model.add_coords({half_life: half_lives})
            tables.append(("memory", memory, (len(half_lives), hidden + 1), (half_life, term)))
        elif memory is not None:
            raise ValueError(f"{name!r} has memory= and repeats={repeats!r}, so no memories; leave out one of them.")
        if half_lives is not None:
            tables.append(("known", known, (hidden + 1,), (term,)))
        elif known is not None:
            raise ValueError(f"{name!r} has known= and repeats=False, so no known items; leave out one of them.")
        if bias is not False:
            tables.append(("bias", bias, (len(model.coords[of_context]), *shape[:2]), (of_context, gate, unit)))
        elif isinstance(contexts, Variable) or len(contexts):
            raise ValueError(f"{name!r} has contexts and bias=False, but contexts are biases; leave out one of them.")
        weights = [_weights(model, f"{name}_{what}", *prior_and_shape) for what, *prior_and_shape in tables]
        names = (what for what, *_ in tables[3:])
        kwargs |= dict(zip(names, weights[3:])) | {"half_lives": half_lives or (), "contexts": contexts}
        return super().__new__(cls, name, *weights[:3], users=users, initial=initial, observed=rows, **kwargs)

    @classmethod
    def dist(
        cls,
        recurrent: Any,
        inputs: Any,
        outputs: Any,
        *,
        memory: Any = None,
        known: Any = None,
        bias: Any = None,
        users: Any,
        contexts: Any = (),
        initial: Any = 0.1,
        half_lives: Any = (),
        **kwargs: Any,
    ) -> Any:
        """Return a variable of this distribution outside of any model.

        Parameters
        ----------
        recurrent : tensor_like, (users, gates, D, D) or (gates, D, D)
            Matrices R, of each user or of all.
        inputs : tensor_like, (items, gates, D)
            Inputs W.
        outputs : tensor_like, (items, D)
            Outputs v.
        memory : tensor_like, (memories, D + 1), optional
            Weights m and, in the last column, b of memories.
        known : tensor_like, (D + 1,), optional
            Weights z and c of items that the user had before.
        bias : tensor_like, (contexts, gates, D), optional
            Biases a; by default there are none.
        users : array_like of int, (N,)
            User of each event; the events of a user are in order of time.
        contexts : array_like of int, (N,), optional
            Context of each event.
        initial : float
            Value of all entries of the states before the first events.
        half_lives : sequence of float, (memories,)
            Half-lives of the memories, in events.
        **kwargs
            Keywords of `pymc.Distribution.dist`.
        """
        recurrent, inputs, outputs = map(pt.as_tensor_variable, (recurrent, inputs, outputs))
        if recurrent.ndim == 3:
            recurrent = recurrent[None]
        memory = pt.zeros((0, outputs.shape[-1] + 1)) if memory is None else pt.as_tensor_variable(memory)
        known = pt.zeros((0,)) if known is None else pt.as_tensor_variable(known)
        bias = pt.zeros((0, *inputs.shape[1:])) if bias is None else pt.as_tensor_variable(bias)
        ranks = recurrent.ndim, inputs.ndim, outputs.ndim, memory.ndim, known.ndim, bias.ndim
        if ranks != (4, 3, 2, 2, 1, 3):
            raise InvalidDataError(
                f"CollaborativeRNN takes matrices (users, gates, D, D) or (gates, D, D), inputs (items, gates, D), "
                f"outputs (items, D), memories (memories, D + 1), known items (D + 1,) and biases (contexts, gates, "
                f"D), and got {', '.join(map(str, ranks))} dimensions."
            )
        numbers = [(initial, "float64"), (half_lives, "float64"), (contexts, "int64"), (users, "int64")]
        constants = [
            value if isinstance(value, Variable) else np.asarray(value, dtype=dtype) for value, dtype in numbers
        ]
        cast = [pt.as_tensor_variable(value).astype(dtype) for value, (_, dtype) in zip(constants, numbers)]
        return super().dist([recurrent, inputs, outputs, memory, known, bias, *cast], **kwargs)

    def support_point(rv: Any, size: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: the first item in all events."""
        users = parameters[-1]
        return pt.broadcast_to(pt.stack([users, pt.zeros_like(users)], axis=-1), rv.shape)

    def logp(value: Any, *parameters: Any) -> Any:
        """Return the graph of the log probability of each event, (N,), given its user's events before it."""
        *weights, contexts, _ = parameters
        return sequence_logp(value[:, 0], value[:, 1], contexts, *weights)


def _require_architecture(name: str, hidden: Any, cell: Any, initial: Any) -> None:
    if cell not in CELLS:
        cells = " or ".join(map(repr, CELLS))
        raise ValueError(f"cell={cell!r} of {name!r} must be {cells}.{did_you_mean(cell, CELLS)}")
    if isinstance(hidden, bool) or not isinstance(hidden, int | np.integer) or hidden < 1:
        raise ValueError(f"hidden={hidden!r} of {name!r} must be a whole number of at least 1.")
    if not isinstance(initial, int | float | np.number) or not np.isfinite(initial):
        raise ValueError(f"initial={initial!r} of {name!r} must be a finite number, the entries of all first states.")


def _half_lives(name: str, repeats: Any) -> tuple[float, ...] | None:
    """Return the half-lives of memories, empty for no memories; None for no term of a user's past at all."""
    if isinstance(repeats, bool | np.bool_):
        return _HALF_LIVES if repeats else None
    try:
        half_lives = np.asarray(repeats, dtype=float)
    except (TypeError, ValueError):
        half_lives = np.array(np.nan)
    if half_lives.ndim != 1 or not (half_lives > 0).all() or len(np.unique(half_lives)) < len(half_lives):
        raise ValueError(
            f"repeats={repeats!r} of {name!r} must be True, False or different half-lives, numbers of events above "
            f"zero, such as (5, np.inf)."
        )
    return tuple(half_lives.tolist())


def _agreed(model: pm.Model, name: str, what: str, dim: str, given: int | None, n_observed: int | None = None) -> int:
    """Return the number of users or items, from argument, coordinates or observations; raise where these differ."""
    labels = model.coords.get(dim)
    counts = {f"n_{what}={given}": given, f"the dim {dim!r}": None if labels is None else len(labels)}
    counts["the observations"] = n_observed
    numbers = {source: n for source, n in counts.items() if n is not None}
    if not numbers:
        raise InvalidDataError(f"{name!r} has an unknown number of {what}; give n_{what}=, or coordinates of {dim!r}.")
    (first, n), *others = numbers.items()
    for source, other in others:
        if other != n:
            raise InvalidDataError(
                f"{name!r} has {n} {what} by {first}, and {other} by {source}; give both the same number."
            )
    return int(n)


def _about_shared(
    name: str, spread: Any, pooled: bool, recurrent: Any, shape: tuple[int, ...], dims: Sequence[str]
) -> Any:
    """Add mean matrices that all users share to the model; return the prior of each user's matrices about them."""
    if pooled or recurrent is not None:
        other = "pooled=True" if pooled else "recurrent="
        raise ValueError(f"{name!r} has spread={spread!r} and {other}, of which one alone says how users differ.")
    if not isinstance(spread, int | float | np.number) or not 0 < spread < np.inf:
        raise ValueError(f"spread={spread!r} of {name!r} must be a positive number, or False for none.")
    return pm.Normal.dist(pm.Flat(f"{name}_recurrent_mean", shape=shape, dims=dims), spread)


def _weights(model: pm.Model, name: str, prior: Any, shape: tuple[int, ...], dims: Sequence[str]) -> Any:
    """Return weights: a new variable of the model with this prior, or `prior` itself if it is no distribution."""
    if prior is None:
        prior = pm.Flat.dist()
    if not isinstance(prior, Variable):
        raise InvalidDataError(
            f"The prior of {name!r} is a {type(prior).__name__}; give a distribution such as pm.Normal.dist(0, 1)."
        )
    if prior in model.named_vars.values() or prior.owner is None or not isinstance(prior.owner.op, RandomVariable):
        if prior.ndim != len(shape) or any(n not in (None, m) for n, m in zip(prior.type.shape, shape)):
            raise InvalidDataError(f"{prior.name or name!r} has the shape {prior.type.shape}; {name!r} needs {shape}.")
        return prior
    return model.register_rv(change_dist_size(prior, shape), name, dims=dims)
