"""Scalar Ops as expressions that are the same in C and in Python.

Comparisons are wrapped as ``truth(...)``, and converted to doubles by ``number(...)``. With these, ``select``,
``maximum`` and ``minimum`` there are no branches, so that loops become vector instructions. ``functions.c`` and
``functions_numba.py`` have these functions.
"""

from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.scalar.basic import Abs, Exp, Log1p, Neg, Pow

__all__ = ["constant", "expression"]


def _infix(sign: str) -> Callable[..., str]:
    return lambda *arguments: f" {sign} ".join(arguments)


_COMPARED = {"EQ": "==", "GE": ">=", "GT": ">", "LE": "<=", "LT": "<", "NEQ": "!="}
_TEXTS: dict[str, Callable[..., str]] = {
    "Abs": "fabs({})".format,
    "Add": _infix("+"),
    "AND": _infix("&"),
    "Exp": "exp({})".format,
    "Expm1": "expm1({})".format,
    "GammaLn": "log_gamma({})".format,
    "Identity": "{}".format,
    "IsInf": "truth(fabs({}) == INFINITY)".format,
    "IsNan": "truth({0} != {0})".format,
    "Log": "log({})".format,
    "Log1mexp": "log1mexp({})".format,
    "Log1p": "log1p({})".format,
    "Maximum": "maximum({}, {})".format,
    "Minimum": "minimum({}, {})".format,
    "Mul": _infix("*"),
    "Neg": "-{}".format,
    "OR": _infix("|"),
    "Pow": "exp({1} * log({0}))".format,
    "Psi": "digamma({})".format,
    "Reciprocal": "1.0 / {}".format,
    "ScalarMaximum": "maximum({}, {})".format,
    "ScalarMinimum": "minimum({}, {})".format,
    "Sqr": "{0} * {0}".format,
    "Sqrt": "sqrt({})".format,
    "Sub": _infix("-"),
    "Switch": "select({}, {}, {})".format,
    "TrueDiv": _infix("/"),
} | {name: f"truth({{}} {sign} {{}})".format for name, sign in _COMPARED.items()}
_OF_TRUTHS = {"AND", "OR"}


def _is_negative_exponential(v: Any) -> bool:
    """Whether a variable is ``exp(-|x|)``."""
    for kind in (Exp, Neg, Abs):
        if v.owner is None or not isinstance(v.owner.op, kind):
            return False
        (v,) = v.owner.inputs
    return True


def expression(node: Apply, of: Callable[[Any], str]) -> str | None:
    """Return the expression of a node of doubles and truth values; None where C and Numba need the Op's own code.

    Parameters
    ----------
    node : Apply
    of : callable
        Function from a variable to its name.
    """
    name, out = type(node.op).__name__, node.outputs[0].dtype
    if isinstance(node.op, Log1p) and _is_negative_exponential(node.inputs[0]):
        return f"log1p_unit({of(node.inputs[0])})"
    if isinstance(node.op, Pow) and isinstance(node.inputs[1], Constant):
        return None  # A whole power of a negative number has no logarithm.
    if any(v.dtype not in ("float64", "bool") and not isinstance(v, Constant) for v in node.inputs):
        return None
    if name == "Cast" and out == "float64":
        return _number(node.inputs[0], of)
    if out not in ("float64", "bool") or name not in _TEXTS:
        return None
    if name in _OF_TRUTHS:
        return _TEXTS[name](*map(of, node.inputs)) if all(v.dtype == "bool" for v in node.inputs) else None
    first = [of(node.inputs[0])] if name == "Switch" else []
    if name == "Switch" and node.inputs[0].dtype != "bool":
        return None
    if out == "bool" and name in ("Switch", "Identity"):
        return None
    return _TEXTS[name](*first, *(_number(v, of) for v in node.inputs[len(first) :]))


def _number(v: Any, of: Callable[[Any], str]) -> str:
    return f"number({of(v)})" if v.dtype == "bool" else of(v)


def constant(v: Constant) -> str:
    """Return the expression of a constant; a truth value is a comparison of two numbers."""
    if v.dtype == "bool":
        return f"truth({float(v.data)} != 0.0)"
    return f"({float(v.data)!r})".replace("inf", "INFINITY").replace("nan", "NAN")
