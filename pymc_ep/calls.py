"""Helpers of the functions that fit a model: checks of arguments, starting values, cost, progress bar, warnings."""

import html
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.contracts.cost import Cost, in_words
from pymc_ep.contracts.form import CompiledForm
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import RandomSeed, Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.progress import LONG
from pymc_ep.exceptions import ConvergenceWarning, UnsupportedModelError, did_you_mean
from pymc_ep.forms import entry_of
from pymc_ep.graphs.hyperparameters import initial_values
from pymc_ep.graphs.identity import definitions, hexadecimal, observations
from pymc_ep.modes import bodies_of, mode_of
from pymc_ep.numerics.backend.namespace import require_jax
from pymc_ep.numerics.memory import require_memory
from pymc_ep.results import fit_state, hyper_modes
from pymc_ep.results.row_labels import earlier_rows

__all__ = [
    "check_mode",
    "check_numbers",
    "check_options",
    "check_sample_kwargs",
    "check_seed",
    "chosen_hyper",
    "cost_line",
    "cost_of",
    "foresee",
    "hyper_start",
    "identity",
    "on_device",
    "printed",
    "require_room",
    "warn_unless_converged",
]

_log = logging.getLogger(__name__)

_DEVICES = ("cpu", "gpu", "tpu")
"""Kinds of devices of JAX."""
_LEAPFROGS = 8
"""Average number of evaluations of the evidence that NUTS makes for a draw or a step of tuning."""
_TUNE, _MOST_CORES = 1000, 4
"""Defaults of `pymc.sample`: number of steps of tuning, and largest number of processes."""
_SOFTWARE = "pymc_ep", "pymc", "pytensor", "numpy", "scipy"
"""Packages that compute a fit."""
_PLAIN = bool, int, float, str, list, tuple, dict, np.generic, np.ndarray
"""Types of options that are plain values. Options of other types are connections to machines."""


def check_numbers(draws: int | None, chains: int, random_seed: RandomSeed, log_likelihood: bool) -> None:
    """Raise for invalid numbers of draws or chains, for invalid seeds, and for log likelihoods of no draws."""
    if draws is not None and (not isinstance(draws, int | np.integer) or draws < 0):
        raise ValueError(f"draws={draws!r} must be a whole number of at least 0, or None.")
    if not isinstance(chains, int | np.integer) or chains < 1:
        raise ValueError(f"chains={chains!r} must be a whole number of at least 1.")
    if log_likelihood and draws == 0:
        raise ValueError(
            "log_likelihood=True asks for densities of draws, and draws=0 for none; give draws= or leave it."
        )
    check_seed(random_seed)


def check_seed(random_seed: RandomSeed) -> None:
    """Raise for an invalid seed, before the fit whose draws it seeds."""
    try:
        np.random.default_rng(random_seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"random_seed={random_seed!r} must be None, a whole number of at least 0, a sequence of these, or a "
            f"numpy.random.Generator."
        ) from error


def check_options(method: Method, hyper: str, options: dict[str, Any], arguments: Iterable[str] = ()) -> None:
    """Raise for a treatment of the hyperparameters or an option that a method does not have.

    `arguments` are the other arguments of the call, suggested where a name is misspelt.
    """
    if hyper not in (offered := ("auto", *method.hyper)):
        raise ValueError(
            f"hyper={hyper!r} is not offered by method={method.name!r}; use one of {', '.join(map(repr, offered))}."
            f"{did_you_mean(hyper, offered)}"
        )
    unknown = sorted(set(options) - set(method.options))
    if unknown:
        name = unknown[0]
        where = _where_of_sampling(name) or did_you_mean(name, (*method.options, *arguments))
        raise ValueError(
            f"method={method.name!r} has no option {name!r}; its options are {', '.join(method.options)}.{where}"
        )


def _where_of_sampling(name: str) -> str:
    """Return the end of a message about an option that is an argument of `pymc.sample`; empty for other options."""
    if name == "idata_kwargs":
        return " It is an argument of pm.sample; log likelihoods are stored by log_likelihood=True."
    if name not in inspect.signature(pm.sample).parameters and name not in ("target_accept", "max_treedepth"):
        return ""
    return (
        f" It is an argument of pm.sample, for chains: leave it out, or where hyper='sample' makes these, give "
        f"sample_kwargs={{{name!r}: ...}}."
    )


def chosen_hyper(method: Method, form: CompiledForm, options: dict[str, Any], *, chains: bool) -> tuple[str, Status]:
    """Return the treatment of ``hyper="auto"`` and its reason, see `Method.choose_hyper`; raise if it is not offered.

    A model without hyperparameters has the same fit under every treatment, and gets one that is offered.
    """
    hyper, why = method.choose_hyper(form, options, chains=chains)
    if hyper not in method.hyper and form.form.hyper_names:
        raise UnsupportedModelError(
            f"hyper='auto' comes to {hyper!r}, which is not offered by method={method.name!r}; use one of "
            f"{', '.join(map(repr, method.hyper))}, or another method. Hyperparameters that are fixed "
            f"({', '.join(form.form.hyper_names)}) have the values of start={{...}}, or the initial ones."
        )
    return hyper if hyper in method.hyper else method.hyper[0], why


def on_device(
    device: str | None, compile_kwargs: dict[str, Any] | None
) -> tuple[dict[str, Any] | None, AbstractContextManager[object]]:
    """Return the keywords of compilation for a device of JAX, and a context in which JAX computes on that device.

    Raises
    ------
    ValueError
        For an unknown kind of device, and another mode than JAX.
    ImportError
        Without JAX.
    InvalidDataError
        Where there is no such device.
    """
    if device is None:
        return compile_kwargs, nullcontext()
    if device not in _DEVICES:
        raise ValueError(
            f"device={device!r} must be one of {', '.join(map(repr, _DEVICES))}.{did_you_mean(device, _DEVICES)}"
        )
    mode = mode_of(compile_kwargs)
    if mode is not None and bodies_of(mode) != "jax":
        raise ValueError(
            f"device={device!r} is one of JAX, and compile_kwargs= asks for the mode {mode!r}: leave either out."
        )
    require_jax(f"device={device!r}")
    placed = import_module("pymc_ep.numerics.backend.device_jax").placed_on(device)
    return (compile_kwargs or {}) | {"mode": mode or "JAX"}, placed


def check_mode(method: Method, compile_kwargs: dict[str, Any] | None) -> None:
    """Raise a ValueError for the mode JAX with a method that runs on NumPy alone."""
    if bodies_of(mode_of(compile_kwargs)) == "jax" and not method.jax:
        raise ValueError(
            f"compile_kwargs= or device= asks for JAX, and method={method.name!r} runs on NumPy alone: leave it out."
        )


def check_sample_kwargs(hyper: str, sample_kwargs: dict[str, Any] | None) -> None:
    """Raise for `sample_kwargs` without sampling, and for arguments that the fit sets itself."""
    if not sample_kwargs:
        return
    if hyper != "sample":
        raise ValueError(f"sample_kwargs= is for hyper='sample', and this fit has hyper={hyper!r}, without chains.")
    of_fit = sorted({"draws", "chains", "random_seed", "progressbar", "blas_cores"}.intersection(sample_kwargs))
    if of_fit:
        raise ValueError(f"sample_kwargs= has {of_fit[0]!r}, which is an argument of fit() itself: give it there.")
    fixed = sorted({"model", "initvals", "return_inferencedata", "var_names"}.intersection(sample_kwargs))
    if fixed:
        raise ValueError(f"sample_kwargs= has {fixed[0]!r}, which hyper='sample' sets; start= gives initial values.")


def cost_of(method: Method, call: Call, sampling: Mapping[str, Any]) -> Cost | None:
    """Return the cost of a call; None where its method estimates none.

    `sampling` are the arguments of `pymc.sample`. With ``hyper="sample"`` the time is the time of one fit, times the
    expected number of fits in each process, and the memory is the memory of one fit, times the number of processes.
    """
    if method.cost is None or call.hyper != "sample":
        return None if method.cost is None else method.cost(call)
    cost, chains = method.cost(replace(call, hyper="fixed")), sampling["chains"]
    # PyMC takes half of the logical processors.
    cores = min(chains, sampling.get("cores") or min(_MOST_CORES, max(1, (os.cpu_count() or 1) // 2)))
    fits = _LEAPFROGS * chains * (sampling["draws"] + sampling.get("tune", _TUNE))
    return cost._replace(
        memory=cores * cost.memory,
        seconds=fits * cost.seconds / cores,
        arrays=cost.arrays if cores == 1 else f"{cost.arrays} in each of {cores} processes",
        steps=f"some {fits} fits, one for each step of NUTS",
        quicker="hyper='optimize' makes some dozens.",
    )


def require_room(cost: Cost | None) -> None:
    """Raise `InvalidDataError` for a fit that exceeds the free memory."""
    if cost is not None:
        require_memory(cost.memory, cost.what, cost.arrays, cost.cure, on_jax=cost.on_jax)


def cost_line(cost: Cost | None) -> str:
    """Return memory and time of a fit in words, for a long fit also its steps and a quicker way; empty for None."""
    if cost is None:
        return ""
    return cost.sentence if cost.seconds <= LONG else f"{cost.sentence}: {cost.steps}. {cost.quicker or cost.cure}"


def foresee(cost: Cost | None) -> None:
    """Refuse a fit that exceeds the free memory, and log a warning of one expected to take more than a minute.

    Raises
    ------
    InvalidDataError
        For a fit that exceeds the free memory.
    """
    require_room(cost)
    if cost is not None and cost.seconds > LONG:
        _log.warning(
            "This fit takes about %s: %s, with %s. Ctrl-C returns what was reached. %s",
            in_words(cost.seconds),
            cost.steps,
            cost.arrays,
            cost.quicker or cost.cure,
        )


class Printed(str):
    """Text that terminals show in lines, and notebooks as a table."""

    rows: tuple[tuple[str, ...], ...]
    header: bool

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines = []
        for k, row in enumerate(self.rows):
            tag = "th" if self.header and k == 0 else "td"
            cells = (f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in row)
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table>{''.join(lines)}</table>"


def printed(rows: Sequence[Sequence[str]], *, header: bool = False) -> Printed:
    """Return rows of cells as text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
    text = Printed("\n".join(lines))
    text.rows, text.header = tuple(map(tuple, rows)), header
    return text


def hyper_start(model: pm.Model, form: CompiledForm, start: Container | dict[str, Any] | None) -> np.ndarray:
    """Return the unconstrained hyperparameters to start from, (p,)."""
    if start is None:
        return form.start
    if isinstance(start, dict):
        return _theta_of(model, form, start) if start else form.start
    if (extended := entry_of(form.form).extended) is not None:
        return _extended(model, form, start, extended)
    state = fit_state(start)
    if state["theta"].shape != form.start.shape:
        raise ValueError(
            f"start= holds {state['theta'].size} unconstrained hyperparameters, but the model has "
            f"{form.start.size} ({', '.join(form.form.hyper_names)}); it is a fit of another model."
        )
    return state["theta"]


def _extended(model: pm.Model, form: CompiledForm, start: Container, extended: Callable[..., Any]) -> np.ndarray:
    """Return the unconstrained hyperparameters, (p,), from an earlier fit whose rows may differ from the model's."""
    values = {name: value.to_numpy() for name, value in hyper_modes(start).items()}
    rows = {name: earlier_rows(start, model, name) for name in values if name in model.named_vars}
    shapes = {name: value.shape for name, value in form.constrained(form.start).items()}
    if set(values) != set(shapes):
        raise ValueError(
            f"start= is a fit of the hyperparameters {', '.join(values) or 'none'}, and the model has "
            f"{', '.join(shapes) or 'none'}; give a fit of a model with the same ones, or their values as a dict."
        )
    same = {name for name, old in rows.items() if old is None or np.array_equal(old, np.arange(len(values[name])))}
    if {name: value.shape for name, value in values.items()} == shapes and len(same) == len(values):
        if list(values) == list(shapes):
            return fit_state(start)["theta"]
        return _theta_of(model, form, values)
    kept = {name: value for name, value in values.items() if name in same and value.shape == shapes[name]}
    return _theta_of(model, form, extended(form, _theta_of(model, form, kept), values, rows.get))


def _theta_of(model: pm.Model, form: CompiledForm, values: dict[str, Any]) -> np.ndarray:
    """Return the unconstrained hyperparameters, (p,), at `values`; without a value, at the model's initial one."""
    unknown = sorted(set(values) - set(form.form.hyper_names))
    if unknown:
        raise ValueError(
            f"start= gives {unknown[0]!r}, which is not a hyperparameter; these are "
            f"{', '.join(form.form.hyper_names) or 'none'}. Other variables "
            f"start where an earlier fit ended: start=idata.{did_you_mean(unknown[0], form.form.hyper_names)}"
        )
    shapes = {name: value.shape for name, value in form.constrained(form.start).items()}
    for name, value in values.items():
        if np.shape(value) != shapes[name]:
            raise ValueError(
                f"start= gives {name!r} a value of shape {np.shape(value)}, but its shape is {shapes[name]}."
            )
    overrides = {model[name]: np.asarray(value, dtype=float) for name, value in values.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        initial = initial_values(model, form.form.hyper_values, overrides, random_seed=0)
    for name, value in zip(form.form.hyper_names, initial):
        if name in values and not np.all(np.isfinite(value)):
            raise ValueError(f"start= gives {name!r} the value {values[name]}, which lies outside its support.")
    unconstrained = np.concatenate([np.zeros(0), *map(np.ravel, initial)])
    return form.from_values(unconstrained[None])[0]


def identity(
    model: pm.Model,
    form: CompiledForm,
    method: Method,
    hyper: str,
    options: Mapping[str, Any],
    start: tuple[np.ndarray, Mapping[str, np.ndarray] | None],
    compile_kwargs: dict[str, Any] | None,
) -> dict[str, str]:
    """Return strings that together determine a fit: of software, method, options, start, model and data.

    Their keys name them in messages. `start` are the hyperparameters and the state to start from. Numbers of draws and
    chains are not among the strings, as draws are made after the fit.
    """
    theta, state = start
    entries = [entry for name, values in sorted((state or {}).items()) for entry in (name, np.asarray(values))]
    # What follows from the model comes after it, since messages name few.
    out = {f"definition of {name!r}": value for name, value in definitions(model).items()}
    out |= {f"set of data of {name!r}": value for name, value in observations(model).items()}
    out |= {"method": method.name, "hyper=": hyper, "compile_kwargs=": repr(compile_kwargs)}
    out |= {f"{name}=": repr(value) for name, value in _settings(method, options).items()}
    out |= {f"version of {name}": import_module(name).__version__ for name in _SOFTWARE}
    return out | {"latent=": repr(form.form.latent_names), "start": hexadecimal(theta, *entries)}


def _settings(method: Method, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that determine the steps of a fit, without the ones for their number and for machines."""
    fixed = {name: value for name, value in (method.options | dict(options)).items() if name not in method.changeable}
    return {name: value for name, value in fixed.items() if value is None or isinstance(value, _PLAIN)}


def warn_unless_converged(method: Method, solution: Solution) -> None:
    """Warn the caller's caller of a fit that did not converge, or whose error is known to be large."""
    if not solution.converged:
        warnings.warn(f"The result of {method.name} may be off: {solution.status}.", ConvergenceWarning, stacklevel=4)
