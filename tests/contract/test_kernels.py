"""Every registered kernel, in every backend, against its 50-digit table."""

import csv
import pickle
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_ep.kernels import Kernel, kernels, register_kernel

TABLES = Path(__file__).parents[1] / "reference"
C_MODE = "CVM" if int(pm.__version__.split(".")[0]) >= 6 else "FAST_RUN"
PYTHON_MODE = pytensor.compile.mode.Mode("py", "fast_compile")
MODES = {"default": None, "c": C_MODE, "numba": "NUMBA", "jax": "JAX", "python": PYTHON_MODE}
SMALLEST = 1e-300
"""Below it the double itself has lost digits."""

every_kernel = pytest.mark.parametrize("name", kernels())
every_mode = pytest.mark.parametrize("mode", MODES)
pytestmark = pytest.mark.filterwarnings("error")


@cache
def table(name: str) -> dict[str, np.ndarray]:
    with (TABLES / kernels()[name].table).open() as file:
        rows = list(csv.DictReader(file))
    return {column: np.array([float(row[column]) for row in rows]) for column in rows[0]}


def option_rows(kernel: Kernel) -> list[tuple[dict[str, bool], np.ndarray]]:
    """The values that the table has for the kernel's options, each with its rows."""
    columns = table(kernel.name)
    size = len(columns[kernel.arguments[0]])
    if not kernel.options:
        return [({}, np.ones(size, dtype=bool))]
    values = np.stack([columns[option] for option in kernel.options], axis=1)
    return [
        ({option: bool(v) for option, v in zip(kernel.options, value, strict=True)}, (values == value).all(axis=1))
        for value in np.unique(values, axis=0)
    ]


def arguments(kernel: Kernel, rows: np.ndarray) -> list[np.ndarray]:
    return [table(kernel.name)[argument][rows] for argument in kernel.arguments]


def symbols(kernel: Kernel, dtype: str = "float64") -> list[pt.TensorVariable]:
    return [pt.vector(argument, dtype=dtype) for argument in kernel.arguments]


def errors(kernel: Kernel, column: str, rows: np.ndarray, value: np.ndarray) -> np.ndarray:
    expected = table(kernel.name)[column][rows]
    scale = table(kernel.name).get(f"{column}_scale", abs(table(kernel.name)[column]))[rows]
    assert value.shape == expected.shape
    bad = ~np.isfinite(value)
    assert not bad.any(), f"{column} is not finite at {[argument[bad] for argument in arguments(kernel, rows)]}"
    return abs(value - expected) / np.maximum(scale, SMALLEST)


def assert_close(kernel: Kernel, column: str, rows: np.ndarray, value: np.ndarray, tolerance: float) -> None:
    error = errors(kernel, column, rows, value)
    worst = int(np.argmax(error))
    where = dict(zip(kernel.arguments, (a[worst] for a in arguments(kernel, rows)), strict=True))
    assert error[worst] <= tolerance, f"{column}: error {error[worst]:.1e} > {tolerance:.0e} at {where}"


@cache
def compiled(name: str, mode: str, options: tuple[tuple[str, bool], ...] = ()):
    """The kernel as a function of vectors; without options those of the last rows of the table."""
    kernel = kernels()[name]
    inputs = symbols(kernel)
    chosen = dict(options) or option_rows(kernel)[-1][0]
    return pytensor.function(inputs, kernel.function(*inputs, **chosen), mode=MODES[mode])


@every_kernel
@every_mode
def test_agrees_with_the_table(name, mode):
    kernel = kernels()[name]
    for options, rows in option_rows(kernel):
        values = compiled(name, mode, tuple(options.items()))(*arguments(kernel, rows))
        for (column, tolerance), value in zip(kernel.tolerances.items(), values, strict=True):
            assert_close(kernel, column, rows, np.asarray(value), tolerance)


@every_kernel
@every_mode
def test_gradient_agrees_with_the_table(name, mode):
    kernel = kernels()[name]
    options, rows = option_rows(kernel)[-1]
    inputs = symbols(kernel)
    outputs = dict(zip(kernel.tolerances, kernel.function(*inputs, **options), strict=True))
    derivatives = [
        pt.grad(outputs[output].sum(), inputs[kernel.arguments.index(argument)])
        for output, argument in kernel.derivatives
    ]
    function = pytensor.function(inputs, derivatives, mode=MODES[mode])
    for column, value in zip(kernel.derivatives.values(), function(*arguments(kernel, rows)), strict=True):
        assert_close(kernel, column, rows, np.asarray(value), 1e-8)


@every_kernel
def test_gradient_agrees_with_finite_differences(name):
    kernel = kernels()[name]
    options, rows = option_rows(kernel)[-1]
    point = arguments(kernel, rows)
    # Where arguments are of moderate size a difference quotient of doubles has some digits.
    moderate = np.all([abs(value) < 50 for value in point], axis=0)
    if "variance" in kernel.arguments:
        moderate &= point[kernel.arguments.index("variance")] > 0.05
    point = [value[moderate] for value in point]
    inputs = symbols(kernel)
    outputs = dict(zip(kernel.tolerances, kernel.function(*inputs, **options), strict=True))
    assert len(point[0]) > 10
    for output, argument in kernel.derivatives:
        i = kernel.arguments.index(argument)
        function = pytensor.function(inputs, [outputs[output], pt.grad(outputs[output].sum(), inputs[i])])
        step = 1e-4 * np.maximum(1e-2, abs(point[i]))
        ends = [function(*[v + sign * step * (j == i) for j, v in enumerate(point)])[0] for sign in (1, -1)]
        quotient = (ends[0] - ends[1]) / (2 * step)
        scale = 1 + abs(ends[0])
        np.testing.assert_allclose(function(*point)[1] / scale, quotient / scale, rtol=1e-5, atol=1e-7)


@every_kernel
@every_mode
def test_broadcasts(name, mode):
    kernel = kernels()[name]
    options, rows = option_rows(kernel)[-1]
    point = [value[:6] for value in arguments(kernel, rows)]
    matrices = [pt.matrix(argument, shape=(6, 1) if i == 0 else (1, 6)) for i, argument in enumerate(kernel.arguments)]
    grid = [value[:, None] if i == 0 else value[None, :] for i, value in enumerate(point)]
    function = pytensor.function(matrices, kernel.function(*matrices, **options), mode=MODES[mode])
    expected = compiled(name, mode)(*[value.ravel().copy() for value in np.broadcast_arrays(*grid)])
    for value, flat_value in zip(function(*grid), expected, strict=True):
        assert value.shape == np.broadcast_shapes(*(g.shape for g in grid))
        np.testing.assert_allclose(np.ravel(value), flat_value, rtol=1e-13)


@every_kernel
@every_mode
def test_scalars_and_integers(name, mode):
    kernel = kernels()[name]
    options, _ = option_rows(kernel)[-1]
    scalars = [pt.scalar(argument, dtype="int64") for argument in kernel.arguments]
    function = pytensor.function(scalars, kernel.function(*scalars, **options), mode=MODES[mode])
    ones = np.ones((len(scalars), 1))
    for value, expected in zip(function(*[1] * len(scalars)), compiled(name, mode)(*ones), strict=True):
        assert np.shape(value) == ()
        np.testing.assert_allclose(value, expected[0], rtol=1e-13)


@every_kernel
@every_mode
def test_single_precision_loses_only_the_rounding_of_its_inputs(name, mode):
    kernel = kernels()[name]
    options, rows = option_rows(kernel)[-1]
    single = symbols(kernel, "float32")
    rounded = [value.astype("float32") for value in arguments(kernel, rows)]
    from_single = pytensor.function(single, kernel.function(*single, **options), mode=MODES[mode])
    widened = compiled(name, mode)(*[value.astype("float64") for value in rounded])
    for column, value, expected in zip(kernel.tolerances, from_single(*rounded), widened, strict=True):
        assert value.dtype == "float64"
        assert np.isfinite(value).all(), column
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=SMALLEST, err_msg=column)


@every_kernel
@every_mode
def test_invalid_arguments_give_nan_in_every_output(name, mode):
    kernel = kernels()[name]
    for i in range(len(kernel.arguments)):
        point = np.ones((len(kernel.arguments), 3))
        point[i] = np.nan, np.inf, 1.0
        for value in compiled(name, mode)(*point):
            np.testing.assert_array_equal(np.isnan(value), [True, True, False])


@every_kernel
def test_op_survives_pickling(name):
    kernel = kernels()[name]
    ops = []
    for options, _ in option_rows(kernel):
        op = kernel.function(*symbols(kernel), **options)[0].owner.op
        again = pickle.loads(pickle.dumps(op))
        assert again == op and hash(again) == hash(op)
        assert again.scalar_op.c_code_cache_version() == op.scalar_op.c_code_cache_version()
        ops.append(op)
    assert len(set(ops)) == len(ops), "options must distinguish the Ops"


@every_kernel
def test_jax_body_traces_inside_a_larger_program(name):
    jax = pytest.importorskip("jax")
    kernel = kernels()[name]
    options, rows = option_rows(kernel)[-1]
    body = getattr(import_module(f"{kernel.package}.jax"), name)
    point = arguments(kernel, rows)
    values = jax.jit(jax.vmap(lambda *row: body(*row, **options)))(*point)
    for (column, tolerance), value in zip(kernel.tolerances.items(), values, strict=True):
        assert_close(kernel, column, rows, np.asarray(value), tolerance)


def test_names_are_unique():
    kernel = next(iter(kernels().values()))
    with pytest.raises(ValueError, match="registered already"):
        register_kernel(kernel)


def test_derivatives_that_do_not_exist_are_refused():
    inputs = symbols(kernels()["rectified_poisson"])
    outputs = kernels()["rectified_poisson"].function(*inputs)
    with pytest.raises(NotImplementedError, match="'tilted_mean'"):
        pt.grad(outputs[1].sum(), inputs[1])
    with pytest.raises(pytensor.gradient.NullTypeGradError, match="with respect to the cavity only"):
        pt.grad(outputs[0].sum(), inputs[3])
