"""Compiled functions of the form of preferences: data, prior and gradients as arrays."""

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import is_not
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import graph_inputs

from pymc_ep.concurrency import compiled_function
from pymc_ep.engines.checkpoint import digest
from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.graphs.hyper_functions import DrawFunctions
from pymc_ep.graphs.queries import depends_on
from pymc_ep.models.preferences.engine.kernels import Curvature, DenseKernel, Kernel, LowRankKernel
from pymc_ep.models.preferences.engine.values import ComparedUsers, Learned, UtilityPrior
from pymc_ep.models.preferences.form import Preferences
from pymc_ep.models.preferences.kernel import Comparisons
from pymc_ep.modes import bodies_of, mode_of, numpy_mode

__all__ = ["CompiledPreferences"]

_UPDATES = 20.0
"""Average number of updates of a user's factors in a fit."""


class CompiledPreferences(DrawFunctions):
    """Compiled functions of a `Preferences`.

    Parameters
    ----------
    form : Preferences
    hyper_start : sequence of ndarray
        Unconstrained values of the hyperparameters at PyMC's initial point, for their shapes.
    compile_kwargs : dict, optional
        Keywords of `pytensor.function`. The mode selects the backend of the package's compiled kernels; the
        model's own graphs run on NumPy.
    """

    form: Preferences
    most_draws = 1000
    """Default number of draws in a chain: trades off Monte Carlo error against memory for all utilities."""

    def __init__(self, form: Preferences, hyper_start: Sequence[np.ndarray], compile_kwargs: dict | None = None):
        self.form = form
        self._kwargs = {"on_unused_input": "ignore"} | (compile_kwargs or {}) | {"mode": numpy_mode()}
        self._compile_kwargs = compile_kwargs
        self.backend = bodies_of(mode_of(compile_kwargs))
        self._known: tuple[Kernel | None, list[np.ndarray], np.ndarray] = None, [], np.zeros(0)
        self._compared: tuple[list[np.ndarray], ComparedUsers | None] = [], None
        self.restart(hyper_start)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the form alone: another process compiles its own functions."""
        return type(self), (self.form, self.unpack(self.start), self._compile_kwargs)

    def observed(self) -> list[np.ndarray]:
        """Return a list of one array: the present outcomes of the comparisons, (P,)."""
        return [np.asarray(self._data()[0])]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the utilities, (U, I) or (I,)."""
        return tuple(int(n) for n in self._shape())

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.shape[-1]

    @property
    def work(self) -> float:
        """Number of multiplications in the product of a vector and the covariance of all items, I^2."""
        return float(self.n_items) ** 2

    @property
    def operations(self) -> float:
        """Floating-point operations of one fit of all comparisons."""
        return self.operations_of(self.compared().comparisons)

    def operations_of(self, comparisons: Comparisons) -> float:
        """Return the floating-point operations of one fit of some comparisons."""
        return _UPDATES * float((np.diff(comparisons.item_ends).astype(float) ** 3).sum()) + self.work

    def compared(self) -> ComparedUsers:
        """Return the comparisons in the present data of the model, by user.

        Raises
        ------
        InvalidDataError
            For positions out of range, an item compared with itself, observations other than zero and one, other
            numbers of observations than of pairs, and if there are no comparisons.
        """
        data, (previous, compared_users) = [np.asarray(array) for array in self._data()], self._compared
        if compared_users is None or not all(map(np.array_equal, previous, data)):
            compared_users = self._by_user(*data)
            self._compared = data, compared_users
        return compared_users

    def _by_user(self, y: np.ndarray, users: np.ndarray, firsts: np.ndarray, seconds: np.ndarray) -> ComparedUsers:
        name = self.form.comparisons.name
        self.form.comparisons.site.validate(y, name)
        if not len(y):
            raise InvalidDataError(f"{name!r} has no comparisons; observe at least one.")
        if y.shape != firsts.shape:
            raise InvalidDataError(
                f"{name!r} has {y.size} observations of {firsts.size} comparisons; give one of each."
            )
        for what, values, n in (
            ("user", users, self.n_users),
            ("item", firsts, self.n_items),
            ("item", seconds, self.n_items),
        ):
            bad = (values < 0) | (values >= n)
            if bad.any():
                k = int(np.argmax(bad))
                raise InvalidDataError(
                    f"{name!r} has the {what} {values[k]} at index {k}, but {self.form.utilities!r} has {n} of these, "
                    f"counted from 0; correct it."
                )
        if (same := firsts == seconds).any():
            k = int(np.argmax(same))
            raise InvalidDataError(
                f"{name!r} compares the item {firsts[k]} with itself at index {k}; leave that pair out."
            )
        won = np.asarray(y, dtype=bool)
        winners, losers = np.where(won, firsts, seconds), np.where(won, seconds, firsts)
        return ComparedUsers.of(users.astype(np.int64), winners.astype(np.int64), losers.astype(np.int64), self.n_items)

    @cached_property
    def free(self) -> frozenset[str]:
        """Names of prior parameters ("mean", "factors", "kernel", "sigma") that depend on hyperparameters."""
        prior = self.form.prior
        parameters = {"mean": [prior.mean], "factors": [prior.factors], "kernel": prior.kernel, "sigma": [prior.sigma]}
        return frozenset(key for key, graphs in parameters.items() if depends_on(graphs, self.form.hyper_values))

    @property
    def learned(self) -> Learned | None:
        """Parts of the prior that EM can learn by its update in closed form; None where there is no such update.

        Each of b, V and sigma must be a constant or a hyperparameter with a flat prior, and the kernel must have no
        hyperparameters. V has no more columns than there are items. With a learned sigma, V has fewer columns than
        items, and is learned as well or has no columns.
        """
        form, free = self.form, self.free
        if "kernel" in free or free != form.flat:
            return None
        n_factors = self.prior(self.start)[0].factors.shape[1]
        if "sigma" in free and n_factors and "factors" not in free:
            return None
        if n_factors > self.n_items - ("sigma" in free):
            return None
        return Learned("mean" in free, "factors" in free, "sigma" in free)

    def prior(self, theta: np.ndarray) -> tuple[UtilityPrior, Kernel]:
        """Return the prior of utilities, and its kernel, at unconstrained hyperparameters `theta`, (p,)."""
        mean, factors, sigma, _ = map(np.asarray, self._parameters(*self.unpack(theta)))
        self._require_finite(b=mean, V=factors)
        scale = float(sigma) ** 2
        if not sigma > 0:
            raise InvalidDataError(
                f"{self.form.utilities!r} has sigma={float(sigma)!r}, which must be positive; correct it."
            )
        return UtilityPrior(mean, factors, scale), self._kernel(theta)

    def _kernel(self, theta: np.ndarray) -> Kernel:
        """Return the kernel at theta, (p,); the last kernel again if its data and hyperparameters are unchanged."""
        # Shared variables have another array once they are set.
        data, at = [v.get_value(borrow=True) for v in self._kernel_data], theta if "kernel" in self.free else theta[:0]
        kernel, of_data, of_theta = self._known
        if kernel is None or any(map(is_not, data, of_data)) or not np.array_equal(at, of_theta):
            arrays = self._kernel_arrays(*self.unpack(theta))
            self._require_finite(**{"kernel" if len(arrays) == 1 else "kernel_factor": arrays[0]})
            kernel = DenseKernel(*arrays) if len(arrays) == 1 else LowRankKernel(*arrays)
            self._known = kernel, data, at.copy()
        return kernel

    def _require_finite(self, **arrays: np.ndarray) -> None:
        """Raise InvalidDataError for an entry that is not finite; keywords are the names of the prior's parameters."""
        for name, values in arrays.items():
            if not np.isfinite(values).all():
                place = first_index(~np.isfinite(values))
                raise InvalidDataError(
                    f"{self.form.utilities!r} has {name}={values[place]}{at_index(place)}, which must be finite; "
                    f"correct it, or its jitter=."
                )

    def log_prior(self, theta: np.ndarray) -> float:
        """Return the log prior of the hyperparameters, without Jacobian terms."""
        return float(self._parameters(*self.unpack(theta))[3])

    def gradient(self, theta: np.ndarray, slope: np.ndarray, curvature: Curvature) -> np.ndarray:
        """Return the gradient in theta, (p,), of the log prior plus a function h of b and S = V V^T + sigma^2 K.

        The derivatives of h are dh/db = `slope`, (I,), and dh/dS = -`curvature` / 2, (I, I).
        """
        return self._gradient_in(theta, slope, curvature, of_prior=1.0)

    def log_z_gradient(self, theta: np.ndarray, slope: np.ndarray, curvature: Curvature) -> np.ndarray:
        """Return `gradient` without the gradient of the log prior."""
        return self._gradient_in(theta, slope, curvature, of_prior=0.0)

    def _gradient_in(
        self, theta: np.ndarray, slope: np.ndarray, curvature: Curvature, *, of_prior: float
    ) -> np.ndarray:
        prior, kernel = self.prior(theta)
        # Of a function h with dh/db = slope and dh/dS = -C / 2, for S = V V^T + sigma^2 K:
        # dh/dV = -C V, dh/dsigma = -sigma <K, C> and dh/dK = -sigma^2 C / 2.
        weights = [slope, -(curvature @ prior.factors), -np.sqrt(prior.scale) * kernel.inner(curvature)]
        if "kernel" in self.free:
            weights += [-0.5 * prior.scale * derivative for derivative in kernel.gradient(curvature)]
        return self._pulled(theta, weights, of_prior)

    def _pulled(self, theta: np.ndarray, weights: Sequence[Any], of_prior: float = 0.0) -> np.ndarray:
        """Return the gradient in theta, (p,), of a weighted sum of all entries of the prior's parameters.

        `weights` are arrays of the shapes of b, V, sigma and, if the kernel has hyperparameters, the kernel's arrays.
        `of_prior` times the log prior of theta is added to the sum.
        """
        gradients = self._gradient(*self.unpack(theta), *weights, of_prior)
        values = np.concatenate([np.zeros(0), *(np.ravel(gradient) for gradient in gradients)])
        return self.pull(theta[None], values[None])[0]

    def with_factors(self, theta: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Return `theta`, (p,), at which V = 0, changed so that V is near F = `factors`, (I, D).

        The change is a J^T F, with J = dV / dtheta. Where V is linear in theta, a minimises |V - F|, and V equals F if
        V is itself a hyperparameter. Where V remains zero for a = 1, theta is returned unchanged.
        """
        prior, _ = self.prior(theta)
        kernel = self._kernel_arrays(*self.unpack(theta)) if "kernel" in self.free else ()
        of_others = [np.zeros_like(parameter) for parameter in (prior.scale, *kernel)]
        step = self._pulled(theta, [np.zeros_like(prior.mean), factors, *of_others])
        moved = self.prior(theta + step)[0].factors
        # theta moves by a J^T V, with a = <J J^T V, V> / |J J^T V|^2, which minimises |a J J^T V - V|.
        square = float(np.vdot(moved, moved))
        return theta + (float(np.vdot(moved, factors)) / square) * step if square > 0 else theta

    def theta_of(self, theta: np.ndarray, prior: UtilityPrior) -> np.ndarray:
        """Return theta, (p,), with hyperparameters that are b, V or sigma themselves set to the values of `prior`."""
        values = self.unpack(theta)
        parameters = {"mean": prior.mean, "factors": prior.factors, "sigma": np.sqrt(prior.scale)}
        for key, name in self.form.variables.items():
            place = self.form.hyper_names.index(name)
            values[place] = np.log(parameters[key]) if self.form.hyper_transformed[place] else parameters[key]
        return self.from_values(np.concatenate([np.ravel(value) for value in values])[None])[0]

    def fingerprint(self) -> dict[str, np.ndarray]:
        """Return a digest of the comparisons, by which a saved result is matched with the data of the model."""
        y, users, firsts, seconds = (np.asarray(array).astype(np.int64) for array in self._data())
        return {"comparisons": digest(y, users, firsts, seconds)}

    def describe(self) -> str:
        """Return a description of the form, one line per part."""
        form, prior, group = self.form, self.prior(self.start)[0], self.form.comparisons
        lines = ["form             pairwise comparisons by users whose utilities share a Gaussian prior"]
        lines.append(f"latent           {form.utilities}: {' x '.join(map(str, self.shape))} utilities, Gaussian")
        lines.append(f"prior            b + V V^T + sigma^2 K, with {prior.factors.shape[1]} factors")
        lines.append(f"observed         {group.name}: {self.observed()[0].size} comparisons, {group.site.name}")
        lines.append(f"hyperparameters  {self._describe_hyperparameters()}")
        lines.append(f"ignored          {', '.join(form.ignored) or 'none'}")
        return "\n".join(lines)

    @cached_property
    def _data(self) -> Callable[..., Any]:
        group = self.form.comparisons
        users = pt.zeros_like(group.firsts) if group.users is None else group.users
        return self.function([], [group.observed, users, group.firsts, group.seconds])

    @cached_property
    def _shape(self) -> Callable[..., Any]:
        return self.function([], list(map(pt.as_tensor, self.form.shape)))

    @cached_property
    def _parameters(self) -> Callable[..., Any]:
        prior, values = self.form.prior, self.form.hyper_values
        parameters = prior.mean, prior.factors, prior.sigma, self.form.log_prior
        return self.function(values, [parameter.astype("float64") for parameter in parameters])

    @cached_property
    def _kernel_data(self) -> list[SharedVariable]:
        """Shared variables on which the kernel depends, such as features."""
        return [v for v in graph_inputs(self.form.prior.kernel) if isinstance(v, SharedVariable)]

    @cached_property
    def _kernel_arrays(self) -> Callable[..., Any]:
        # Constants are not evaluated at compilation, which would keep all steps to the kernel, each of its size.
        mode = get_mode(self._kwargs["mode"]).excluding("topo_constant_folding")
        arrays = [graph.astype("float64") for graph in self.form.prior.kernel]
        return compiled_function(self.form.hyper_values, arrays, **(self._kwargs | {"mode": mode}))

    @cached_property
    def _gradient(self) -> Callable[..., Any]:
        prior, values = self.form.prior, list(self.form.hyper_values)
        parameters = [prior.mean, prior.factors, prior.sigma, *(prior.kernel if "kernel" in self.free else ())]
        parameters = [parameter.astype("float64") for parameter in parameters]
        # The derivatives in the parts come from outside, so that no graph has the covariance of all items.
        weights, of_prior = [parameter.type() for parameter in parameters], pt.dscalar("of_prior")
        total = of_prior * self.form.log_prior + sum(
            (weight * parameter).sum() for weight, parameter in zip(weights, parameters)
        )
        gradient = pytensor.grad(total, values, disconnected_inputs="ignore") if values else []
        return self.function([*values, *weights, of_prior], gradient)
