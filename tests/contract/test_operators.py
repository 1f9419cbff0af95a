"""Contract of every linear map: adjoint, matrix, rank, gradient, batches and backends, against dense constructions."""

import pickle
import warnings
from math import prod

import numpy as np
import pylops
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import pywt
import scipy.sparse as sp
from pytensor.graph.replace import vectorize_graph
from scipy.signal import convolve2d
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from pymc_ep.operators import (
    Convolution2D,
    Fourier2D,
    Gradient2D,
    Hessian2D,
    Mask,
    Wavelet2D,
    apply_operator,
    as_linear_map,
    stack,
)

C_MODE = "CVM" if int(pm.__version__.split(".")[0]) >= 6 else "FAST_RUN"
PYTHON = pytensor.compile.mode.Mode("py", "fast_compile")
MODES = {"c": C_MODE, "numba": "NUMBA", "jax": "JAX"}
"""The default mode of either stack is one of the first two."""
RNG = np.random.default_rng(20)
DENSE = RNG.standard_normal((7, 12))
SPARSE = sp.random_array((9, 12), density=0.3, rng=np.random.default_rng(3), format="csc")
KERNELS = {
    "odd": RNG.standard_normal((3, 3)),
    "even": RNG.standard_normal((4, 2)),
    "row": RNG.standard_normal((1, 5)),
    "large": RNG.standard_normal((6, 5)),
    "whole": RNG.standard_normal((6, 7)),
    "pixel": np.array([[2.5]]),
}
KEPT = RNG.random((5, 4)) < 0.4


def matrix_of(function, shape):
    """The matrix of a linear function of an image, column by column."""
    units = np.eye(prod(shape)).reshape(-1, *shape)
    return np.stack([np.ravel(function(unit)) for unit in units], axis=1)


def inner_differences(x):
    return np.concatenate([np.diff(x, axis=1).ravel(), np.diff(x, axis=0).ravel()])


def cyclic_differences(x):
    return np.stack([np.roll(x, -1, axis=axis) - x for axis in (1, 0) if x.shape[axis] > 1])


def second_differences(x):
    along, down = (np.moveaxis(x, axis, -1) for axis in (1, 0))
    parts = [part[:, 2:] - 2 * part[:, 1:-1] + part[:, :-2] for part in (along, down)]
    mixed = x[1:, 1:] - x[1:, :-1] - x[:-1, 1:] + x[:-1, :-1]
    return np.concatenate([parts[0].ravel(), parts[1].T.ravel(), np.sqrt(2) * mixed.ravel()])


def convolved(kernel, boundary):
    name = {"periodic": "wrap", "reflect": "symm", "constant": "fill"}[boundary]
    (a, b) = np.array(kernel.shape) // 2

    def function(x):
        return convolve2d(x, kernel, mode="full", boundary=name)[a:, b:][: x.shape[0], : x.shape[1]]

    return function


def wavelet_coefficients(wavelet, levels, scaling):
    def function(x):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Level value")
            low, *details = pywt.wavedec2(x, wavelet, mode="periodization", level=levels)
        parts = [image.ravel() for level in reversed(details) for image in level]
        return np.concatenate([*parts, low.ravel()] if scaling else parts)

    return function


def cumulative(n):
    """A SciPy operator without a matrix of its own: the running sum."""
    return LinearOperator((n, n), matvec=np.cumsum, rmatvec=lambda y: np.cumsum(y.ravel()[::-1])[::-1], dtype=float)


def gradients():
    for shape in [(4, 4), (3, 5), (6, 2), (1, 5), (5, 1), (2, 1)]:
        yield f"reflected gradient {shape}", Gradient2D(shape), matrix_of(inner_differences, shape)
        cyclic = matrix_of(cyclic_differences, shape)
        yield f"periodic gradient {shape}", Gradient2D(shape, boundary="periodic"), cyclic
    for shape in [(4, 4), (3, 5), (6, 2), (2, 2), (1, 5), (5, 1), (3, 1)]:
        yield f"second differences {shape}", Hessian2D(shape), matrix_of(second_differences, shape)


def convolutions():
    for name, kernel in KERNELS.items():
        for boundary in ("periodic", "reflect", "constant"):
            dense = matrix_of(convolved(kernel, boundary), (6, 7))
            yield f"{boundary} convolution {name}", Convolution2D((6, 7), kernel, boundary=boundary), dense
    for boundary in ("periodic", "reflect", "constant"):
        for name, shape in [("odd", (3, 3)), ("even", (4, 2)), ("row", (1, 5))]:
            dense = matrix_of(convolved(KERNELS[name], boundary), shape)
            yield (
                f"{boundary} {name} kernel as large as the image",
                Convolution2D(shape, KERNELS[name], boundary),
                dense,
            )
    for shape in [(11, 13), (12, 10)]:
        dense = matrix_of(convolved(KERNELS["whole"], "periodic"), shape)
        yield f"periodic convolution of sides {shape}", Convolution2D(shape, KERNELS["whole"]), dense
    blur = np.exp(-0.5 * (np.arange(-2, 3)[:, None] ** 2 + np.arange(-2, 3) ** 2))
    yield "square blur", Convolution2D((8, 8), blur), matrix_of(convolved(blur, "periodic"), (8, 8))
    mean = np.full((2, 2), 0.25)
    yield "singular mean", Convolution2D((6, 6), mean), matrix_of(convolved(mean, "periodic"), (6, 6))


def wavelets():
    for wavelet, levels, shape in [
        ("haar", 2, (4, 12)),
        ("haar", 1, (2, 6)),
        ("db2", 2, (8, 8)),
        ("sym4", 2, (12, 8)),
        ("coif1", 1, (6, 10)),
        ("db8", 2, (4, 8)),
    ]:
        for scaling in (False, True):
            dense = matrix_of(wavelet_coefficients(wavelet, levels, scaling), shape)
            yield (
                f"{wavelet} {shape}{' with scaling' * scaling}",
                Wavelet2D(shape, wavelet, levels, scaling=scaling),
                dense,
            )


def fourier_coefficients(kept):
    """Real parts of the kept frequencies, one of each conjugate pair, then imaginary ones, as unit vectors."""
    sides = kept.shape
    real, imaginary = [], []
    for a, b in np.ndindex(*sides):
        conjugate = -a % sides[0], -b % sides[1]
        if (kept[a, b] or kept[conjugate]) and (a, b) <= conjugate:
            real.append((a, b))
            imaginary += [(a, b)] * ((a, b) != conjugate)

    def function(x):
        spectrum = np.fft.fft2(x)
        values = [spectrum[k].real for k in real] + [spectrum[k].imag for k in imaginary]
        lengths = [2.0 if k in imaginary else 1.0 for k in real] + [2.0] * len(imaginary)
        return np.array(values) * np.sqrt(lengths) / np.sqrt(x.size)

    return function


def fourier():
    for shape in [(5, 4), (6, 7), (1, 4), (4, 1), (2, 2), (1, 1)]:
        every = np.ones(shape, dtype=bool)
        yield f"Fourier {shape}", Fourier2D(shape), matrix_of(fourier_coefficients(every), shape)
    for shape in [(6, 8), (7, 5)]:
        kept = np.random.default_rng(4).random(shape) < 0.3
        yield f"some frequencies {shape}", Fourier2D(shape, kept), matrix_of(fourier_coefficients(kept), shape)


def others():
    shape = (5, 4)
    indices = np.array([3, 19, 3, 0])
    yield "mask", Mask(shape, KEPT), np.eye(20)[KEPT.ravel()]
    yield "mask by indices", Mask(shape, indices), np.eye(20)[indices]
    yield "mask of a vector", Mask((6,), np.arange(6) > 2), np.eye(6)[3:]
    yield "dense", as_linear_map(DENSE, (12,)), DENSE
    yield "dense on an image", as_linear_map(DENSE, (3, 4)), DENSE
    yield "sparse", as_linear_map(SPARSE, (4, 3)), SPARSE.toarray()
    yield "old sparse matrix", as_linear_map(sp.csc_matrix(SPARSE), (12,)), SPARSE.toarray()
    yield "integers", as_linear_map(np.arange(12).reshape(3, 4), (2, 2)), np.arange(12.0).reshape(3, 4)
    yield "SciPy operator", as_linear_map(cumulative(6), (6,)), np.tril(np.ones((6, 6)))
    yield "SciPy operator of a matrix", as_linear_map(aslinearoperator(DENSE), (4, 3)), DENSE
    blur = pylops.signalprocessing.Convolve1D(7, h=np.array([1.0, 2.0, -0.5]), offset=1)
    yield "PyLops operator", as_linear_map(blur, (7,)), blur.todense()
    slopes = pylops.FirstDerivative((3, 4), axis=0, kind="forward")
    yield "PyLops operator on an image", as_linear_map(slopes, (3, 4)), slopes.todense()


def combined():
    shape = (4, 6)
    kernel = KERNELS["odd"]
    blur, differences = matrix_of(convolved(kernel, "reflect"), shape), matrix_of(inner_differences, shape)
    kept = np.arange(24).reshape(shape) % 3 > 0
    blurred = Convolution2D(shape, kernel, boundary="reflect")
    yield "composition", Mask(shape, kept) @ blurred, np.eye(24)[kept.ravel()] @ blur
    yield "stack", stack(Gradient2D(shape), blurred), np.vstack([differences, blur])
    haar = matrix_of(wavelet_coefficients("haar", 1, False), shape)
    tight = stack(Wavelet2D(shape, "haar", 1), Gradient2D(shape))
    yield "stack with groups", tight, np.vstack([haar, differences])
    yield "adjoint", Gradient2D(shape).T, differences.T
    yield "normal map", blurred.T @ blurred, blur.T @ blur
    sums = as_linear_map(cumulative(12), (12,))
    running = np.tril(np.ones((12, 12)))
    yield (
        "with a foreign operator",
        stack(sums @ as_linear_map(np.eye(12), (12,)), sums.T),
        np.vstack([running, running.T]),
    )
    yield "wavelets of a blur", Wavelet2D(shape, "haar", 1) @ blurred, haar @ blur


CASES = {
    name: (linear_map, dense)
    for family in (gradients, convolutions, fourier, wavelets, others, combined)
    for name, linear_map, dense in family()
}
every_map = pytest.mark.parametrize("name", CASES)
# One of each body, for what takes a compilation.
BODIES = [
    "reflected gradient (3, 5)",
    "periodic gradient (3, 5)",
    "periodic convolution even",
    "reflect convolution even",
    "constant convolution odd",
    "periodic convolution of sides (12, 10)",
    "periodic convolution of sides (11, 13)",
    "reflect convolution whole",
    "some frequencies (6, 8)",
    "sym4 (12, 8)",
    "haar (4, 12) with scaling",
    "mask",
    "dense on an image",
    "sparse",
    "SciPy operator",
    "PyLops operator on an image",
    "stack with groups",
    "with a foreign operator",
    "adjoint",
]
# An interpreted body knows but the numbers of sides, and a map of a batch leaves the body as it is.
FEW = {("numba", ()): ["reflected gradient (3, 5)", "periodic gradient (3, 5)", "with a foreign operator"]}
FEW |= {(mode, (2,)): ["reflected gradient (3, 5)"] for mode in MODES} | {("c", (2,)): BODIES}
FEW |= {("jax", (2,)): ["reflect convolution even", "with a foreign operator"]}


def random_pair(linear_map, *batch):
    rng = np.random.default_rng(7)
    return rng.standard_normal((*batch, *linear_map.input_shape)), rng.standard_normal(
        (*batch, *linear_map.output_shape)
    )


@every_map
def test_forward_and_adjoint_are_the_matrix_and_its_transpose(name):
    linear_map, dense = CASES[name]
    x, y = random_pair(linear_map)
    forward, adjoint = linear_map.forward(x), linear_map.adjoint(y)
    assert forward.shape == linear_map.output_shape and adjoint.shape == linear_map.input_shape
    assert forward.dtype == adjoint.dtype == np.float64
    assert forward.flags.c_contiguous and adjoint.flags.c_contiguous
    assert not np.shares_memory(forward, x) and not np.shares_memory(adjoint, y)
    np.testing.assert_allclose(forward.ravel(), dense @ x.ravel(), rtol=0, atol=1e-12 * abs(dense).sum(1).max())
    np.testing.assert_allclose(adjoint.ravel(), dense.T @ y.ravel(), rtol=0, atol=1e-12 * abs(dense).sum(0).max())


@every_map
def test_dot_products_agree(name):
    linear_map, _ = CASES[name]
    x, y = random_pair(linear_map)
    image, back = linear_map.forward(x), linear_map.adjoint(y)
    scale = np.linalg.norm(image) * np.linalg.norm(y)
    assert abs(np.vdot(image, y) - np.vdot(x, back)) <= 1e-12 * scale


@every_map
def test_strided_arguments_and_other_types(name):
    linear_map, _ = CASES[name]
    x = np.arange(2 * prod(linear_map.input_shape)).reshape(*linear_map.input_shape[::-1], 2)[..., 0].T
    expected = linear_map.forward(np.array(x, dtype=float, order="C"))
    np.testing.assert_array_equal(linear_map.forward(x), expected)
    np.testing.assert_array_equal(linear_map.forward(np.asfortranarray(x, dtype=np.float32)), expected)


@every_map
def test_matrix(name):
    linear_map, dense = CASES[name]
    for matrix, expected in [(linear_map.matrix(), dense), (linear_map.T.matrix(), dense.T)]:
        assert isinstance(matrix, sp.csr_array) and matrix.dtype == np.float64
        np.testing.assert_allclose(matrix.toarray(), expected, rtol=0, atol=1e-13 * abs(dense).max())


@every_map
def test_rank(name):
    linear_map, dense = CASES[name]
    assert linear_map.rank == linear_map.T.rank == np.linalg.matrix_rank(dense)


@every_map
def test_orthonormal_rows_are_those_of_which_it_is_said(name):
    linear_map, dense = CASES[name]
    gram = dense @ dense.T
    # PyWavelets' coefficients of the symlets have 12 digits.
    assert not linear_map.orthonormal or np.allclose(gram, np.eye(len(gram)), rtol=0, atol=1e-11)
    if isinstance(linear_map, Wavelet2D | Mask | Fourier2D):
        assert linear_map.orthonormal == np.allclose(gram, np.eye(len(gram)))


@every_map
def test_groups_are_numbered_from_zero(name):
    linear_map, _ = CASES[name]
    if linear_map.groups is not None:
        assert linear_map.groups.shape == (prod(linear_map.output_shape),)
        assert set(linear_map.groups) == set(range(linear_map.groups.max() + 1))


@every_map
def test_adjoint_of_the_adjoint_and_copies(name):
    linear_map, _ = CASES[name]
    assert linear_map.T.T is linear_map
    x, _ = random_pair(linear_map)
    if not name.startswith(("SciPy", "with a foreign")):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(linear_map)).forward(x), linear_map.forward(x))


def graphs(linear_map, *batch):
    """Symbolic x and y of a map, A x, the pullback of y and the pullback of that, which is A x again."""
    x = pt.tensor("x", shape=linear_map.input_shape)
    y = pt.tensor("y", shape=linear_map.output_shape)
    forward = apply_operator(linear_map, x)
    pulled = pytensor.grad(None, wrt=x, known_grads={forward: y})
    pushed = pytensor.grad(None, wrt=y, known_grads={pulled: x})
    return x, y, [forward, pulled, pushed]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
def test_every_backend_computes_the_same(mode, batch):
    """All maps in one function, since a compilation costs more than they do."""
    if mode == "jax":
        pytest.importorskip("jax")
    names = FEW.get((mode, batch), BODIES)
    inputs, outputs, values, expected = [], [], [], []
    for name in names:
        linear_map, dense = CASES[name]
        x, y, results = graphs(linear_map)
        pair = random_pair(linear_map, *batch)
        if batch:
            xs, ys = (pt.tensor(shape=(None, *v.type.shape)) for v in (x, y))
            results, x, y = vectorize_graph(results, {x: xs, y: ys}), xs, ys
        inputs += [x, y]
        outputs += results
        values += pair
        rows = [part.reshape(*batch, -1) for part in pair]
        forward = (rows[0] @ dense.T).reshape(pair[1].shape)
        expected += [forward, (rows[1] @ dense).reshape(pair[0].shape), forward]
    computed = pytensor.function(inputs, outputs, mode=MODES[mode])(*values)
    for position, (ours, theirs) in enumerate(zip(computed, expected, strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-12 * abs(theirs).max(), err_msg=names[position // 3])


@every_map
def test_gradient_by_finite_differences(name):
    """Of the sum of squares, which central differences have exactly but for rounding."""
    linear_map, _ = CASES[name]
    x = pt.tensor("x", shape=linear_map.input_shape)
    square = (apply_operator(linear_map, x) ** 2).sum()
    value, gradient = (pytensor.function([x], out, mode=PYTHON) for out in (square, pytensor.grad(square, x)))
    x, direction = random_pair(linear_map)[0], np.random.default_rng(8).standard_normal(linear_map.input_shape)
    slope = (value(x + direction) - value(x - direction)) / 2
    assert np.vdot(gradient(x), direction) == pytest.approx(slope, rel=1e-10, abs=1e-10)
