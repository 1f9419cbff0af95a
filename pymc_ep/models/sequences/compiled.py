"""Compiled functions of models of sequences: data, shapes and priors of weights as arrays."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pymc_ep.engines.checkpoint import digest
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.hyper_functions import DrawFunctions
from pymc_ep.models.sequences.engine.values import Prior, Priors
from pymc_ep.models.sequences.form import SequencesForm, WeightPrior
from pymc_ep.models.sequences.kernel import CELLS, Sequences
from pymc_ep.models.sequences.sequence_data import require_contexts, require_items
from pymc_ep.modes import bodies_of, mode_of, numpy_mode

__all__ = ["CompiledSequences"]

_WINDOW = 4096
"""Typical number of events of a window, of all users of a group, for the estimate `CompiledSequences.work`."""

_NDIMS = (4, 3, 2, 2, 1, 3)
"""Number of axes of each table of weights, in the order of `Weights`."""


class CompiledSequences(DrawFunctions):
    """Compiled functions of a `SequencesForm`.

    Parameters
    ----------
    form : SequencesForm
    hyper_start : sequence of ndarray
        Unconstrained values of the hyperparameters at PyMC's initial point: none.
    compile_kwargs : dict, optional
        Keywords of `pytensor.function`; their mode chooses NumPy or JAX for training. These functions run on NumPy.
    """

    form: SequencesForm
    most_draws = 1
    """Default number of draws in a chain: all are the same."""

    def __init__(self, form: SequencesForm, hyper_start: Sequence[np.ndarray], compile_kwargs: dict | None = None):
        self.form = form
        self.backend = bodies_of(mode_of(compile_kwargs))
        self._kwargs = {"on_unused_input": "ignore", "mode": numpy_mode()}
        self.restart(hyper_start)

    def observed(self) -> list[np.ndarray]:
        """Return the present observations, a list of one array: rows of user and item, (N, 2)."""
        return [np.asarray(self._data()[0])]

    @property
    def initial(self) -> float:
        """Value of all entries of the states before the first events."""
        return float(self._data()[1])

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the six tables of weights, as in the model; absent tables have a first axis of length zero."""
        present_shapes = iter(self._data()[4:])
        given = [None if entry is None else tuple(map(int, next(present_shapes))) for entry in self.form.tables]
        recurrent, inputs = given[0], given[1]
        assert recurrent is not None and inputs is not None, "a network has matrices and inputs"
        none = (), (), (), (0, recurrent[-1] + 1), (0,), (0, *inputs[1:])
        return tuple(shape if entry is None else entry for entry, shape in zip(given, none))

    @property
    def half_lives(self) -> np.ndarray:
        """Half-lives of the K memories, in events, (K,)."""
        return np.asarray(self._data()[2])

    @property
    def contexts(self) -> np.ndarray:
        """Present contexts of the events, (N,), in the order of the rows; (0,) without contexts."""
        return np.asarray(self._data()[3])

    @property
    def pooled(self) -> bool:
        """Whether users share the recurrent matrices."""
        return len(self.shapes[0]) == 3

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.shapes[2][0]

    @property
    def work(self) -> float:
        """Number of multiplications for the logits of all items at the events of a window."""
        return float(min(len(self.observed()[0]), _WINDOW)) * np.prod(self.shapes[2])

    def sequences(self) -> tuple[Sequences, np.ndarray]:
        """Return the present sequences, and the row of each event in the observations, (N,).

        Raises
        ------
        InvalidDataError
            For indices out of range and shapes of weights that do not belong together.
        """
        self._require_shapes()
        rows, name = self.observed()[0], self.form.sequences.name
        if not len(rows):
            raise InvalidDataError(f"{name!r} has no events; observe at least one.")
        if bad := np.flatnonzero((rows != np.floor(rows)).any(axis=1)).tolist():
            raise InvalidDataError(f"{name!r} has {rows[bad[0]]} in row {bad[0]}, no whole numbers; correct it.")
        users, items = rows.astype(np.int64).T
        n_users = int(users.max()) + 1 if self.pooled else self.shapes[0][0]
        if bad := np.flatnonzero((users < 0) | (users >= n_users)).tolist():
            raise InvalidDataError(
                f"{name!r} has the user {users[bad[0]]} in row {bad[0]}, but {self.form.recurrent.name!r} has users 0 "
                f"to {n_users - 1}; correct it."
            )
        require_items(name, items, self.n_items)
        return self.arranged(users, items, self.contexts, n_users)

    def arranged(
        self, users: np.ndarray, items: np.ndarray, contexts: np.ndarray, n_users: int
    ) -> tuple[Sequences, np.ndarray]:
        """Return the sequences of N rows, with the form's memories and contexts, and the row of each event, (N,).

        Raises
        ------
        InvalidDataError
            For contexts that are not whole numbers, out of range, or not one for each event.
        """
        sequences, order = Sequences.of_rows(users, items, n_users, self.n_items, self.half_lives)
        if not len(self.contexts):
            return sequences, order
        name, n = self.form.sequences.name, self.shapes[-1][0]
        if len(contexts) != len(users):
            raise InvalidDataError(
                f"{name!r} has {len(users)} events and {len(contexts)} contexts, which go from 0 to {n - 1}; give each "
                f"event one of these."
            )
        if bad := np.flatnonzero(contexts != np.floor(contexts)).tolist():
            raise InvalidDataError(
                f"{name!r} has the context {contexts[bad[0]]} at event {bad[0]}, no whole number; correct it."
            )
        require_contexts(name, contexts, n)
        return sequences.in_context(contexts[order].astype(np.int64)), order

    def _require_shapes(self) -> None:
        """Raise InvalidDataError for tables of weights whose shapes do not fit together."""
        recurrent, inputs, outputs, memory, known, bias = self.shapes
        gates, width = recurrent[-3], recurrent[-1]
        fit = gates in map(len, CELLS.values()) and recurrent[-2] == width
        fit = fit and memory == (len(self.half_lives), width + 1) and known in ((0,), (width + 1,))
        fit = fit and bias[1:] == (gates, width)
        if not fit or inputs[1:] != (gates, width) or outputs != (inputs[0], width):
            named = zip(self.form.tables, self.shapes)
            names = ", ".join(f"{table.name!r} {shape}" for table, shape in named if table is not None)
            raise InvalidDataError(
                f"The weights {names} are not those of one network; give recurrent matrices (users, gates, D, D), or "
                f"(gates, D, D), with 1 or 3 gates, inputs (items, gates, D), outputs (items, D), memories "
                f"(half-lives, D + 1), known items (D + 1,) and biases (contexts, gates, D)."
            )

    def priors(self, dtype: str) -> tuple[Priors, Prior | None]:
        """Return the priors of the six tables of weights, and the prior of the mean of users' matrices.

        The latter is None where this mean is no variable.

        Raises
        ------
        InvalidDataError
            For standard deviations that are not positive and means that are not finite.
        """
        form, values = self.form, self._priors()
        arrays = dict(zip(form.variables, zip(values[::2], values[1::2])))
        table_priors = tuple(
            Prior(*np.zeros((2, *[1] * ndim), dtype)) if table is None else _checked(table, *arrays[table], ndim, dtype)
            for table, ndim in zip(form.tables, _NDIMS)
        )
        shared = None if form.shared is None else _checked(form.shared, *arrays[form.shared], 3, dtype)
        return table_priors, shared

    def fingerprint(self) -> dict[str, np.ndarray]:
        """Return digests of data and constants, by name, by which a saved result is matched with the model."""
        return {
            "sequences": digest(self.observed()[0].astype(np.int64)),
            "contexts": digest(self.contexts.astype(np.int64)),
            "initial_states": np.array(self.initial),
            "half_lives": digest(self.half_lives),
        }

    def describe(self) -> str:
        """Return a description of the form, one line per part."""
        form = self.form
        cell = next(name for name, gates in CELLS.items() if len(gates) == self.shapes[0][-3])
        whose = "shared by all users" if self.pooled else "each user's own"
        lines = [f"form             sequences of items under a recurrent network ({cell}), matrices {whose}"]
        for table, shape, of_table in zip(form.tables, self.shapes, self.priors("float64")[0]):
            if table is None:
                continue
            prior = "Gaussian" if (of_table.precision > 0).all() else "no prior"
            about = f", about {form.shared.name}" if form.shared is not None and table is form.recurrent else ""
            lines.append(f"latent           {table.name}: {' x '.join(map(str, shape))} values, {prior}{about}")
        if form.shared is not None:
            lines.append(f"latent           {form.shared.name}: {' x '.join(map(str, self.shapes[0][1:]))} values")
        if form.memory is not None:
            lines.append(f"repeats          of the user's items, by half-lives of {_listed(self.half_lives)} events")
        if form.known is not None:
            lines.append(f"known items      of the user are likelier than others or less likely, by {form.known.name}")
        sequences, _ = self.sequences()
        lines.append(
            f"observed         {form.sequences.name}: {len(sequences.items)} events of "
            f"{int((sequences.lengths > 0).sum())} users with {self.n_items} items"
            f"{f' in {self.shapes[-1][0]} contexts' if len(self.contexts) else ''}"
        )
        lines.append(f"hyperparameters  {self._describe_hyperparameters()}")
        lines.append(f"ignored          {', '.join(form.ignored) or 'none'}")
        return "\n".join(lines)

    @cached_property
    def _data(self) -> Callable[..., Any]:
        group = self.form.sequences
        constants = group.initial, group.half_lives, group.contexts
        return self.function([], [group.observed, *constants, *self.form.shapes])

    @cached_property
    def _priors(self) -> Callable[..., Any]:
        return self.function(
            [], [parameter for variable in self.form.variables for parameter in (variable.mean, variable.precision)]
        )


def _listed(numbers: np.ndarray) -> str:
    return " and ".join(f"{number:g}" for number in numbers)


def _checked(prior: WeightPrior, mean: Any, precision: Any, ndim: int, dtype: str) -> Prior:
    """Return a prior with arrays of `ndim` axes; raise for means that are not finite and precisions below zero."""
    bad = ~np.isfinite(mean)
    if bad.any():
        raise InvalidDataError(f"{prior.name!r} has the prior mean {np.asarray(mean)[bad][0]}; correct it.")
    bad = ~(np.isfinite(precision) & (np.asarray(precision) >= 0))
    if bad.any():
        raise InvalidDataError(f"{prior.name!r} has a prior standard deviation that is not positive; correct it.")
    arrays = (np.asarray(array, dtype=dtype) for array in (mean, precision))
    mean, precision = (array.reshape((1,) * (ndim - array.ndim) + array.shape) for array in arrays)
    return Prior(mean, precision)
