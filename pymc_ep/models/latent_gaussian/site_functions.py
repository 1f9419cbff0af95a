"""Compiled functions common to all forms with sites on Gaussian predictors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self, TypeVar

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import indices_of
from pymc_ep.concurrency import CompiledFunction, compiled_function, compiled_property, compiling
from pymc_ep.contracts.form import Likelihood, Representation
from pymc_ep.distributions.shapes import shape_error
from pymc_ep.engines.prior import FactorValues, Prior
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.hyper_functions import HyperFunctions
from pymc_ep.graphs.predictor import index_error, indexing_nodes, names_of
from pymc_ep.graphs.queries import evaluated
from pymc_ep.graphs.roots import with_slopes_at_zero
from pymc_ep.models.latent_gaussian.batched import RowFunctions
from pymc_ep.models.latent_gaussian.distances import cure_of, require_distances
from pymc_ep.models.latent_gaussian.form import AffineVariable, LatentGaussian
from pymc_ep.models.latent_gaussian.prior_moments import variances_of
from pymc_ep.models.latent_gaussian.values import AffineMoments, NoiseMoments
from pymc_ep.modes import mode_of, numpy_mode
from pymc_ep.numerics.backend.namespace import Array, on_host, to_jax
from pymc_ep.numerics.gaussian.protocol import GaussianPrior
from pymc_ep.sites.compiled import CompiledSite, compile_site

__all__ = ["NOTHING", "EvaluatedRows", "SiteFunctions"]

Built = TypeVar("Built")

_SWEEPS = 10.0
"""Number of EP sweeps that a fit is assumed to take, for budgets of operations."""
EvaluatedRows = Mapping[Hashable, Sequence[np.ndarray]]
"""Values of graphs at s rows of theta: lists of arrays, (s, *shape), by the key under which functions look them up."""
NOTHING: EvaluatedRows = MappingProxyType({})


class SiteFunctions(HyperFunctions, ABC):
    """Prior means and sites of a form; subclasses add the arrays of the Gaussian prior.

    Parameters
    ----------
    form : LatentGaussian
    hyper_start : sequence of ndarray
        Unconstrained values of the hyperparameters at PyMC's initial point.
    compile_kwargs : dict, optional
        Arguments of `pytensor.function`. With ``mode="JAX"`` the prior's moments are moved to JAX's device and the
        algorithm runs there. The model's own functions stay with NumPy: under JAX, PyTensor's gradients of some
        covariance functions (Matern) are wrong at coinciding inputs, where rounded constants no longer cancel.

    Attributes
    ----------
    on_jax : bool
        Whether the algorithm runs on JAX's device.
    rows : RowFunctions
        Functions that are evaluated at many draws at once.
    sites : list of CompiledSite
        One for each of `form.factors`.
    solver
        Representation of prior and posterior.
    """

    form: LatentGaussian
    on_jax: bool
    rows: RowFunctions
    solver: Representation
    most_draws: int
    sweep: float
    """Time of an EP sweep, in units of the time of `work` multiplications."""

    def __init__(self, form: LatentGaussian, hyper_start: Sequence[np.ndarray], compile_kwargs: dict | None = None):
        self.form = form
        self._compile_kwargs = compile_kwargs
        self._chosen_mode = mode_of(compile_kwargs)
        self.on_jax = isinstance(get_mode(self._chosen_mode).linker, JAXLinker)
        self._kwargs = {"on_unused_input": "ignore"} | (compile_kwargs or {})
        if self.on_jax or self._chosen_mode is None:
            self._kwargs["mode"] = numpy_mode()
        self.sites: list[CompiledSite] = [compile_site(g.site, self._chosen_mode, **g.options) for g in form.factors]
        self._solver_functions: dict[tuple, Any] = {}
        self._parameter_functions: dict[str, Callable[..., Any]] = {}
        self.rows = RowFunctions(self)
        self.restart(hyper_start)
        self.solve_in("auto")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of the constructor alone: another process compiles its own functions."""
        return type(self), (self.form, self.unpack(self.start), self._compile_kwargs)

    @property
    def operations(self) -> float:
        """Floating-point operations of one fit, to an order of magnitude."""
        return _SWEEPS * self.sweep * self.work

    @abstractmethod
    def solve_in(self, solver: str) -> None:
        """Select the representation of prior and posterior, by name or ``"auto"``."""

    @abstractmethod
    def prior(self, theta: np.ndarray) -> Prior:
        """Return the form's `Prior` at unconstrained hyperparameters `theta`, (p,)."""

    @abstractmethod
    def first_sites(self, prior: Prior) -> tuple[np.ndarray, np.ndarray] | None:
        """Return initial shifts and precisions of all sites, (n,) each; None, for zeros, where the prior is proper."""

    def typical_sites(self, prior: Prior | FactorValues) -> tuple[np.ndarray, np.ndarray]:
        """Return shifts m / v and precisions 1 / v, (n,) each, of Gaussian sites that roughly match the factors.

        Their means m and variances v come from the function `typical` of each factor's site.
        """
        moments = [
            site.site.typical(y, *parameters)
            for site, y, parameters in zip(
                self.sites, self.residuals(), (tuple(np.asarray(p) for p in group) for group in prior.parameters)
            )
        ]
        sizes = [y.size for y in self.residuals()]
        mean, variance = (
            np.concatenate([np.broadcast_to(array, n) for array, n in zip(arrays, sizes)]) for arrays in zip(*moments)
        )
        # A scale of zero raises an error with its name later, when parameters are validated.
        with np.errstate(divide="ignore", invalid="ignore"):
            # b = m / v and pi = 1 / v.
            return mean / variance, 1.0 / variance

    @abstractmethod
    def affine_moments(
        self, theta: np.ndarray, variables: Sequence[AffineVariable] | None = None
    ) -> dict[str, AffineMoments]:
        """Return, by name, the prior moments of affine variables at theta, (p,); by default of all in the form."""

    @abstractmethod
    def noise_rows(self, thetas: np.ndarray, precomputed: EvaluatedRows = NOTHING) -> list[list[NoiseMoments]]:
        """Return, for each row of theta, (s, p), the prior moments of each noise block."""

    def jointly(self, thetas: np.ndarray, variables: tuple[AffineVariable, ...] | None = None) -> EvaluatedRows:
        """Return arrays at rows of theta, (s, p), which functions of the same rows take as `precomputed`.

        One function evaluates the arrays of the predictors and of `variables`. Without `variables`, it evaluates the
        arrays of the predictors, all affine variables and the noise. The result is empty for a form that has no such
        function.
        """
        return NOTHING

    def predictor_rows(
        self, thetas: np.ndarray, precomputed: EvaluatedRows = NOTHING
    ) -> list[tuple[np.ndarray, GaussianPrior]]:
        """Return, for each row of theta, (s, p), the fields `mean` and `gaussian` of `prior`, in arrays on the host."""
        return [(np.asarray(prior.mean), on_host(prior.gaussian)) for prior in map(self.prior, thetas)]

    def affine_rows(
        self,
        thetas: np.ndarray,
        variables: Sequence[AffineVariable] | None = None,
        precomputed: EvaluatedRows = NOTHING,
    ) -> list[dict[str, AffineMoments]]:
        """Return the result of `affine_moments` for each row of theta, (s, p)."""
        return [self.affine_moments(theta, variables) for theta in thetas]

    def root_rows(self, thetas: np.ndarray) -> list[list[np.ndarray]] | None:
        """Return, for each row of theta, (s, p), the root of each block; None where coordinates are not of blocks.

        With z the solver's coordinates of a block, its noise is z R for a root that is a matrix R, (k, d). If the root
        is a vector r, (d,), the noise is z r, elementwise.
        """
        return None

    @abstractmethod
    def fitted_to(self, data: Mapping[SharedVariable, np.ndarray]) -> Self | None:
        """Return a copy whose prior follows from `data`, values by shared variable; None if a form has no such copy."""

    def subset(self, name: str, kept: np.ndarray) -> Self | None:
        """Return the form without some observations, see `CompiledSiteForm`; None if it has no such form."""
        return None

    @property
    @abstractmethod
    def work(self) -> float:
        """Multiplications of the most expensive step of a fit, to an order of magnitude."""

    @abstractmethod
    def describe(self) -> str:
        """Return the text of `pymc_ep.explain`, one line for each part of the form."""

    @property
    @abstractmethod
    def _arrays(self) -> list[TensorVariable]:
        """Graphs of the prior's arrays that depend on hyperparameters, in the order of `_array_cotangents`."""

    @property
    @abstractmethod
    def _constants(self) -> Sequence[TensorVariable]:
        """Graphs of the prior's arrays that are free of hyperparameters."""

    @abstractmethod
    def _array_cotangents(self, array: Array) -> list[np.ndarray]:
        """Return the gradient in each of `_arrays`, given the gradient in the prior's array, such as K or R."""

    @abstractmethod
    def _solver_key(self) -> tuple[Any, ...]:
        """Return the cache key of the prior's compiled functions: the properties of the solver that they depend on."""

    def observed(self) -> list[np.ndarray]:
        """Return the current observations of each factor, in their shapes in the model."""
        return [np.asarray(y) for y in self._observed()]

    def origins(self) -> list[np.ndarray]:
        """Return, for each factor, the origins, (n,), which are subtracted from its predictors and observations.

        They are the observations where a site depends on the difference of observation and predictor alone, else zeros.
        An observation that is not finite, which the form refuses, has the origin zero.
        """
        return [
            np.nan_to_num(np.array(y, dtype=float), nan=0.0, posinf=0.0, neginf=0.0).ravel()
            if group.site.located
            else np.zeros(y.size * len(group.rows))
            for group, y in zip(self.form.factors, self.observed())
        ]

    def residuals(self) -> list[np.ndarray]:
        """Return, for each factor, its observations, (n,), less the origins of its predictors.

        A site of several predictors has several rows for each observation, for which the observations are repeated.
        """
        pairs = zip(self.form.factors, self.observed(), self.origins())
        return [np.tile(np.asarray(y, dtype=float).ravel(), len(group.rows)) - origin for group, y, origin in pairs]

    def _factors(self, theta: np.ndarray) -> tuple[FactorValues, list[Any]]:
        """Return the fields of `prior` other than `gaussian`, and the arrays from which `gaussian` is built."""
        mean, log_prior, log_excess, *rest = self._prior(*self.unpack(theta))
        self._require_shapes(theta, len(mean))
        left = iter(rest)
        split = tuple(tuple(next(left) for _ in group.parameters) for group in self.form.factors)
        if self.on_jax:
            mean, split = to_jax(mean), tuple(tuple(map(to_jax, parameters)) for parameters in split)
        return FactorValues(mean, split, float(log_prior), float(log_excess)), list(left)

    def _require_shapes(self, theta: np.ndarray, predictors: int) -> None:
        """Raise where observations and predictors differ in number, as they may after shared data have changed."""
        observed = self.observed()
        if sum(y.size * len(group.rows) for group, y in zip(self.form.factors, observed)) == predictors:
            return
        for group, y, predictor in zip(self.form.factors, observed, self._predictor_values(*self.unpack(theta))):
            if y.shape != predictor.shape:
                raise shape_error(group.name, y.shape, predictor.shape)

    def pullback(
        self,
        theta: np.ndarray,
        mean: Array,
        array: Array | None,
        parameters: Sequence[Sequence[Array]],
        *,
        density: str = "natural",
    ) -> np.ndarray:
        """Return the gradient in theta, (p,), of log prior + log excess + f, for a function f of the prior's fields.

        Parameters
        ----------
        theta : ndarray, (p,)
        mean, array, parameters
            Gradients of f in the fields of the `Prior`; `array` is the one in the array of `gaussian`, such as K or R.
        density : {"natural", "unconstrained", "none"}
            Log prior on the hyperparameters' natural scale, or on the unconstrained one, with its Jacobian, or none.
        """
        flat = [p for group in parameters for p in group]
        counted = float(density == "natural"), float(density == "unconstrained")
        cotangents = (np.asarray(g) for g in (mean, *flat, *self._array_cotangents(array)))
        gradients = self._pullback(*self.unpack(theta), *counted, *cotangents)
        gradient = self.pull(theta[None], np.concatenate([np.zeros(0), *(np.ravel(p) for p in gradients)])[None])[0]
        # The density on the unconstrained scale has the further factor |d values / d theta|.
        return gradient + counted[1] * self.log_det(theta[None])[1][0]

    def coefficient_places(self, theta: np.ndarray) -> list[tuple[str, tuple[int, ...]]]:
        """Return, for each coefficient, the name of its variable and its index in that variable."""
        out = []
        sizes, shapes = self._coefficients(*self.unpack(theta)), self.rows.noise_shapes(*self.unpack(theta))
        for block, size, shape in zip(self.form.blocks, sizes, shapes):
            block_shape = tuple(int(k) for k in shape) if block.factor is None else (int(size),)
            out += [(block.name, index[::-1] if block.of_columns else index) for index in np.ndindex(block_shape)]
        return out

    def require_distances(self, theta: np.ndarray, at: str) -> None:
        """Raise where squared distances in a covariance function have large rounding errors; `at` is theta in words."""
        names = [name for name, _ in self.form.scaled_inputs]
        require_distances(names, self._scaled_inputs(*self.unpack(theta)), at)

    def distance_cure(self, theta: np.ndarray) -> str:
        """Return a sentence on how to cure squared distances that lose digits at theta, (p,); empty where none do."""
        return cure_of(self._scaled_inputs(*self.unpack(theta)))

    @compiled_property
    def _scaled_inputs(self) -> Callable[..., list[np.ndarray]]:
        outputs = [inputs for _, inputs in self.form.scaled_inputs]
        return self.function(self.form.hyper_values, outputs) if outputs else lambda *values: []

    def _describe_groups(self) -> list[str]:
        form = self.form
        potentials = zip(form.potentials, self.observed()[len(form.groups) :])
        lines = [
            f"potential        {potential.name}: {y.size} terms, site {potential.site.name}"
            for potential, y in potentials
        ]
        for group, y in zip(form.groups, self.observed()):
            options = "".join(f", {name}={value}" for name, value in group.options.items())
            options += ", correlated" if group.correlated else ""
            likelihood = f"likelihood {group.site.name}{options}, link {group.link}"
            lines.append(f"observed         {group.name}: {y.size} values, {likelihood}")
        lines += [
            f"observed         {term.name}: depends on no latent variable; its density is in the evidence"
            for term in form.fixed
        ]
        lines.append(f"hyperparameters  {self._describe_hyperparameters()}")
        lines.append(f"ignored          {', '.join(form.ignored) or 'none'}")
        return lines

    @cached_property
    def varying_parameters(self) -> tuple[bool, ...]:
        """For each factor, whether its site parameters depend on hyperparameters; numbers of trials, say, do not."""
        hyper = set(self.form.hyper_values)
        return tuple(not hyper.isdisjoint(ancestors(group.parameters)) for group in self.form.factors)

    @cached_property
    def independent(self) -> tuple[bool, ...]:
        """For each block, whether it has no factor, and a covariance that is diagonal by its graph; see `scale_of`."""
        return tuple(block.factor is None and variances_of(block) is not None for block in self.form.blocks)

    def site_at(self, theta: np.ndarray, group: Likelihood) -> tuple[CompiledSite, list[np.ndarray]]:
        """Return the compiled site of a group, with or without observations, and its parameters at theta."""
        if group.name not in self._parameter_functions:
            outputs = [self.form.at_zero_noise(p) for p in group.parameters]
            self._parameter_functions[group.name] = self.function(self.form.hyper_values, outputs)
        values = [np.asarray(p) for p in self._parameter_functions[group.name](*self.unpack(theta))]
        return compile_site(group.site, self._chosen_mode, **group.options), values

    def function(
        self, inputs: Iterable[TensorVariable], outputs: TensorVariable | Sequence[TensorVariable]
    ) -> CompiledFunction:
        """Return a compiled function of the model's own variables."""
        # Functions run in NumPy, but PyTensor would compile C code to fold constants: seconds on a cold cache.
        flags = {"cxx": ""} if self.on_jax or self._chosen_mode is None else {}
        with compiling(**flags):
            function = compiled_function(inputs, outputs, **self._kwargs)

        function.index_error = self._index_error
        return function

    def _index_error(self, error: IndexError) -> InvalidDataError:
        """Return an error that names the latent variables in which an index is out of range."""
        noise = [block.noise for block in self.form.blocks]
        start = dict(zip(self.form.hyper_values, map(pt.as_tensor, self.unpack(self.start))))
        graphs = [*(g.predictor for g in self.form.factors), *(v.expression for v in self.form.affine)]
        for node in indexing_nodes(graphs, noise):
            indices = {k: v for k, v in enumerate(indices_of(node)) if isinstance(v, TensorVariable)}
            of_noise = [self.form.at_zero_noise(v) for v in (node.inputs[0].shape, *indices.values())]
            shape, *values = evaluated(graph_replace(of_noise, start, strict=False))
            if any(np.any((v < -shape[k]) | (v >= shape[k])) for k, v in zip(indices, values) if v.dtype != bool):
                return index_error(names_of(node.inputs[0], noise), error)
        return index_error("a variable", error)

    @compiled_property
    def _observed(self) -> Callable[..., Any]:
        observed = [g.observed for g in self.form.factors]
        if all(isinstance(v, Constant | SharedVariable) for v in observed):
            return lambda: [np.array(v.data if isinstance(v, Constant) else v.get_value(borrow=True)) for v in observed]
        return self.function([], observed)

    @compiled_property
    def _predictor_values(self) -> Callable[..., Any]:
        outputs = [self.form.at_zero_noise(group.predictor) for group in self.form.factors]
        return self.function(self.form.hyper_values, outputs)

    def _for_solver(self, name: Hashable, build: Callable[[], Built]) -> Built:
        """Return the functions that `build` compiles for the solver, once for each `_solver_key` and name."""
        key = (*self._solver_key(), name)
        if key not in self._solver_functions:
            with compiling():
                self._solver_functions[key] = build()
        return self._solver_functions[key]

    @property
    def _prior(self) -> Callable[..., Any]:
        def build() -> Callable[..., Any]:
            mean, *rest = self._moments
            outputs = [mean, self.form.log_prior, self.form.log_excess, *rest, *self._constants]
            return self.function(self.form.hyper_values, outputs)

        return self._for_solver("prior", build)

    @property
    def _moments(self) -> list[TensorVariable]:
        """Graphs of the prior mean of all residual predictors, the site parameters, and `_arrays`."""
        parameters = [p for g in self.form.factors for p in g.parameters]
        return [self.form.at_zero_noise(self.form.residual_predictor), *parameters, *self._arrays]

    @property
    def _pullback(self) -> Callable[..., Any]:
        def build() -> Callable[..., Any]:
            outputs = with_slopes_at_zero(self._moments)
            cotangents = [v.type() for v in outputs]
            values = list(self.form.hyper_values)
            natural, unconstrained = pt.dscalars("natural", "unconstrained")
            log_prior = natural * self.form.log_prior + unconstrained * self.form.log_prior_unconstrained
            # For f of the outputs v_k, sum_k <c_k, v_k> with c_k = d f / d v_k held constant has the gradient of f.
            total = log_prior + self.form.log_excess + sum((c * v).sum() for c, v in zip(cotangents, outputs))
            gradient = pytensor.grad(total, values, disconnected_inputs="ignore") if values else []
            return self.function([*values, natural, unconstrained, *cotangents], gradient)

        return self._for_solver("pullback", build)

    @compiled_property
    def _coefficients(self) -> Callable[..., Any]:
        if not any(b.origin_shape for b in self.form.blocks):
            return lambda *values: np.array([np.prod(shape) for shape in self.rows.noise_shapes(*values)], dtype=int)
        sizes = [b.origin_shape[0] if b.origin_shape else pt.prod([*b.shape, 1]) for b in self.form.blocks]
        return self.function(self.form.hyper_values, self.form.at_zero_noise(pt.stack(sizes)))
