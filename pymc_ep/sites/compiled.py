"""Sites as functions of arrays, which engines call.

`compile_site` turns the graphs of a `Site` into compiled functions, once per site, options and compile mode, on first
use. Closed forms are one elementwise function; everything else is quadrature around one compiled function that returns
log t and its slope.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.traversal import ancestors
from pytensor.link.jax.linker import JAXLinker

from pymc_ep.concurrency import compiled_function, compiled_property
from pymc_ep.exceptions import NumericalError, at_index, first_index
from pymc_ep.kernels.scalar_kernel import ScalarKernel
from pymc_ep.modes import bodies_of, numpy_mode
from pymc_ep.numerics.backend.namespace import Array, is_jax
from pymc_ep.numerics.quadrature.gauss_legendre import REACH, reweighted
from pymc_ep.sites.base import Site, Tilted, get_site
from pymc_ep.sites.bounds import BoundFunctions
from pymc_ep.sites.expectations import ExpectationFunctions
from pymc_ep.sites.log_density_rows import by_rows
from pymc_ep.sites.quadrature import QuadratureFunctions, among, gathered

__all__ = ["COMPILED", "STEP", "CompiledSite", "check_finite", "compile_site"]

_KEPT = 2 * 10**8
"""Largest count of doubles in quadrature rules that are kept for reuse, 1.5 GiB. The moments of further sites are
computed anew."""
STEP = 0.03
"""Step of the finite differences for cumulants, in units of one over the tilted standard deviation. Truncation,
step^4 / 30 times the seventh cumulant, is 2e-5 for an exponential distribution; rounding of the variances adds about
1e-7."""


def compile_site(
    site: Site | str, mode: Mode | str | None = None, *, loop: bool = False, **options: Any
) -> "CompiledSite":
    """Return the functions of arrays of a site; equal arguments return the same object.

    Parameters
    ----------
    site : Site or str
        A site, or the name under which it is registered.
    mode : PyTensor mode or str, optional
        By default PyTensor's own: C or Numba, by its version. With ``"JAX"`` all functions return JAX arrays and can be
        traced.
    loop : bool
        Whether a site that is `interpreted`, see `Site`, has its quadrature in a compiled loop, which takes seconds to
        compile; see `sites.generated`. Other sites always have this loop. If `mode` is given, `loop` is ignored: for C
        and Numba all sites have the loop, for other modes none.
    **options
        Static options of the site, for example ``zero_mass=False``.

    Returns
    -------
    CompiledSite
        Nothing is compiled until a function is called.

    Raises
    ------
    ValueError
        For an unknown site or option.
    """
    site = get_site(site) if isinstance(site, str) else site
    unknown = sorted(set(options) - set(site.options))
    if unknown:
        accepted = ", ".join(site.options) or "none"
        raise ValueError(f"The site {site.name!r} has no option {unknown[0]!r}; its options: {accepted}.")
    loop = (loop or not site.interpreted) if mode is None else bodies_of(mode) in ("c", "numba")
    key = site, mode, loop, tuple(sorted((site.options | options).items()))
    if not site.interpreted:
        return _compiled(*key)
    if (compiled := _INTERPRETED.get(key)) is None:
        _INTERPRETED[key] = compiled = _made(*key)
    return compiled


def _made(site: Site, mode: Mode | str | None, loop: bool, options: tuple[tuple[str, Any], ...]) -> "CompiledSite":
    return COMPILED[type(site)](site, mode, loop, dict(options))


_compiled = lru_cache(maxsize=256)(_made)
_INTERPRETED: "WeakValueDictionary[tuple, CompiledSite]" = WeakValueDictionary()
"""Compiled sites of densities that belong to one model: each is deleted with the last form that uses it."""


class CompiledSite(QuadratureFunctions, BoundFunctions, ExpectationFunctions):
    """The functions of arrays of one site. Made by `compile_site`.

    Arguments broadcast against each other and results have the broadcast shape; y may be of any real dtype.

    Attributes
    ----------
    site : Site
    options : dict
        The static options in force.
    mode : PyTensor mode or str or None
        The compile mode; None for PyTensor's default.
    loop : bool
        Whether quadrature runs in a compiled loop, if the site has one.
    """

    def __init__(self, site: Site, mode: Mode | str | None, loop: bool, options: dict[str, Any]) -> None:
        self.site = site
        self.options = options
        self.mode = mode
        self.loop = loop
        self._log_density_functions: dict[tuple, Callable[..., Any]] = {}
        self._jax = isinstance(get_mode(mode).linker, JAXLinker)
        self._closed: Callable[..., Sequence[Any]] = self._by_closed_form
        self._quadrature: Callable[..., Sequence[Any]] = self._by_quadrature
        self._quadrature_gradient: Callable[..., Sequence[Any]] = self._gradient_by_quadrature
        if self._jax and site.scanned:
            # The search takes a number of rounds that depends on the values, which JAX cannot trace.
            from pymc_ep.sites.compiled_jax import on_host

            host = compile_site(site, **options)
            self._quadrature = on_host(host._quadrature, len(Tilted._fields))
            self._quadrature_gradient = on_host(host._quadrature_gradient, len(site.parameters))
        elif self._jax:
            from pymc_ep.sites.compiled_jax import jit

            self._closed, self._quadrature = jit(self._closed), jit(self._quadrature)
            self._quadrature_gradient = jit(self._quadrature_gradient)

    def moments(self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array) -> Tilted:
        """Return the moments of the density proportional to ``N(f; mean, variance) t(f; y, parameters)**power``.

        Parameters
        ----------
        y, mean, variance : array_like
            Observations and cavity moments.
        power : array_like
            In (0, 1]. A traced JAX value is treated as other than one, since its value is unknown.
        *parameters : array_like
            In the order of ``site.parameters``.

        Returns
        -------
        Tilted
            Not checked; see `check_finite`.
        """
        evaluate = self._closed if self._has_closed_form(power) else self._quadrature
        shape, arrays = self._flatten(y, mean, variance, power, *parameters)
        return Tilted(*(_shaped(field, shape) for field in evaluate(*arrays)))

    def moments_and_nearby(
        self, y: Array, mean: Array, variance: Array, power: float, *parameters: Array
    ) -> tuple[Tilted, Callable[[Array], Tilted]]:
        """Return the moments, and a function of new cavity means that returns their moments.

        For arguments see `moments`; all are of one shape (n,) except the power. On the CPU the function reuses the
        quadrature nodes for means close to the first ones, at a fraction of the cost.
        """
        if self._jax or self._has_closed_form(power):
            return self.moments(y, mean, variance, power, *parameters), lambda centre: self.moments(
                y, centre, variance, power, *parameters
            )
        _, arrays = self._flatten(y, mean, variance, power, *parameters)
        generated = self._generated(arrays)
        if generated is None:
            return self._nodes_and_nearby(arrays)
        fields, rest = Tilted(*generated[: len(Tilted._fields)]), np.flatnonzero(generated[-1] == 0)
        if not rest.size:
            return fields, lambda centre: self.moments(y, centre, variance, power, *parameters)
        others = np.flatnonzero(generated[-1])
        with among(rest):
            rest_fields, near_rest = self._nodes_and_nearby([array[rest] for array in arrays])
        for field, values in zip(fields, rest_fields, strict=True):
            field[rest] = values

        def nearby(centre: Array) -> Tilted:
            joined = Tilted(*(np.empty(len(centre)) for _ in Tilted._fields))
            with among(rest):
                by_nodes = near_rest(centre[rest])
            first, _, *after = (array[others] for array in arrays)
            with among(others):
                by_loop = self.moments(first, centre[others], *after)
            for index, moved in ((rest, by_nodes), (others, by_loop)):
                for field, values in zip(joined, moved, strict=True):
                    field[index] = values
            return joined

        return fields, nearby

    def _nodes_and_nearby(self, arrays: Sequence[np.ndarray]) -> tuple[Tilted, Callable[[Array], Tilted]]:
        """Return `moments_and_nearby` by quadrature rules, which are kept to be reweighted for new means."""
        pieces, forgotten, numbers = [], np.zeros(len(arrays[0]), dtype=bool), 0

        def first() -> Iterator[tuple[Any, Sequence[Any]]]:
            nonlocal numbers
            for index, _, rule in self._pieces(arrays):
                if numbers < _KEPT:
                    pieces.append((index, rule))
                    numbers += rule.offset.size + rule.weight.size + rule.slope.size
                else:
                    forgotten[index] = True
                yield index, self._summed(rule)

        def nearby(centre: Array) -> Tilted:
            step = centre - arrays[1]
            far = forgotten | ~(step**2 <= REACH**2 * arrays[2])
            near = np.where(far, 0.0, step)
            # N(f; m + d, v) / N(f; m, v) = exp(d f / v) times a constant: nodes stay, their weights change.
            moved = ((index, self._summed(reweighted(rule, near[index]))) for index, rule in pieces)
            tilted = Tilted(*gathered(moved, len(step)))
            if far.any():
                y, _, *rest = (array[far] for array in arrays)
                with among(np.flatnonzero(far)):
                    anew = self.moments(y, centre[far], *rest)
                for field, values in zip(tilted, anew, strict=True):
                    field[far] = values
            return tilted

        return Tilted(*gathered(first(), len(arrays[0]))), nearby

    def cumulants(self, y: Array, mean: Array, variance: Array, *parameters: Array) -> tuple[Array, Array]:
        """Return the standardised third and fourth cumulants (skewness, excess kurtosis) of the tilted densities.

        For arguments see `moments`; the power is one. Where moments are quadratures, so are the cumulants. Otherwise,
        as moving the cavity mean by v s multiplies the tilted density by exp(s f), the cumulants are the first and
        second derivatives of the tilted variance in s: differences of five evaluations, with an error of order step^4.
        """
        if not (self._jax or self._has_closed_form(1.0)):
            shape, arrays = self._flatten(y, mean, variance, 1.0, *parameters)
            skewness, kurtosis = (_shaped(cumulant, shape) for cumulant in self._cumulants_by_quadrature(*arrays))
            return skewness, kurtosis
        scale = np.asarray(self.moments(y, mean, variance, 1.0, *parameters).variance)
        unit = STEP * variance / np.sqrt(scale)

        def ratio(steps: int) -> np.ndarray:
            return np.asarray(self.moments(y, mean + steps * unit, variance, 1.0, *parameters).variance) / scale

        back2, back1, ahead1, ahead2 = (ratio(steps) for steps in (-2, -1, 1, 2))
        # With u = s sqrt(V): d(V(u) / V) / du = kappa_3 / V^(3/2), d^2(V(u) / V) / du^2 = kappa_4 / V^2 at u = 0.
        skewness = (8.0 * (ahead1 - back1) - (ahead2 - back2)) / (12.0 * STEP)
        return skewness, (16.0 * (ahead1 + back1) - (ahead2 + back2) - 30.0) / (12.0 * STEP**2)

    def parameter_gradient(
        self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array
    ) -> tuple[Array, ...]:
        """Return the derivative of log Z in each parameter at a fixed cavity, one array per parameter.

        For arguments see `moments`. A site without parameters gives an empty tuple. For a closed form the graph
        of log Z is differentiated; otherwise this is ``E[power * d log t / d parameter]`` under the tilted density.
        """
        if not self.site.parameters:
            return ()
        closed = self._has_closed_form(power)
        evaluate = self._closed_gradient_function if closed else self._quadrature_gradient
        shape, arrays = self._flatten(y, mean, variance, power, *parameters)
        return tuple(_shaped(derivative, shape) for derivative in evaluate(*arrays))

    def report(self, y: Array, eta: Array, z: Array, *parameters: Array) -> dict[str, Any]:
        """Return further results by name, such as states of mixtures; here none. For arguments see `bounded`."""
        return {}

    def tilted_report(self, y: Array, mean: Array, variance: Array, power: Array, *parameters: Array) -> dict[str, Any]:
        """Return further results by name, such as states of mixtures; here none. For arguments see `moments`."""
        return {}

    def log_density(self, y: Array, eta: Array, *parameters: Array) -> Array:
        """Return log t(eta; y, parameters), of the broadcast shape; if it has several axes, the first is the draws."""
        if self._jax:
            shape, arrays = self._flatten(y, eta, *parameters)
            arrays = [array[None] for array in arrays]
            return self._log_density_function(((1, None),) * len(arrays))(*arrays)[0].reshape(shape)
        return by_rows(self._log_density_function, y, eta, *parameters)

    def slope(self, y: Array, eta: Array, *parameters: Array) -> Array:
        """Return d log t(eta; y, parameters) / d eta, (n,), for arguments (n,)."""
        _, (y, eta, *values) = self._flatten(y, eta, *parameters)
        return self._density_function(eta[None], y, *values)[1][0]

    def parameter_slopes(self, y: Array, eta: Array, *parameters: Array) -> tuple[Array, ...]:
        """Return the derivative of log t(eta; y, parameters) in each parameter, (n,) each, for arguments (n,)."""
        _, (y, eta, *values) = self._flatten(y, eta, *parameters)
        return tuple(self._density_gradient_function(eta[None], np.ones((1, len(y))), y, *values))

    def log_density_derivatives(self, y: Array, eta: Array, *parameters: Array) -> tuple[Array, ...]:
        """Return log t(eta; y, parameters) and its first three derivatives in eta, each of the broadcast shape."""
        shape, arrays = self._flatten(y, eta, *parameters)
        return tuple(_shaped(derivative, shape) for derivative in self._derivatives_function(*arrays))

    def _has_closed_form(self, power: Array) -> bool:
        if self.site.tilted is None or self.site.any_power:
            return self.site.tilted is not None
        if is_jax(power):
            from pymc_ep.sites.compiled_jax import is_tracer

            if is_tracer(power):
                return False
        return bool(np.all(np.asarray(power) == 1.0))

    def _flatten(self, *arrays: Array) -> tuple[tuple[int, ...], list[Any]]:
        """Return the common shape, and the arguments as contiguous double vectors of that size."""
        if self._jax:
            from pymc_ep.sites.compiled_jax import flatten

            return flatten(*arrays)
        doubles = [np.asarray(array, dtype=np.float64) for array in arrays]
        shape = np.broadcast_shapes(*(array.shape for array in doubles))
        return shape, [
            np.ascontiguousarray(array if array.shape == shape else np.broadcast_to(array, shape)).reshape(-1)
            for array in doubles
        ]

    # Graphs of vectors, compiled on first use.

    def _vectors(self, *names: str) -> list[Any]:
        return [pt.vector(name, dtype="float64") for name in (*names, *self.site.parameters)]

    def _function(
        self, inputs: Sequence[Any], outputs: Sequence[Any], mode: Mode | str | None = None
    ) -> Callable[..., Any]:
        if self._jax:
            from pymc_ep.sites.compiled_jax import jax_function

            return jax_function(inputs, outputs, _without_checks("JAX"))
        default = numpy_mode() if self.site.interpreted and self.mode is None else self.mode
        mode = _without_checks(default if mode is None else mode)
        return compiled_function(inputs, outputs, trust_input=True, mode=mode, on_unused_input="ignore")

    def _log_density_function(self, shapes: tuple[tuple[int | None, int | None], ...]) -> Callable[..., Any]:
        """Return ``(y, eta, *parameters) -> log t`` for matrices with the static shapes `shapes`, which broadcast.

        NumPy runs the function where possible, as it is called once, on many draws.
        """
        if shapes not in self._log_density_functions:
            names = ("y", "eta", *self.site.parameters)
            inputs = [pt.tensor(k, dtype="float64", shape=s) for k, s in zip(names, shapes, strict=True)]
            y, eta, *parameters = inputs
            log_t = self._log_t(y, eta, parameters)
            function = self._function(inputs, [log_t], _numpy_mode_for([log_t]))
            self._log_density_functions[shapes] = function
        return self._log_density_functions[shapes]

    def _log_t(self, y: Any, eta: Any, parameters: Sequence[Any]) -> Any:
        return pt.broadcast_to(self.site.logp(y, eta, *parameters, **self.options), eta.shape)

    def _tilted_graph(self) -> tuple[list[Any], Tilted]:
        assert self.site.tilted is not None, "called for closed forms only"
        inputs = self._vectors("y", "mean", "variance", "power")
        return inputs, self.site.tilted(*inputs, **self.options)

    @compiled_property
    def _closed_function(self) -> Callable[..., Sequence[Any]]:
        inputs, tilted = self._tilted_graph()
        return self._function(inputs, list(tilted))

    @compiled_property
    def _closed_gradient_function(self) -> Callable[..., Sequence[Any]]:
        inputs, tilted = self._tilted_graph()
        return self._function(inputs, pytensor.grad(tilted.log_z.sum(), inputs[4:]))

    @compiled_property
    def _derivatives_function(self) -> Callable[..., Sequence[Any]]:
        y, eta, *parameters = inputs = self._vectors("y", "eta")
        derivatives = [self._log_t(y, eta, parameters)]
        for _ in range(3):
            derivatives.append(pytensor.grad(derivatives[-1].sum(), eta))
        return self._function(inputs, derivatives, self._mode_of_derivatives(derivatives))

    def _mode_of_derivatives(self, outputs: Sequence[Any]) -> Mode:
        """Return the mode of derivatives of log t, by NumPy where possible: Numba has no polygamma functions."""
        # That rewrite fails, with a traceback, on the bool in derivatives of pt.clip.
        return get_mode(_numpy_mode_for(outputs) or self.mode).excluding("local_greedy_distributor")

    def _by_closed_form(self, *arrays: Array) -> Sequence[Any]:
        return self._closed_function(*arrays)


def _numpy_mode_for(outputs: Sequence[Any]) -> Mode | None:
    """Return the NumPy mode, which compiles nothing; None for graphs with kernels, which are slow in NumPy."""
    scalar_ops = (getattr(v.owner.op, "scalar_op", None) for v in ancestors(outputs) if v.owner is not None)
    return None if any(isinstance(op, ScalarKernel) for op in scalar_ops) else numpy_mode()


def _without_checks(mode: Mode | str | None) -> Mode:
    """Return the mode without PyMC's assertions on parameters: `check_finite` detects bad ones by their moments."""
    return get_mode(mode).including("local_remove_check_parameter")


COMPILED: dict[type[Site], type[CompiledSite]] = {Site: CompiledSite}
"""Class of the compiled functions of each kind of site."""


def check_finite(tilted: Sequence[Array], y: Array, mean: Array, variance: Array, name: str) -> None:
    """Raise `NumericalError` at the first site whose moments are not finite.

    Parameters
    ----------
    tilted : sequence of array
        Result of `CompiledSite.moments` or `CompiledSite.cumulants`.
    y, mean, variance : array_like
        Arguments of that call.
    name : str
        Name of the site or of the observed variable, for the message.
    """
    finite = np.logical_and.reduce([np.isfinite(np.asarray(field)) for field in tilted])
    if finite.all():
        return
    index = first_index(~finite)
    y, mean, variance = (np.broadcast_to(np.asarray(array), finite.shape)[index] for array in (y, mean, variance))
    raise NumericalError(
        f"The moments of the {name} site{at_index(index)} (y = {y}) are not finite for the cavity mean {mean} and "
        f"variance {variance}. Scale the predictor or its prior so that the likelihood is finite there."
    )


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    return array if array.shape == shape else array.reshape(shape)
