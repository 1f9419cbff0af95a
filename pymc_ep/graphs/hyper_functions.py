"""Hyperparameters of a form: their graphs, and functions of the unconstrained vector theta, (p,)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import CompiledFunction, compiled_function, compiled_property
from pymc_ep.graphs.jacobian_products import batch

__all__ = [
    "Coordinates",
    "DrawFunctions",
    "HyperFunctions",
    "HyperRows",
    "Hyperparameters",
    "LatentForm",
    "row_variables",
]


class Coordinates(Protocol):
    """Coordinates of a hyperparameter that replace PyMC's unconstrained values in theta.

    Coordinates and values are rows, (m, size), at m points of a hyperparameter of `size` values.
    """

    def to_values(self, coordinates: np.ndarray) -> np.ndarray:
        """Return PyMC's values for rows of these coordinates."""

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return these coordinates for rows of PyMC's values."""

    def pull(self, coordinates: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return gradients in these coordinates, given gradients in PyMC's values, both of one function."""

    def log_det(self, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log |d values / d coordinates|, (m,), and its gradient, (m, size)."""


@dataclass(frozen=True)
class Hyperparameters:
    """Symbolic hyperparameters and their log prior, as every form has them.

    Attributes
    ----------
    hyper_names : tuple of str
        Names of the hyperparameters, which are free random variables.
    hyper_values : tuple of TensorVariable
        Value variables on PyMC's unconstrained scale, the inputs of all other graphs of the form.
    hyper_constrained : tuple of TensorVariable
        Hyperparameters on their own scale, as functions of `hyper_values`.
    hyper_transformed : tuple of bool
        For each hyperparameter, whether PyMC transforms it, by a log, logit or the like.
    hyper_bounded : tuple of bool
        For each hyperparameter, whether its support is an interval with two ends.
    hyper_gaussian : tuple of str
        Names of the hyperparameters with Gaussian priors. They are not latent, because the model is not affine in them
        or the argument ``latent=`` leaves them out.
    log_prior : TensorVariable, ()
        Log density of the hyperparameters and of potentials, without Jacobian terms.
    log_prior_unconstrained : TensorVariable, ()
        Log density of `hyper_values`: `log_prior` with Jacobian terms.
    hyper_coordinates : tuple of (Coordinates or None)
        For each of `hyper_values`, its coordinates in theta; None where theta holds the value itself. An empty tuple
        stands for None throughout.
    """

    hyper_names: tuple[str, ...]
    hyper_values: tuple[TensorVariable, ...]
    hyper_constrained: tuple[TensorVariable, ...]
    hyper_transformed: tuple[bool, ...]
    hyper_bounded: tuple[bool, ...]
    hyper_gaussian: tuple[str, ...]
    log_prior: TensorVariable
    log_prior_unconstrained: TensorVariable
    hyper_coordinates: tuple[Coordinates | None, ...]

    @property
    def gaussian_remark(self) -> str:
        """Remark on Gaussian variables that are hyperparameters; empty where there are none."""
        if not self.hyper_gaussian:
            return ""
        names = ", ".join(self.hyper_gaussian)
        return f"Gaussian, but hyperparameters (the model is not linear in them, or latent= leaves them out): {names}"

    @property
    def mode_remark(self) -> str:
        """Remark of a method whose result has the hyperparameters at their mode, without a spread."""
        names = ", ".join(self.hyper_names)
        return f"the hyperparameters are at their mode, without a spread (sd 0 and no r_hat in az.summary): {names}"


class LatentForm(Hyperparameters):
    """A form whose Deterministics are graphs of hyperparameters and of placeholders that stand for latent variables.

    Attributes
    ----------
    deterministics : dict of str to TensorVariable
        Graphs of the Deterministics, by name.
    """

    deterministics: dict[str, TensorVariable]

    @property
    def stand_ins(self) -> dict[str, TensorVariable]:
        """Placeholders of the latent variables, by name."""
        raise NotImplementedError


class HyperFunctions:
    """Functions of the unconstrained hyperparameters theta, (p,); a mixin of compiled forms.

    theta has PyMC's unconstrained values, or for a hyperparameter with an entry in `form.hyper_coordinates` the
    coordinates that replace them.
    """

    form: Hyperparameters
    function: Callable[..., CompiledFunction]

    @cached_property
    def rows(self) -> "HyperRows":
        """Functions of many values of the hyperparameters, one a row."""
        return HyperRows(self)

    def shallow_copy(self) -> Self:
        """Return a copy that shares the compiled functions; `restart` of one of the two does not change the other."""
        other = object.__new__(type(self))
        other.__dict__ = self.__dict__ | {"rows": self.rows.bound_to(other)}
        return other

    def restart(self, hyper_start: Sequence[np.ndarray]) -> None:
        """Replace the unconstrained initial values of the hyperparameters, and with them the shapes."""
        values = np.concatenate([np.zeros(0), *(np.ravel(v) for v in hyper_start)])
        self._shapes = [np.shape(v) for v in hyper_start]
        sizes = [np.size(v) for v in hyper_start]
        self._ends = np.cumsum(sizes)[:-1]
        self.transformed = np.repeat(np.array(self.form.hyper_transformed, dtype=bool), sizes)
        self.bounded = np.repeat(np.array(self.form.hyper_bounded, dtype=bool), sizes)
        ends = np.cumsum([0, *sizes])
        places = zip(self.form.hyper_coordinates, ends[:-1], ends[1:])
        self._coordinates = [
            (coordinates, slice(begin, end)) for coordinates, begin, end in places if coordinates is not None
        ]
        self.start = self.from_values(values[None])[0]

    def in_values(self) -> Self:
        """Return a shallow copy whose theta is the vector of PyMC's unconstrained values."""
        other = self.shallow_copy()
        other.start, other._coordinates = self.to_values(self.start[None])[0], []
        return other

    def to_values(self, theta: np.ndarray) -> np.ndarray:
        """Return PyMC's unconstrained values, (s, p), for rows of theta, (s, p)."""
        out = theta.copy() if self._coordinates else theta
        for coordinates, columns in self._coordinates:
            out[:, columns] = coordinates.to_values(theta[:, columns])
        return out

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return theta, (s, p), for rows of PyMC's unconstrained values, (s, p)."""
        out = values.copy()
        for coordinates, columns in self._coordinates:
            out[:, columns] = coordinates.from_values(values[:, columns])
        return out

    def pull(self, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return gradients in theta, (s, p), from gradients in PyMC's unconstrained values, by the chain rule."""
        out = gradient.copy() if self._coordinates else gradient
        for coordinates, columns in self._coordinates:
            out[:, columns] = coordinates.pull(theta[:, columns], gradient[:, columns])
        return out

    def log_det(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log |d values / d theta|, (s,), and its gradient, (s, p), for rows of theta."""
        total, gradient = np.zeros(len(theta)), np.zeros_like(theta)
        for coordinates, columns in self._coordinates:
            log_dets, gradient[:, columns] = coordinates.log_det(theta[:, columns])
            total += log_dets
        return total, gradient

    def unpack(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return PyMC's unconstrained values at theta, (p,), in the shapes of `form.hyper_values`."""
        values = self.to_values(theta[None])[0]
        return [flat.reshape(s) for flat, s in zip(np.split(values, self._ends), self._shapes)] if self._shapes else []

    def constrained(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the hyperparameters on their own scale, by name, at one theta, (p,), or at rows of it, (s, p)."""
        rows = np.atleast_2d(theta)
        values = self._constrained(*self.unpack_rows(rows))
        out = dict(zip(self.form.hyper_names, (np.asarray(v) for v in values)))
        return out if np.ndim(theta) == 2 else {name: v[0] for name, v in out.items()}

    def unpack_rows(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return PyMC's unconstrained values, (s, *shape) each, for rows of theta, (s, p)."""
        blocks = np.split(self.to_values(theta), self._ends, axis=1) if self._shapes else []
        return [np.ascontiguousarray(block).reshape(len(theta), *s) for block, s in zip(blocks, self._shapes)]

    def _describe_hyperparameters(self) -> str:
        sizes = zip(self.form.hyper_names, self._shapes)
        names = ", ".join(f"{name} ({int(np.prod(s))})" if s else name for name, s in sizes) or "none"
        return "; ".join(filter(None, [names, self.form.gaussian_remark]))

    @compiled_property
    def _constrained(self) -> Callable[..., Any]:
        rows = row_variables(self.form.hyper_values)
        return self.function(rows.values(), [batch(v, rows) for v in self.form.hyper_constrained])


class HyperRows:
    """Log prior of the hyperparameters at rows of theta, (s, p).

    Parameters
    ----------
    compiled : HyperFunctions
        Compiled form with these hyperparameters.
    """

    def __init__(self, compiled: HyperFunctions):
        self._compiled = compiled

    def bound_to(self, compiled: HyperFunctions) -> Self:
        """Return a shallow copy with the same functions, bound to another compiled form."""
        rows = copy(self)
        rows._compiled = compiled
        return rows

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Return the log density, (s,), at rows of theta, (s, p), Jacobian terms included."""
        return np.asarray(self._log_prior(*self._compiled.unpack_rows(theta))) + self._compiled.log_det(theta)[0]

    def log_prior_gradients(self, theta: np.ndarray, *, jacobian: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return the log density, (s,), and its gradients in theta, (s, p), optionally without Jacobian terms."""
        function = self._log_prior_gradients if jacobian else self._natural_gradients
        value, *gradients = function(*self._compiled.unpack_rows(theta))
        gradient = np.concatenate([np.reshape(array, (len(theta), -1)) for array in gradients], axis=1)
        if not jacobian:
            return np.asarray(value), self._compiled.pull(theta, gradient)
        # log p(theta) = log p(x) + log |dx / dtheta|, with x PyMC's unconstrained values.
        log_det, slopes = self._compiled.log_det(theta)
        return np.asarray(value) + log_det, self._compiled.pull(theta, gradient) + slopes

    @compiled_property
    def _log_prior(self) -> Callable[..., Any]:
        form = self._compiled.form
        rows = row_variables(form.hyper_values)
        return self._compiled.function(rows.values(), batch(form.log_prior_unconstrained, rows))

    @compiled_property
    def _log_prior_gradients(self) -> Callable[..., Any]:
        return self._with_gradients(self._compiled.form.log_prior_unconstrained)

    @compiled_property
    def _natural_gradients(self) -> Callable[..., Any]:
        return self._with_gradients(self._compiled.form.log_prior)

    def _with_gradients(self, log_prior: TensorVariable) -> Callable[..., Any]:
        rows = row_variables(self._compiled.form.hyper_values)
        value = batch(log_prior, rows)
        # A row's density depends on that row alone, so that the rows of the sum's gradient are the gradients of rows.
        gradients = pytensor.grad(value.sum(), list(rows.values()), disconnected_inputs="ignore")
        return self._compiled.function(rows.values(), [value, *gradients])


class DrawFunctions(HyperFunctions):
    """Functions of draws of hyperparameters and latent variables; a mixin of the compiled forms of a `LatentForm`."""

    form: LatentForm
    _kwargs: dict[str, Any]

    def function(self, inputs: Iterable[TensorVariable], outputs: Any) -> CompiledFunction:
        """Return a compiled function from `inputs` to `outputs`, which are graphs of the model."""
        return compiled_function(inputs, outputs, **self._kwargs)

    def evaluate(self, theta: np.ndarray, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return hyperparameters and Deterministics, (s, *shape) by name, for s draws of theta and latent variables."""
        outputs = self._deterministics(*self.unpack_rows(theta), *(values[name] for name in self.form.stand_ins))
        return self.constrained(theta) | dict(zip(self.form.deterministics, map(np.asarray, outputs)))

    @compiled_property
    def _deterministics(self) -> Callable[..., Any]:
        rows = row_variables([*self.form.hyper_values, *self.form.stand_ins.values()])
        return self.function(rows.values(), [batch(v, rows) for v in self.form.deterministics.values()])


def row_variables(variables: Sequence[TensorVariable]) -> dict[TensorVariable, TensorVariable]:
    """Return, for each variable, a variable of shape (s, *shape) that holds s values of it."""
    return {v: pt.TensorType(v.dtype, shape=(None, *v.type.shape))(f"{v.name}_rows") for v in variables}
