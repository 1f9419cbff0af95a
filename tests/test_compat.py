"""The compat layer does on this stack what its callers rely on."""

import io
from contextlib import redirect_stderr

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.tensor.elemwise import Elemwise

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


def test_numpy_mode_runs_whole_arrays_by_numpy():
    x, flags = pt.dmatrix("x"), pt.bvector("flags")
    outputs = [pt.softplus(x), flags.astype("float64"), pt.clip(x, -1, 1), pt.log1mexp(-abs(x) - 1e-3)]
    outputs.append(pt.clip(x, -99, 99).astype("int64"))
    outputs.append(pt.second(x, flags))
    function = pytensor.function([x, flags], outputs, mode=compat.numpy_mode())
    by_element = [n.op for n in function.maker.fgraph.apply_nodes if isinstance(n.op, Elemwise) and not n.op.nfunc_spec]
    assert by_element == []
    values = np.array([[-800.0, -1e-3, 0.0], [1e-3, 40.0, 800.0]])
    softplus, cast, clipped, complement, whole, filled = function(values, np.array([0, 1, -3], dtype="int8"))
    np.testing.assert_allclose(softplus, np.logaddexp(0.0, values), rtol=1e-15)
    assert cast.dtype == "float64" and cast.tolist() == [0.0, 1.0, -3.0]
    np.testing.assert_array_equal(clipped, np.clip(values, -1, 1))
    assert filled.dtype == "int8" and filled.tolist() == [[0, 1, -3], [0, 1, -3]] and filled.flags.writeable
    assert whole.dtype == "int64" and whole.tolist() == [[-99, 0, 0], [0, 40, 99]]
    # log(1 - exp(-u)) at u = |x| + 0.001, by mpmath.
    expected = [
        [0.0, -6.2156079317555306315, -6.9082552373154707326],
        [-6.2156079317555306315, -4.2441080245055260315e-18, 0.0],
    ]
    np.testing.assert_allclose(complement, expected, rtol=1e-12, atol=1e-300)
