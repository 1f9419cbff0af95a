"""Ops of contiguous arrays of fixed types, whose bodies are functions of whole arrays in NumPy and C."""

import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.link.c.op import OpenMPOp

from pymc_ep.compat import c_mode
from pymc_ep.concurrency import compiled_function

__all__ = ["CUBE", "FLAT", "INDICES", "MATRIX", "NUMBER", "PLACES", "ArrayOp", "compiled_in_c"]

Array = tuple[str, int]
"""Type and number of dimensions of an array."""
NUMBER: Array = ("float64", 0)
FLAT: Array = ("float64", 1)
MATRIX: Array = ("float64", 2)
CUBE: Array = ("float64", 3)
PLACES: Array = ("int64", 1)
INDICES: Array = ("int32", 1)
_C_TYPES = {"int64": "npy_int64", "int32": "npy_int32", "float64": "double"}


class ArrayOp(OpenMPOp):
    """An Op of contiguous arrays, whose types and numbers of dimensions are fixed."""

    source: Path
    """File of the C bodies."""
    types: tuple[Array, ...]
    """Types and numbers of dimensions of the inputs."""
    outputs: tuple[Array, ...]
    """Types and numbers of dimensions of the outputs."""

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node for inputs, which are cast to `types`; raise TypeError for a wrong number of dimensions."""
        cast = []
        for value, (dtype, ndim) in zip(map(pt.as_tensor_variable, inputs), self.types, strict=True):
            if value.ndim != ndim:
                raise TypeError(f"{type(self).__name__} takes an input of {ndim} dimensions, and got {value.ndim}.")
            cast.append(value if value.dtype == dtype else value.astype(dtype))
        return Apply(self, cast, [pt.tensor(dtype=dtype, shape=(None,) * ndim) for dtype, ndim in self.outputs])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[Any]]) -> None:
        """Write the outputs of the NumPy body to `output_storage`."""
        for storage, value, (dtype, _) in zip(output_storage, self.evaluate(inputs), self.outputs, strict=True):
            storage[0] = np.asarray(value, dtype=dtype)

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs for `inputs`, computed by the NumPy body."""
        raise NotImplementedError

    def c_headers(self, **kwargs: object) -> list[str]:
        """Return the headers of the body and of OpenMP."""
        return ["<math.h>", "<stdlib.h>", "<string.h>", *super().c_headers(**kwargs)]

    def c_support_code(self, **kwargs: object) -> str:
        """Return the C bodies."""
        return self.source.read_text()

    def c_code_cache_version(self) -> tuple[int, ...]:
        """Return a version with a checksum of the C bodies, so that a binary of an older text is never reused."""
        return (1, zlib.crc32(self.c_support_code().encode()))

    def numba_cache_key(self, *files: str) -> str:
        """Return a key with a checksum of the Numba body, so that a binary of an older text is never reused.

        Parameters
        ----------
        *files : str
            Paths of all modules of the body.
        """
        options = "_".join(str(getattr(self, name)) for name in self.__props__)
        return f"{type(self).__name__}_{options}_{zlib.crc32(b''.join(Path(file).read_bytes() for file in files))}"

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the sizes that `c_shapes` and `c_call` refer to.

        Parameters
        ----------
        arrays, pointers : sequence of str
            C names of the inputs as NumPy arrays, and as pointers to their elements.
        """
        raise NotImplementedError

    def c_shapes(self) -> Sequence[str]:
        """Return the shape of each output as C text, such as ``n, k`` in the sizes of `c_sizes`; empty for a scalar."""
        raise NotImplementedError

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body.

        Parameters
        ----------
        inputs, outputs : sequence of str
            C names, or expressions, of pointers to the elements.
        fail : str
            C statement to run after an error.
        """
        raise NotImplementedError

    def c_code(self, node: Apply, name: str, inputs: Sequence[str], outputs: Sequence[str], sub: dict[str, str]) -> str:
        """Return C code that makes inputs contiguous, allocates outputs and runs the body."""
        fail, lines = sub["fail"], []
        held, pointers = ([f"{name}_{kind}{k}" for k in range(len(inputs))] for kind in ("", "p"))
        for value, (dtype, _), array, pointer in zip(inputs, self.types, held, pointers):
            lines.append(f"PyArrayObject *{array} = PyArray_GETCONTIGUOUS({value});")
            lines.append(f"const {_C_TYPES[dtype]} *{pointer} = (const {_C_TYPES[dtype]} *)PyArray_DATA({array});")
        lines.append(self.c_sizes(held, pointers))
        written = []
        for out, shape, (dtype, ndim) in zip(outputs, self.c_shapes(), self.outputs, strict=True):
            lines.append(f"npy_intp {out}_shape[] = {{{shape or 0}}}; Py_XDECREF({out});")
            lines.append(f"{out} = (PyArrayObject *)PyArray_EMPTY({ndim}, {out}_shape, NPY_{dtype.upper()}, 0);")
            lines.append(f"if (!{out}) {{ {fail} }}")
            written.append(f"({_C_TYPES[dtype]} *)PyArray_DATA({out})")
        lines.append(self.c_call(pointers, written, fail))
        lines += [f"Py_DECREF({held_array});" for held_array in held]
        return "{ " + "\n".join(lines) + " }"


@cache
def compiled_in_c(op: ArrayOp) -> Any:
    """Return a function of arrays that runs the C body of an Op."""
    inputs = [pt.tensor(dtype=dtype, shape=(None,) * ndim) for dtype, ndim in op.types]
    return compiled_function(inputs, op(*inputs), mode=c_mode())
