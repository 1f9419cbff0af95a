"""Values of PyTensor graphs in 150 digits: mpmath runs each operation."""

from functools import lru_cache, reduce

import mpmath as mp
import numpy as np
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import indices_from_subtensor

DIGITS = 150
"""Of a log density whose terms cancel: 1 - exp(-exp(-60)) alone takes 26, and its third power 78."""
_HUGE = mp.mpf(10) ** 12
"""Beyond this modulus an exponential is zero or infinite here: mpmath would hold its exponent in as many bits."""


def number(x):
    if isinstance(x, bool | np.bool_):
        return bool(x)
    return mp.mpf(float(x)) if np.isfinite(x) else mp.nan if np.isnan(x) else mp.inf * int(np.sign(x))


def exp(x):
    return mp.exp(x) if abs(x) < _HUGE else mp.mpf(0) if x < 0 else mp.inf


def log(x):
    return mp.nan if x < 0 else -mp.inf if x == 0 else mp.log(x)


def product(a, b):
    return mp.nan if (a == 0 and mp.isinf(b)) or (b == 0 and mp.isinf(a)) else a * b


def ratio(a, b):
    return a / b if b else mp.nan if a == 0 else mp.inf * mp.sign(a)


def power(a, b):
    if a == 0:
        return mp.mpf(b == 0) if b >= 0 else mp.inf
    return exp(b * mp.log(a)) if a > 0 else mp.power(a, b)


def log_gamma(x):
    return mp.inf if x == 0 else mp.loggamma(x).real


def bessel(order, x):
    """The modified Bessel function over exp(x), by its asymptotic series where x is large."""
    if x < 1e4:
        return mp.besseli(order, x) * mp.exp(-x)
    terms, total = mp.mpf(1), mp.mpf(1)
    for k in range(1, 30):
        terms *= -(4 * order**2 - (2 * k - 1) ** 2) / (k * 8 * x)
        total += terms
    return total / mp.sqrt(2 * mp.pi * x)


def scaled_erfc(x):
    return 1 / (x * mp.sqrt(mp.pi)) if x > _HUGE else mp.exp(x * x) * mp.erfc(x)


_FUNCTIONS = {
    "Add": lambda *a: reduce(lambda x, y: x + y, a),
    "Mul": lambda *a: reduce(product, a),
    "Sub": lambda a, b: a - b,
    "TrueDiv": ratio,
    "Pow": power,
    "Exp": exp,
    "Log": log,
    "Log1p": lambda x: log(1 + x),
    "Expm1": lambda x: mp.expm1(x) if abs(x) < _HUGE else exp(x) - 1,
    "Log1mexp": lambda x: log(-mp.expm1(x)) if abs(x) < _HUGE else mp.mpf(0),
    "LogAddExp": lambda a, b: log(exp(a) + exp(b)),
    "Softplus": lambda x: log(1 + exp(x)),
    "Sigmoid": lambda x: 1 / (1 + exp(-x)),
    "Neg": lambda x: -x,
    "Abs": abs,
    "Sqr": lambda x: x * x,
    "Sqrt": mp.sqrt,
    "Reciprocal": lambda x: ratio(mp.mpf(1), x),
    "Sign": mp.sign,
    "Cos": mp.cos,
    "Floor": mp.floor,
    "RoundHalfToEven": mp.nint,
    "GammaLn": log_gamma,
    "GammaInc": lambda a, x: mp.gammainc(a, 0, x, regularized=True),
    "GammaIncC": lambda a, x: mp.gammainc(a, x, regularized=True),
    "BetaInc": lambda a, b, x: mp.betainc(a, b, 0, x, regularized=True),
    "Erf": mp.erf,
    "Erfc": mp.erfc,
    "Erfcx": scaled_erfc,
    "Ive": bessel,
    "I0e": lambda x: bessel(0, x),
    "I0": lambda x: mp.besseli(0, x),
    "I1e": lambda x: bessel(1, x),
    "ScalarMaximum": max,
    "ScalarMinimum": min,
    "Maximum": max,
    "Minimum": min,
    "Clip": lambda x, low, high: min(max(x, low), high),
}
_ON_ANY = {
    "Switch": lambda where, a, b: a if where else b,
    "LT": lambda a, b: a < b,
    "GT": lambda a, b: a > b,
    "LE": lambda a, b: a <= b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NEQ": lambda a, b: a != b,
    "AND": lambda *a: all(a),
    "OR": lambda *a: any(a),
    "Invert": lambda a: not a,
    "IsInf": lambda a: bool(mp.isinf(a)),
    "IsNan": lambda a: bool(mp.isnan(a)),
    "Identity": lambda a: a,
    "Cast": lambda a: a,
    "Second": lambda a, b: b,
}
"""Those that are not NaN wherever an argument is."""
_REDUCED = {"Sum": np.add, "Max": np.maximum, "All": np.logical_and, "Any": np.logical_or, "Prod": np.multiply}
_PASSED = {"CheckParameterValue", "CheckAndRaise", "Assert", "ViewOp", "SpecifyShape", "TensorFromScalar"}
_PASSED |= {"ScalarFromTensor"}


def exact_value(graph, given):
    """Value of a graph, an array of mpmath numbers, from those of its inputs."""
    nodes, constants = _steps(tuple(given), graph)
    values = constants | given
    with mp.workdps(DIGITS):
        for node in nodes:
            found = np.asarray(_applied(node, [values.get(v) for v in node.inputs]), dtype=object)
            values |= dict.fromkeys(node.outputs, found)
        return values[graph]


@lru_cache(maxsize=64)
def _steps(inputs, graph):
    """Nodes of a graph in their order, and its constants."""
    nodes = io_toposort(list(inputs), [graph])
    return nodes, {v: _constant(v.data) for node in nodes for v in node.inputs if isinstance(v, Constant)}


def _constant(data):
    numeric = data is not None and np.asarray(data).dtype.kind in "fiub"
    return np.frompyfunc(number, 1, 1)(np.asarray(data)) if numeric else data


def _applied(node, inputs):
    op, name = node.op, type(node.op).__name__
    if isinstance(op, Elemwise):
        return _elementwise(type(op.scalar_op).__name__, inputs)
    if isinstance(op, DimShuffle):
        x, order = np.asarray(inputs[0], dtype=object), op.new_order
        kept = [k for k in order if k != "x"]
        x = x.transpose(kept + [k for k in range(x.ndim) if k not in kept])
        sides = iter(x.shape)
        return x.reshape([1 if k == "x" else next(sides) for k in order])
    if isinstance(op, CAReduce):
        x = np.asarray(inputs[0], dtype=object)
        axes = tuple(range(x.ndim)) if op.axis is None else tuple(op.axis)
        return _REDUCED[name].reduce(x, axis=axes)
    if isinstance(op, RandomVariable | SymbolicRandomVariable):
        # Only its shape is asked for: the size, or that of its parameters.
        numbers = [x for x in inputs if isinstance(x, np.ndarray)]
        sized = isinstance(op, RandomVariable) and isinstance(inputs[1], np.ndarray)
        return np.zeros([int(k) for k in inputs[1]]) if sized else sum(numbers, mp.mpf(0))
    if name in ("AllocEmpty", "Alloc"):
        shape = [int(np.asarray(x).item()) for x in inputs[name == "Alloc" :]]
        return np.broadcast_to(inputs[0] if name == "Alloc" else np.zeros(()), shape)
    if isinstance(op, OpFromGraph):
        return exact_value(op.inner_outputs[0], dict(zip(op.inner_inputs, inputs)))
    if name == "Reshape":
        return np.reshape(inputs[0], [int(k) for k in np.asarray(inputs[1])])
    if name in _PASSED:
        return inputs[0]
    if name == "Join":
        axis = getattr(op, "axis", None)
        return np.concatenate(inputs, axis) if axis is not None else np.concatenate(inputs[1:], int(inputs[0]))
    if name == "MakeVector":
        return [np.asarray(x, dtype=object).item() for x in inputs]
    if name == "ARange":
        return np.frompyfunc(number, 1, 1)(np.arange(*(int(np.asarray(x).item()) for x in inputs)))
    if name in ("Shape_i", "Shape"):
        shape = np.shape(inputs[0])
        return shape[op.i] if name == "Shape_i" else shape
    if name == "Subtensor":
        where = indices_from_subtensor([int(np.asarray(x).item()) for x in inputs[1:]], op.idx_list)
        return np.asarray(inputs[0], dtype=object)[tuple(where)]
    if name == "AdvancedSubtensor":
        where = [x if x is None or isinstance(x, slice) else np.asarray(x).astype(int) for x in inputs[1:]]
        return np.asarray(inputs[0], dtype=object)[tuple(where)]
    raise NotImplementedError(name)


def _elementwise(name, inputs):
    if name in _ON_ANY:
        return np.frompyfunc(_ON_ANY[name], len(inputs), 1)(*inputs)

    def known(*arguments):
        bad = any(isinstance(a, mp.mpf) and mp.isnan(a) for a in arguments)
        return mp.nan if bad else _FUNCTIONS[name](*arguments)

    return np.frompyfunc(known, len(inputs), 1)(*inputs)
