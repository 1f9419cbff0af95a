"""The compat layer does on this stack what its callers rely on."""

import io
from contextlib import redirect_stderr

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from pymc_ep import compat


def test_container_is_what_pymc_returns():
    with pm.Model():
        pm.Normal("x")
        prior = pm.sample_prior_predictive(2, random_seed=0)
    container = compat.make_container({"posterior": xr.Dataset({"x": ("draw", np.zeros(2))})})
    assert type(container) is type(prior)
    assert compat.group_names(container) == ("posterior",)
    assert compat.has_group(container, "posterior") and not compat.has_group(container, "fit")
    assert isinstance(compat.group(container, "posterior"), xr.Dataset)


def test_scalars_stay_scalars_and_dims_are_named_after_the_variable():
    dataset = compat.to_dataset(
        {"a": np.float64(2.0), "b": np.zeros((3, 2)), "c": np.zeros(3)}, coords={"k": list("uvw")}, dims={"c": ["k"]}
    )
    assert dataset["a"].dims == ()
    assert dataset["b"].dims == ("b_dim_0", "b_dim_1")
    assert dataset["c"].dims == ("k",) and dataset["k"].values.tolist() == ["u", "v", "w"]


def test_random_draw_returns_the_next_generator():
    rng = pytensor.shared(np.random.default_rng(0))
    next_rng, draws = compat.random_draw(pt.random.poisson, 3.0, size=(4,), rng=rng)
    assert next_rng.type == rng.type and draws.type.shape == (4,)
    draw = pytensor.function([], draws, updates={rng: next_rng}, mode=compat.c_mode())
    assert not all(np.array_equal(draw(), draw()) for _ in range(5))


def test_c_mode_compiles_to_c():
    x = pt.dvector("x")
    function = pytensor.function([x], pt.exp(x), mode=compat.c_mode())
    assert "VMLinker" in type(function.maker.linker).__name__
    assert function.maker.linker.c_thunks is not False


def test_progress_shows_phase_count_time_objective_and_change():
    with redirect_stderr(io.StringIO()) as shown, compat.progress("EP", elapsed=61.0) as show:
        show("integrating", 17, 120, -12.5, 1e-3)
    for part in ("EP, integrating", "17/120", "0:01:01", "objective -12.5", "change 0.001"):
        assert part in shown.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_progress_keeps_its_bar_in_narrow_terminals_without_glyphs(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with redirect_stderr(stream), compat.progress("PAIRED_VB", elapsed=61.0) as show:
        show("integrating over the hyperparameters", 60, 120, -1234.56789, 1.2e-10)
    stream.flush()
    line = stream.buffer.getvalue().decode("ascii").strip().split("\r")[-1]
    bar, _, rest = line.partition(" 60/120 0:01:01")
    assert "integrating" in bar and bar.count("-") >= 4 and len(line) <= width
    assert ("change 1.2e-10" in rest) == (width >= 100)
    assert ("hyperparameters" in line) == (width >= 80)
