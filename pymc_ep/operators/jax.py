"""JAX bodies, traceable functions of one array, of the linear maps and their adjoints.

`traceable` returns the body of each map of this package. JAX derives the body of an adjoint by transposing the map's
body, so that the two cannot disagree. Maps of other packages and of users' classes are called on the host, in NumPy.
"""

from collections.abc import Callable
from functools import reduce, singledispatch
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.operators.adapters import DenseMap, SparseMap
from pymc_ep.operators.apply import ApplyLinearMap
from pymc_ep.operators.base import Adjoint, Composition, LinearMap, Stack
from pymc_ep.operators.convolution import PAD_MODES, Convolution2D
from pymc_ep.operators.fourier import AXES, Fourier2D
from pymc_ep.operators.gradient import Gradient2D
from pymc_ep.operators.hessian import Hessian2D
from pymc_ep.operators.mask import Mask
from pymc_ep.operators.wavelet import Wavelet2D

__all__ = ["traceable"]

Body = Callable[[jax.Array], jax.Array]


@jax_funcify.register(ApplyLinearMap)
def jax_apply(op: ApplyLinearMap, **kwargs: object) -> Body:
    """Return a function of one array that JAX can trace, differentiate and vectorise.

    It raises InvalidDataError when traced for an array that has not the map's input shape.
    """
    linear_map = op.linear_map
    body = traceable(linear_map)

    def apply(x: jax.Array) -> jax.Array:
        linear_map.check_shape(jnp.shape(x))
        return body(x)

    return apply


@singledispatch
def traceable(linear_map: LinearMap) -> Body:
    """Return the JAX body of a map; for a class without a body in this module, a callback to the host."""
    return _on_host(linear_map)


@singledispatch
def transposed(linear_map: LinearMap) -> Body:
    """Return the JAX body of a map's adjoint."""
    if traceable.dispatch(type(linear_map)) is traceable.dispatch(LinearMap):
        return _on_host(linear_map.T)
    body = traceable(linear_map)

    def apply(y: jax.Array) -> jax.Array:
        return jax.linear_transpose(body, jax.ShapeDtypeStruct(linear_map.input_shape, y.dtype))(y)[0]

    return apply


@traceable.register
def _adjoint(linear_map: Adjoint) -> Body:
    return transposed(linear_map.of)


@traceable.register
def _composition(linear_map: Composition) -> Body:
    outer, inner = traceable(linear_map.outer), traceable(linear_map.inner)
    return lambda x: outer(inner(x))


@traceable.register
def _stack(linear_map: Stack) -> Body:
    bodies = [traceable(member) for member in linear_map.members]
    return lambda x: jnp.concatenate([body(x).ravel() for body in bodies])


@transposed.register(Adjoint)
@transposed.register(Composition)
def _transposed_by_parts(linear_map: LinearMap) -> Body:
    return traceable(linear_map.T)


@transposed.register
def _stack_transposed(linear_map: Stack) -> Body:
    bodies = [transposed(member) for member in linear_map.members]
    return lambda y: reduce(add, (body(output) for body, output in zip(bodies, linear_map.split(y))))


@traceable.register
def _dense(linear_map: DenseMap) -> Body:
    return lambda x: jnp.asarray(linear_map.dense) @ x.ravel()


@traceable.register
def _sparse(linear_map: SparseMap) -> Body:
    entries = linear_map.sparse.tocoo()
    rows, columns = entries.coords
    size = linear_map.output_shape[0]

    def apply(x: jax.Array) -> jax.Array:
        products = jnp.asarray(entries.data) * x.ravel()[jnp.asarray(columns)]
        return jax.ops.segment_sum(products, jnp.asarray(rows), num_segments=size, indices_are_sorted=True)

    return apply


@traceable.register
def _mask(linear_map: Mask) -> Body:
    return lambda x: x.ravel()[jnp.asarray(linear_map.indices)]


@traceable.register
def _gradient(linear_map: Gradient2D) -> Body:
    if linear_map.boundary == "reflect":
        return lambda x: jnp.concatenate([jnp.diff(x, axis=axis).ravel() for axis in linear_map.axes])
    return lambda x: jnp.stack([jnp.roll(x, -1, axis) - x for axis in linear_map.axes])


@traceable.register
def _hessian(linear_map: Hessian2D) -> Body:
    def apply(x: jax.Array) -> jax.Array:
        mixed = np.sqrt(2.0) * jnp.diff(jnp.diff(x, axis=0), axis=1)
        along, down = (jnp.diff(x, 2, axis=axis) if x.shape[axis] > 2 else jnp.zeros(0) for axis in (1, 0))
        return jnp.concatenate([differences.ravel() for differences in (along, down, mixed)])

    return apply


@traceable.register
def _convolution(linear_map: Convolution2D) -> Body:
    (k, m), (r, c) = linear_map.kernel.shape, linear_map.input_shape
    mode, shape = PAD_MODES[linear_map.boundary], linear_map.fft_shape

    def by_fourier(x: jax.Array) -> jax.Array:
        if linear_map.cyclic:
            return jnp.fft.irfft2(jnp.fft.rfft2(x) * jnp.asarray(linear_map.spectrum), shape)
        padded = jnp.pad(x, linear_map.padding, mode=mode)
        out = jnp.fft.irfft2(jnp.fft.rfft2(padded, shape) * jnp.asarray(linear_map.spectrum), shape)
        return out[k - 1 :, m - 1 :][:r, :c]

    def by_taps(x: jax.Array) -> jax.Array:
        # Padding by k - 1 - a rows puts x[i + a - s] of the convolution at row i + k - 1 - s, and columns alike.
        padded = jnp.pad(x, linear_map.padding, mode=mode)
        terms = (
            linear_map.kernel[s, t] * padded[k - 1 - s :, m - 1 - t :][:r, :c]
            for s, t in np.argwhere(linear_map.kernel)
        )
        return reduce(add, terms, jnp.zeros_like(x))

    return by_taps if linear_map.direct else by_fourier


@traceable.register
def _fourier(linear_map: Fourier2D) -> Body:
    def apply(x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.rfft2(x, axes=AXES, norm="ortho")
        values = spectrum[linear_map.frequencies] * jnp.asarray(linear_map.weights)
        return jnp.where(jnp.asarray(linear_map.sines), values.imag, values.real)

    return apply


@traceable.register
def _wavelet(linear_map: Wavelet2D) -> Body:
    filters = linear_map.wavelet.dec_lo, linear_map.wavelet.dec_hi

    def apply(x: jax.Array) -> jax.Array:
        low, out = x, []
        for _ in range(linear_map.levels):
            # A level is ordered as in PyWavelets: detail along the rows' axis first.
            smooth, detail = _halved(low, filters)
            (low, vertical), (horizontal, diagonal) = (_halved(half.T, filters) for half in (smooth, detail))
            low = low.T
            out += [horizontal.T.ravel(), vertical.T.ravel(), diagonal.T.ravel()]
        return jnp.concatenate([*out, low.ravel()] if linear_map.scaling else out)

    return apply


def _halved(x: jax.Array, filters: tuple[list[float], list[float]]) -> list[jax.Array]:
    """Return the low-pass and high-pass halves of `x` along its first axis, (n / 2, ...) each, aligned as PyWavelets'.

    `filters` are the low-pass and the high-pass filter.
    """
    n, length = x.shape[0], len(filters[0])
    # Output k is sum_m h[m] x[2k + F/2 - m], and element q of the padded array is x[q + 1 - F/2], indices modulo n.
    padded = x[np.arange(1 - length // 2, n + length // 2 - 1) % n]
    shifted = [padded[length - 1 - m :][: n - 1 : 2] for m in range(length)]
    return [reduce(add, (tap * samples for tap, samples in zip(taps, shifted))) for taps in filters]


def _on_host(linear_map: LinearMap) -> Body:
    """Return the map as a callback to the host, differentiable in reverse mode."""
    out = jax.ShapeDtypeStruct(linear_map.output_shape, jnp.float64)
    back = jax.ShapeDtypeStruct(linear_map.input_shape, jnp.float64)

    @jax.custom_vjp
    def apply(x: jax.Array) -> jax.Array:
        return jax.pure_callback(linear_map.forward, out, x, vmap_method="sequential")

    def forward(x: jax.Array) -> tuple[jax.Array, None]:
        return apply(x), None

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array]:
        return (jax.pure_callback(linear_map.adjoint, back, cotangent, vmap_method="sequential"),)

    apply.defvjp(forward, backward)
    return apply
