"""A Composite of scalar Ops as one straight Numba function of branch-free parts."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key
from pytensor.scalar.basic import Abs, Composite, Exp, Log1p, Neg, Pow

from pymc_ep.sites.generated import functions_numba
from pymc_ep.sites.generated.functions_numba import FUNCTIONS, jit

__all__ = ["NoBodyError", "Printed", "printed"]


class NoBodyError(Exception):
    """A scalar Op has no Numba function that can be cached; the argument is its name."""


class Printed(NamedTuple):
    """A compiled function, and the key of all that it is made of."""

    function: Callable[..., Any]
    key: str


def _infix(sign: str) -> Callable[..., str]:
    return lambda *arguments: f" {sign} ".join(arguments)


def _maximum(x: str, y: str) -> str:
    # NaN in either gives NaN.
    return f"{x} if ({x} >= {y}) | ({x} != {x}) else {y}"


def _minimum(x: str, y: str) -> str:
    return f"{x} if ({x} <= {y}) | ({x} != {x}) else {y}"


_TEXTS: dict[str, Callable[..., str]] = {
    "Abs": "abs({})".format,
    "Add": _infix("+"),
    "EQ": _infix("=="),
    "Exp": "exp({})".format,
    "Expm1": "expm1({})".format,
    "GE": _infix(">="),
    "GT": _infix(">"),
    "Identity": "{}".format,
    "IsInf": "abs({}) == np.inf".format,
    "IsNan": "{0} != {0}".format,
    "LE": _infix("<="),
    "LT": _infix("<"),
    "Log": "log({})".format,
    "Log1mexp": "log1mexp({})".format,
    "Log1p": "log1p({})".format,
    "Maximum": _maximum,
    "Minimum": _minimum,
    "Mul": _infix("*"),
    "NEQ": _infix("!="),
    "Neg": "-{}".format,
    "Pow": "exp({1} * log({0}))".format,
    "Reciprocal": "1.0 / {}".format,
    "ScalarMaximum": _maximum,
    "ScalarMinimum": _minimum,
    "Sqr": "{0} * {0}".format,
    "Sqrt": "np.sqrt({})".format,
    "Sub": _infix("-"),
    "Switch": "{1} if {0} else {2}".format,
    "TrueDiv": _infix("/"),
}
"""Texts of Ops of doubles and bools; all others are called as PyTensor compiles them."""


def _is_negative_exponential(v: Any) -> bool:
    """Whether a variable is ``exp(-|x|)``."""
    for kind in (Exp, Neg, Abs):
        if v.owner is None or not isinstance(v.owner.op, kind):
            return False
        (v,) = v.owner.inputs
    return True


def _text(node: Apply) -> Callable[..., str] | None:
    if isinstance(node.op, Log1p) and _is_negative_exponential(node.inputs[0]):
        return "log1p_unit({})".format
    if isinstance(node.op, Pow) and isinstance(node.inputs[1], Constant):
        return None  # A whole power of a negative number has no logarithm.
    kinds = {v.dtype for v in (*node.inputs, *node.outputs)}
    whole = all(
        isinstance(v, Constant) and float(v.data).is_integer() for v in node.inputs if v.dtype.startswith("int")
    )
    if kinds <= {"float64", "bool", "int8", "float32"} and whole and node.outputs[0].dtype in ("float64", "bool"):
        name = type(node.op).__name__
        if name in ("AND", "OR") and kinds == {"bool"}:
            return _infix({"AND": "&", "OR": "|"}[name])
        if name == "Cast" and node.outputs[0].dtype == "float64":
            return "np.float64({})".format
        if "float32" not in {v.dtype for v in node.inputs if not isinstance(v, Constant)}:
            return _TEXTS.get(name)
    return None


def printed(composite: Composite | None, name: str, arguments: int) -> Printed:
    """Compile a Composite as ``name(*first, rest)``, which returns a tuple.

    Parameters
    ----------
    composite : Composite, optional
        None for a function that returns an empty tuple.
    name : str
    arguments : int
        Number of leading arguments; the others are the entries of the last one.

    Raises
    ------
    NoBodyError
        If an Op has no function in Numba.
    """
    inputs = [] if composite is None else list(composite.fgraph.inputs)
    names = {v: f"x{k}" if k < arguments else f"rest[{k - arguments}]" for k, v in enumerate(inputs)}
    lines = [f"def {name}({', '.join(f'x{k}' for k in range(arguments))}, rest):"]
    env: dict[str, Any] = {"np": np, **FUNCTIONS}
    keys = [Path(functions_numba.__file__).read_text()]

    def of(v: Any) -> str:
        return names[v] if v in names else _constant(v)

    nodes: Sequence[Apply] = [] if composite is None else composite.fgraph.toposort()
    for k, node in enumerate(nodes):
        outputs = [f"v{k}_{j}" for j in range(len(node.outputs))]
        names.update(zip(node.outputs, outputs))
        text = _text(node)
        if text is None:
            env[f"op{k}"], key = numba_funcify_and_cache_key(node.op, node=node)
            if key is None:
                raise NoBodyError(type(node.op).__name__)
            keys.append(f"{key}{node.inputs}")
            value = f"op{k}({', '.join(map(of, node.inputs))})"
        else:
            value = text(*map(of, node.inputs))
        lines.append(f"    {', '.join(outputs)} = {value}")
    results = [] if composite is None else composite.fgraph.outputs
    lines.append(f"    return ({''.join(f'{of(v)}, ' for v in results)})")
    source = "\n".join(lines)
    function = jit(compile_numba_function_src(source, name, env))
    return Printed(function, sha256("".join([source, *keys]).encode()).hexdigest())


def _constant(v: Constant) -> str:
    if v.dtype == "bool":
        return str(bool(v.data))
    return f"({float(v.data)!r})".replace("inf", "np.inf").replace("nan", "np.nan")
