"""The bilinear form as functions of arrays."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

from pymc_ep.engines.checkpoint import digest
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.hyper_functions import DrawFunctions
from pymc_ep.models.bilinear.engine.values import BilinearPrior, Cells, MatrixPrior
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.modes import bodies_of, mode_of, numpy_mode
from pymc_ep.sites.base import first_outside
from pymc_ep.sites.cells.base import require_observations

__all__ = ["CompiledBilinear"]

_SINGULAR = 1e-14
"""Least ratio of a covariance's smallest eigenvalue to its largest; below it the inverse is rounding error. Some fifty
times the machine epsilon."""

_FAR_ABOVE = 25.0
"""Largest excess of a first log rate over the log of the largest count, nats: a factor of 7e10. No sensible start is so
far off, but an exposure passed in place of its log is."""


class CompiledBilinear(DrawFunctions):
    """Compiled functions of a `Bilinear`.

    Parameters
    ----------
    form : Bilinear
    hyper_start : sequence of ndarray
        Unconstrained values of the hyperparameters at PyMC's initial point, for their shapes.
    compile_kwargs : dict, optional
        Keywords of `pytensor.function`. A mode determines which implementations of kernels are used; the model's own
        graphs run on NumPy.
    """

    form: Bilinear
    most_draws = 1000
    """Default number of draws in a chain: a compromise between Monte Carlo error and memory for both matrices."""

    def __init__(self, form: Bilinear, hyper_start: Sequence[np.ndarray], compile_kwargs: dict | None = None):
        self.form, self.backend = form, bodies_of(mode_of(compile_kwargs))
        self._kwargs = {"on_unused_input": "ignore"} | (compile_kwargs or {}) | {"mode": numpy_mode()}
        self.restart(hyper_start)

    def observed(self) -> list[np.ndarray]:
        """Return the current observations, as a list of one array."""
        return [np.asarray(self._data()[0])]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the form's entries, which are the matrices and then the biases."""
        return [tuple(int(n) for n in shape) for shape in self._entry_shapes(*self.unpack(self.start))]

    @property
    def work(self) -> float:
        """Multiplications in V^T V, I D^2, where V is the matrix, left or right, with more rows, I."""
        return float(max(shape[0] for shape in self.shapes)) * self.n_factors**2

    @property
    def n_factors(self) -> int:
        """Number D of columns of either matrix."""
        return self.shapes[0][1]

    def cells(self) -> Cells:
        """Return the cells with the current data.

        Raises
        ------
        InvalidDataError
            For observations outside their domain, indices out of range, and shapes that differ.
        """
        y, wanted, rows, cols = (np.asarray(array) for array in self._data())
        if len(wanted) == 2 and y.shape != tuple(wanted):
            v, u = (matrix.name for matrix in self.form.matrices)
            raise InvalidDataError(
                f"{self.form.cells.name!r} has observations of shape {y.shape}, but the products of {v!r} and {u!r} "
                f"are of shape {tuple(map(int, wanted))}; correct the one or the other, or transpose the observations."
            )
        self.require_cells(y.ravel(), rows, cols, shape=y.shape)
        shape = self.shapes[0][0], self.shapes[1][0]
        return Cells.of(y.ravel(), rows.astype(np.int64), cols.astype(np.int64), shape, self.form.cells.site)

    def require_cells(
        self, y: np.ndarray, rows: np.ndarray, cols: np.ndarray, *, shape: tuple[int, ...] | None = None
    ) -> None:
        """Raise InvalidDataError unless observations `y`, and rows and columns of their cells, (n,) each, are valid.

        Messages name a wrong observation by its index in an array of shape `shape`, as passed by the user.
        """
        group = self.form.cells
        if not y.ndim == 1 == rows.ndim or not y.shape == rows.shape == cols.shape:
            raise InvalidDataError(
                f"{group.name!r} has observations of shape {y.shape}, rows of shape {rows.shape} and columns of shape "
                f"{cols.shape}; give one of each for every cell."
            )
        if not len(y):
            raise InvalidDataError(f"{group.name!r} has no cells; observe at least one.")
        (n_rows, d), (n_cols, other_d) = self.shapes[:2]
        if not d:
            raise InvalidDataError(f"{self.form.matrices[0].name!r} has no columns; give it at least one factor.")
        if d != other_d:
            names = " and ".join(repr(matrix.name) for matrix in self.form.matrices)
            raise InvalidDataError(f"{names} have {d} and {other_d} columns; give both as many.")
        for what, index, size, matrix in zip(("row", "column"), (rows, cols), (n_rows, n_cols), self.form.matrices):
            bad = (index < 0) | (index >= size)
            if bad.any():
                k = int(np.argmax(bad))
                raise InvalidDataError(
                    f"{group.name!r} has the {what} {index[k]} at index {k}, but {matrix.name!r} has rows 0 to "
                    f"{size - 1}; correct that index, or give {matrix.name!r} more rows."
                )
        require_observations(group.site, np.reshape(y, shape or y.shape), group.name)

    def started(self, theta: np.ndarray) -> tuple[Cells, BilinearPrior]:
        """Return the present cells, and the prior at the first hyperparameters, (p,).

        Raises
        ------
        InvalidDataError
            As `cells`, and for invalid offsets, likelihood parameters and priors.
        """
        cells = self.cells()
        try:
            prior = self.prior(theta)
        except IndexError as error:
            reason = str(error).partition("\n")[0]
            names = ", ".join(map(repr, self.form.hyper_names))
            raise InvalidDataError(
                f"An offset or prior of {self.form.cells.name!r} takes {names} out of range: {reason}. Check index "
                f"arrays against shapes and dims; a bias of rows has as many entries as their matrix has rows."
            ) from error
        self.require_numbers(prior.offset, prior.parameters)
        self._require_rates(cells.y, prior.offset)
        means = self.split(prior.left.mean, prior.right.mean)
        variances = self.split(prior.left.variance, prior.right.variance)
        for entry in self.form.entries:
            _require(f"{entry.name!r} has the prior mean", means[entry.name], "real")
            if entry.covariance is None and not entry.flat:
                signed = variances[entry.name]
                # A variance s |s| keeps the sign of the standard deviation s.
                sd = np.sign(signed) * np.sqrt(np.abs(signed))
                _require(f"{entry.name!r} has the prior standard deviation", sd, "positive")
        return cells, prior

    def require_numbers(self, offset: np.ndarray, parameters: Sequence[np.ndarray]) -> None:
        """Raise InvalidDataError unless offsets are finite and likelihood parameters positive, (n,) each."""
        group = self.form.cells
        _require(f"{group.name!r} has the offset", offset, "real")
        for name, values in zip(group.site.parameters, parameters):
            _require(f"{group.name!r} has the {name}", values, "positive")

    def _require_rates(self, y: np.ndarray, offset: np.ndarray) -> None:
        """Raise InvalidDataError for offsets of counts whose rates e^offset are far above all counts."""
        group = self.form.cells
        if group.site.domain != "count" or group.link != "exp" or not y.size:
            return
        k, most = int(np.argmax(offset)), float(y.max())
        if offset[k] > np.log(most + 1.0) + _FAR_ABOVE:
            raise InvalidDataError(
                f"{group.name!r} has the offset {offset[k]:.6g} at index {k}, so that rates e^f begin near "
                f"e^{offset[k]:.4g}, while its largest count is {most:g}. Offsets are added to log rates: pass the log "
                f"of an exposure, or start an intercept lower."
            )

    def prior(self, theta: np.ndarray) -> BilinearPrior:
        """Return priors, offsets and likelihood parameters at unconstrained hyperparameters `theta`, (p,)."""
        log_prior, offset, *rest = (np.asarray(output) for output in self._prior(*self.unpack(theta)))
        n = len(self.form.cells.parameters)
        parameters, left = tuple(rest[:n]), iter(rest[n:])
        by_name = {}
        for entry, shape in zip(self.form.entries, self.shapes):
            flat = np.zeros(shape), np.full(shape, np.inf)
            by_name[entry.name] = (
                MatrixPrior(*flat) if entry.flat else MatrixPrior(*(next(left) for _ in entry.moments))
            )
            _require_positive(entry.name, by_name[entry.name].covariance)
        left_prior, right_prior = (
            self._joined(by_name[matrix.name], None if bias is None else by_name[bias.name])
            for matrix, bias in zip(self.form.matrices, self.form.biases)
        )
        return BilinearPrior(left_prior, right_prior, offset, parameters, float(log_prior))

    def fingerprint(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return summaries of data and priors, by name; they tell whether a saved result belongs to this model."""
        prior, (y, _, rows, cols) = self.prior(theta), map(np.asarray, self._data())
        per_cell = [prior.offset, *prior.parameters]
        alike = all(np.ptp(array) == 0 for array in per_cell)
        moments = [getattr(side, name) for name in ("mean", "variance") for side in (prior.left, prior.right)]
        finite = [np.where(np.isfinite(array), array, 0.0).mean(axis=0) for array in moments]
        return {
            "cells": digest(self.form.cells.site.name, y.astype(float), rows.astype(np.int64), cols.astype(np.int64)),
            "offset": np.array([array[:1] if alike else array for array in per_cell]),
            "prior_mean": np.concatenate(finite[:2]),
            "prior_variance": np.concatenate(finite[2:]),
        }

    def pullback(
        self,
        theta: np.ndarray,
        of_prior: Sequence[MatrixPrior],
        of_offset: np.ndarray,
        of_parameters: Sequence[np.ndarray],
        *,
        of_log_prior: float = 1.0,
    ) -> np.ndarray:
        """Return the gradient in theta, (p,), of the log prior plus a function of the prior's arrays.

        Parameters
        ----------
        theta : ndarray, (p,)
        of_prior : sequence of MatrixPrior
            The function's gradients in the moments of the left and of the right prior.
        of_offset : ndarray, (n,)
            Its gradient in the offsets.
        of_parameters : sequence of ndarray, (n,)
            Its gradient in each likelihood parameter.
        of_log_prior : float
            Factor of the log prior; zero leaves it out.
        """
        d, cotangents = self.n_factors, {}
        for k, (matrix, bias) in enumerate(zip(self.form.matrices, self.form.biases)):
            mean, variance, covariance = of_prior[k]
            cotangents[matrix.name] = [mean[:, :d], variance[:, :d], *([] if covariance is None else [covariance])]
            if bias is not None:
                cotangents[bias.name] = [mean[:, d], variance[:, d]]
        flat = [cotangent for entry in self.form.entries if not entry.flat for cotangent in cotangents[entry.name]]
        gradients = self._pullback(*self.unpack(theta), of_offset, *of_parameters, *flat, of_log_prior)
        return np.concatenate([np.zeros(0), *(np.ravel(p) for p in gradients)])

    def split(self, left: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
        """Split two arrays, (..., K), into the parts of matrices and biases, by name; a bias is the last column."""
        d, out = self.n_factors, {}
        for array, matrix, bias in zip((left, right), self.form.matrices, self.form.biases):
            out[matrix.name] = array[..., :d]
            if bias is not None:
                out[bias.name] = array[..., d]
        return out

    def scales_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the hyperparameters on which prior variances of these matrices and biases depend."""
        graphs = [moment for entry in self.form.entries if entry.name in names for moment in entry.moments[1:]]
        behind = set(ancestors(graphs))
        return tuple(name for name, value in zip(self.form.hyper_names, self.form.hyper_values) if value in behind)

    def describe(self) -> str:
        """Return a description of the form, one line per part."""
        form, lines = self.form, ["form             inner products of rows of two Gaussian matrices (bilinear)"]
        for entry, shape in zip(form.entries, self.shapes):
            size = " x ".join(map(str, shape))
            lines.append(f"latent           {entry.name}: {size} values, {'flat prior' if entry.flat else 'Gaussian'}")
        site = form.cells.site
        cut = ", zeros cut off" if getattr(site, "truncated", False) else ""
        y = self.observed()[0]
        lines.append(
            f"observed         {form.cells.name}: {y.size} cells, likelihood {site.name}{cut}, link {form.cells.link}"
        )
        lines.append(f"hyperparameters  {self._describe_hyperparameters()}")
        lines.append(f"ignored          {', '.join(form.ignored) or 'none'}")
        return "\n".join(lines)

    @staticmethod
    def _joined(matrix: MatrixPrior, bias: MatrixPrior | None) -> MatrixPrior:
        if bias is None:
            return matrix
        mean, variance = (np.hstack([a, b[:, None]]) for a, b in zip(matrix[:2], bias[:2]))
        return matrix._replace(mean=mean, variance=variance)

    @cached_property
    def _data(self) -> Callable[..., Any]:
        group = self.form.cells
        return self.function([], [group.observed, pt.stack(group.shape), group.rows, group.cols])

    @cached_property
    def _entry_shapes(self) -> Callable[..., Any]:
        shapes = [pt.stack([pt.as_tensor(n) for n in entry.shape]) for entry in self.form.entries]
        return self.function(self.form.hyper_values, shapes)

    @property
    def _moments(self) -> list[Any]:
        group = self.form.cells
        return [group.offset, *group.parameters, *(moment for entry in self.form.entries for moment in entry.moments)]

    @cached_property
    def _prior(self) -> Callable[..., Any]:
        return self.function(self.form.hyper_values, [self.form.log_prior, *self._moments])

    @cached_property
    def _pullback(self) -> Callable[..., Any]:
        outputs, values = self._moments, list(self.form.hyper_values)
        cotangents, of_log_prior = [v.type() for v in outputs], pt.dscalar("of_log_prior")
        # d/dtheta sum_o sum(c_o v_o(theta)) = sum_o J_o^T c_o, with J_o the Jacobian of output v_o.
        total = of_log_prior * self.form.log_prior + sum((c * v).sum() for c, v in zip(cotangents, outputs))
        gradient = pytensor.grad(total, values, disconnected_inputs="ignore") if values else []
        return self.function([*values, *cotangents, of_log_prior], gradient)


def _require(what: str, values: np.ndarray, domain: str) -> None:
    """Raise InvalidDataError for the first of `values` outside a domain; `what` begins the message."""
    if (outside := first_outside(values, domain)) is not None:
        value, where, wanted = outside
        raise InvalidDataError(f"{what} {value}{where}, which must be {wanted}; correct it.")


def _require_positive(name: str, covariance: np.ndarray | None) -> None:
    """Raise InvalidDataError unless a covariance, if there is one, is positive definite beyond rounding."""
    if covariance is None:
        return
    values = np.linalg.eigvalsh(covariance) if np.isfinite(covariance).all() else np.full(1, np.nan)
    if not values[0] > _SINGULAR * values[-1]:
        raise InvalidDataError(
            f"The prior covariance of the rows of {name!r} is not positive definite (its eigenvalues are "
            f"{values[0]:.3g} to {values[-1]:.3g}); correct it, or add a small multiple of the identity."
        )
