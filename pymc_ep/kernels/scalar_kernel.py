"""Elementwise kernels: bodies in Python, C, Numba and JAX behind one PyTensor scalar Op."""

import inspect
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarOp, float64

__all__ = ["ScalarKernel", "c_tables", "jit_body"]


def _five_float64(*_types: object) -> tuple[Any, ...]:
    return (float64,) * 5


def _four_float64(*_types: object) -> tuple[Any, ...]:
    return (float64,) * 4


# PyTensor pickles the function that gives the output types: it must be importable, so each number of outputs has one.
_FLOAT64 = {4: _four_float64, 5: _five_float64}


class ScalarKernel(ScalarOp):
    """A scalar function with several outputs and a body for each backend.

    Inputs of any real type are cast to float64 and all outputs are float64, since tails are lost in single precision.
    For float32 inputs the only error is thus the rounding of the inputs.

    Subclasses set `nin`, `nout`, `body`, `tables`, `c_sources`, `c_fields` and `__props__`, and define `impl`, `c_call`
    and `pullback`.
    """

    body: ModuleType
    """Module of the Python body; its FUNCTIONS lists the body and all functions that it calls, callees first."""
    tables: ClassVar[dict[str, Sequence[float] | float]]
    """Constants of the C body, by their C names."""
    c_sources: tuple[Path, ...]
    """Files of the C body, callees first."""
    c_fields: tuple[str, ...]
    """Fields of the C struct that the body returns, in the order of the outputs."""

    def __init__(self, name: str) -> None:
        super().__init__(_FLOAT64[self.nout], name=name)

    def c_call(self, arguments: list[str]) -> tuple[str, str]:
        """Return the struct type of the C body, and the C expression that calls it with `arguments`."""
        raise NotImplementedError

    def c_support_code(self, **kwargs: object) -> str:
        """Return C source text with the constants of `tables` and the bodies."""
        return c_tables(self.tables) + "\n".join(path.read_text() for path in self.c_sources)

    def c_headers(self, **kwargs: object) -> list[str]:
        """Return the headers that the bodies include."""
        return ["<math.h>"]

    def c_code(self, node: Apply, name: str, inputs: list[str], outputs: list[str], sub: dict[str, Any]) -> str:
        """Return the C statements that assign the fields of the body's struct to the outputs."""
        kind, call = self.c_call([f"(double)({argument})" for argument in inputs])
        lines = [f"const {kind} {name}_value = {call};"]
        lines += [f"{out} = {name}_value.{field};" for out, field in zip(outputs, self.c_fields, strict=True)]
        return "{ " + "\n".join(lines) + " }"

    def c_code_cache_version(self) -> tuple[int, ...]:
        """Return a checksum of the C source, so that a binary of an older text is never reused."""
        return (1, zlib.crc32(self.c_support_code().encode()))

    def numba_cache_key(self, dispatch: str) -> str:
        """Return the key of the compiled Numba body in PyTensor's cache, with a checksum of its source.

        Parameters
        ----------
        dispatch : str
            Path of the module that compiles the body.
        """
        modules = dict.fromkeys(inspect.getfile(function) for function in self.body.FUNCTIONS)
        texts = [Path(path).read_text() for path in (*modules, dispatch)]
        content = "".join([*texts, str(self.tables)])
        return f"pymc_ep.{self!r}.{zlib.crc32(content.encode())}"

    def differentiable_outputs(self, cotangents: Sequence[Any], allowed: Sequence[int], outputs: Sequence[str]) -> None:
        """Check that only outputs with an implemented derivative are differentiated.

        Parameters
        ----------
        cotangents : sequence of ScalarVariable
            One for each output; disconnected where the output is not used.
        allowed : sequence of int
            Indices of the outputs with a derivative.
        outputs : sequence of str
            Names of all outputs, for the message.

        Raises
        ------
        NotImplementedError
            If a cotangent of another output is connected.
        """
        for i, cotangent in enumerate(cotangents):
            if i not in allowed and not isinstance(cotangent.type, DisconnectedType):
                raise NotImplementedError(
                    f"{self} has no derivative of its output {outputs[i]!r}; only "
                    f"{', '.join(repr(outputs[j]) for j in allowed)} can be differentiated. Build the objective from "
                    f"those, or wrap the other output in pytensor.gradient.disconnected_grad."
                )


def c_tables(tables: dict[str, Sequence[float] | float]) -> str:
    """Return C definitions of constants, by name; 17 significant digits represent each double exactly."""
    lines = []
    for name, values in tables.items():
        # Kernels that share a table can be fused into one C function: the guard prevents a second definition.
        guard = f"#ifndef {name}_DEFINED\n#define {name}_DEFINED\n"
        if isinstance(values, Sequence):
            text = ", ".join(f"{value:.17g}" for value in values)
            lines.append(f"{guard}static const double {name}[] = {{{text}}};\n#endif\n")
        else:
            lines.append(f"{guard}static const double {name} = {values:.17g};\n#endif\n")
    return "".join(lines)


def jit_body(functions: Sequence[Callable[..., Any]], jit: Callable[[Callable[..., Any]], Any]) -> Callable[..., Any]:
    """Compile functions, each listed after its callees, with `jit`; return the last one compiled.

    Compiled functions can call only compiled ones, so each is copied into a namespace with the compiled callees. The
    Python functions are unchanged.
    """
    compiled: dict[str, Any] = {}
    for function in functions:
        namespace = {**function.__globals__, **compiled}
        compiled[function.__name__] = jit(FunctionType(function.__code__, namespace, function.__name__))
    return compiled[functions[-1].__name__]
