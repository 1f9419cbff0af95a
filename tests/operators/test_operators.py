"""Shapes, settings and refusals of the maps of this package; their values are tested by the contract."""

import numpy as np
import pytest
import pywt

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators import (
    Convolution2D,
    Fourier2D,
    Gradient2D,
    Hessian2D,
    LinearMap,
    Mask,
    Wavelet2D,
    as_linear_map,
    stack,
)

BLUR = np.ones((3, 3)) / 9
BAD_KERNEL = np.ones((2, 2))
BAD_KERNEL[1, 0] = np.inf


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gradient2D((1, 1)), r"shape \(1, 1\) has no differences"),
        (lambda: Hessian2D((1, 2)), r"shape \(1, 2\) has no second differences"),
        (lambda: Hessian2D((4,)), r"a tuple of 2 sides, each a positive integer; not \(4,\)"),
        (lambda: Gradient2D((4,)), r"a tuple of 2 sides, each a positive integer; not \(4,\)"),
        (lambda: Gradient2D((4, 0)), r"positive integer; not \(4, 0\)"),
        (lambda: Gradient2D((4, 2.5)), "positive integer"),
        (lambda: Gradient2D(16), "positive integer; not 16"),
        (lambda: Gradient2D((4, 4), boundary="zero"), "must be 'reflect' or 'periodic', not 'zero'"),
        (lambda: Convolution2D((4, 4), BLUR, boundary="wrap"), "'periodic', 'reflect' or 'constant', not 'wrap'"),
        (lambda: Convolution2D((2, 4), BLUR), r"of shape \(3, 3\), is larger than the image, of shape \(2, 4\)"),
        (lambda: Convolution2D((4, 4), BAD_KERNEL), r"the kernel is inf at \(1, 0\)"),
        (lambda: Convolution2D((4, 4), np.ones(3)), r"must be a matrix, not an array of shape \(3,\)"),
        (lambda: Convolution2D((4, 4), np.ones((0, 3))), "must be a matrix"),
        (lambda: Convolution2D((4, 4), "blur"), "must be an array of real numbers, not 'blur'"),
        (lambda: Convolution2D((4, 4), 1j * BLUR), "must be an array of real numbers"),
        (lambda: Wavelet2D((8, 8), "db99", 1), "no discrete wavelet 'db99'; orthonormal ones are haar, db1, ..., db38"),
        (lambda: Wavelet2D((8, 8), "bior2.2", 1), "'bior2.2' is not orthonormal; take one of haar"),
        (lambda: Wavelet2D((8, 8), "dmey", 1), "'dmey' is not orthonormal"),
        (lambda: Wavelet2D((8, 8), "morl", 1), "no discrete wavelet 'morl'"),
        (lambda: Wavelet2D((8, 12), "haar", 3), r"3 levels need .* multiples of 8, .* levels=2 is the most.*\(8, 16\)"),
        (lambda: Wavelet2D((9, 8), "haar", 1), r"no level works here, since a side is odd.*\(10, 8\)"),
        (lambda: Wavelet2D((8, 8), "haar", 0), "an integer of at least 1, not 0"),
        (lambda: Wavelet2D((8, 8), "haar", 1.5), "an integer of at least 1, not 1.5"),
        (lambda: Fourier2D((4, 4), np.ones((4, 3), dtype=bool)), r"bool of shape \(4, 4\), .* of shape \(4, 3\)"),
        (lambda: Fourier2D((4, 4), np.ones((4, 4))), "of float64 of shape .* take ifftshift"),
        (lambda: Fourier2D((4, 4), np.zeros((4, 4), dtype=bool)), "no frequency is kept"),
        (lambda: Fourier2D((4,)), "a tuple of 2 sides"),
        (lambda: Mask((4, 4), np.zeros((4, 4), dtype=bool)), "keeps no element at all"),
        (lambda: Mask((4, 4), []), "keeps no element at all"),
        (lambda: Mask((4, 4), np.ones((4, 3), dtype=bool)), r"the mask has shape \(4, 3\), the array \(4, 4\)"),
        (lambda: Mask((4, 4), [0, 16]), r"index 16 at position 1 is outside 0, ..., 15"),
        (lambda: Mask((4, 4), [-1]), "index -1 at position 0 is outside"),
        (lambda: Mask((4, 4), np.ones((4, 4))), "not an array of float64.*write mask > 0"),
        (lambda: Mask((4, 4), np.ones((4, 4), dtype=int)), "a vector of flat indices"),
        (
            lambda: Gradient2D((4, 4)) @ Gradient2D((4, 4)),
            r"takes arrays of shape \(4, 4\), the right one gives \(24,\)",
        ),
        (lambda: stack(), "no maps are given"),
        (lambda: stack(Gradient2D((4, 4)), np.eye(16)), r"argument 1 is a ndarray.*as_linear_map\(A, input_shape\)"),
        (
            lambda: stack(Gradient2D((4, 4)), Gradient2D((4, 5))),
            r"argument 1 takes arrays of shape \(4, 5\), the first",
        ),
        (lambda: Gradient2D((4, 4)).forward(np.ones(16)), r"takes arrays of shape \(4, 4\), not \(16,\)"),
        (lambda: Gradient2D((4, 4)).adjoint(np.ones((4, 4))), r"\.T takes arrays of shape \(24,\), not \(4, 4\)"),
        (lambda: Mask((1,), [0]).forward(1.0), r"takes arrays of shape \(1,\), not \(\)"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InvalidDataError, match=message):
        build()


@pytest.mark.parametrize("other", [np.eye(16), 2.0])
def test_maps_multiply_maps_only(other):
    gradient = Gradient2D((4, 4))
    with pytest.raises(TypeError):
        gradient @ other
    with pytest.raises(TypeError):
        other @ gradient


def test_layout_of_the_reflected_gradient():
    differences = Gradient2D((2, 3)).forward([[0.0, 1.0, 3.0], [10.0, 15.0, 30.0]])
    np.testing.assert_array_equal(differences, [1, 2, 5, 15, 10, 14, 27])


def test_layout_of_the_periodic_gradient():
    differences = Gradient2D((2, 3), boundary="periodic").forward([[0.0, 1.0, 3.0], [10.0, 15.0, 30.0]])
    np.testing.assert_array_equal(differences, [[[1, 2, -3], [5, 15, -20]], [[10, 14, 27], [-10, -14, -27]]])


def test_second_differences():
    """Planes have none, and a quadratic form has the same sum of squares at all angles."""
    row, column = np.mgrid[:6, :7]
    np.testing.assert_allclose(Hessian2D((6, 7)).forward(3.0 + 2.0 * row - 5.0 * column), 0.0, atol=1e-12)
    sums = []
    for angle in (0.0, np.pi / 8, np.pi / 4):
        image = 0.5 * (np.cos(angle) * row + np.sin(angle) * column) ** 2
        along, down, mixed = np.split(Hessian2D((6, 7)).forward(image), np.cumsum([6 * 5, 4 * 7]))
        sums.append(along[0] ** 2 + down[0] ** 2 + mixed[0] ** 2)
    np.testing.assert_allclose(sums, 1.0, rtol=1e-12)


@pytest.mark.parametrize("boundary", ["reflect", "periodic"])
def test_a_side_of_one_pixel_has_no_differences(boundary):
    column = Gradient2D((3, 1), boundary=boundary).forward([[1.0], [4.0], [9.0]])
    np.testing.assert_array_equal(column.ravel(), [3, 5, -8] if boundary == "periodic" else [3, 5])


def test_centre_of_an_even_kernel():
    image = np.zeros((5, 5))
    image[2, 2] = 1.0
    kernel = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(Convolution2D((5, 5), kernel).forward(image)[1:3, 1:3], kernel)


def test_kernels_are_copied():
    kernel = BLUR.copy()
    blur = Convolution2D((4, 4), kernel)
    kernel[:] = 0.0
    np.testing.assert_allclose(blur.forward(np.ones((4, 4))), 1.0)


def test_fourier_coefficients_are_those_of_numpy_with_its_noise():
    rng = np.random.default_rng(3)
    waves = Fourier2D((6, 8), rng.random((6, 8)) < 0.4)
    spectrum = np.fft.fft2(rng.standard_normal((6, 8)), norm="ortho")
    np.testing.assert_allclose(waves.of_spectrum(spectrum), waves.forward(np.fft.ifft2(spectrum, norm="ortho").real))
    noise = 0.1 * (rng.standard_normal((6, 8, 4000)) + 1j * rng.standard_normal((6, 8, 4000)))
    outputs = np.array([waves.of_spectrum(one) for one in np.moveaxis(noise, -1, 0)])
    # The standard error is 0.011 of the sd.
    np.testing.assert_allclose(outputs.std(axis=0), 0.1 * waves.weights, rtol=0.05)


@pytest.mark.parametrize(
    "linear_map",
    [
        Convolution2D((6, 8), np.arange(15.0).reshape(3, 5)),
        Convolution2D((6, 7), np.arange(8.0).reshape(4, 2)),
        Fourier2D((6, 8), np.random.default_rng(0).random((6, 8)) < 0.3),
        Mask((6, 8), [3, 40]),
    ],
    ids=["even sides", "even kernel", "frequencies", "mask"],
)
def test_functions_of_the_normal_map(linear_map):
    matrix = linear_map.matrix().toarray()
    values, vectors = np.linalg.eigh(2.5 * matrix.T @ matrix)
    x = np.random.default_rng(2).standard_normal(linear_map.input_shape)
    weights = np.full(linear_map.output_shape, 2.5)
    found = linear_map.function_of_normal(weights, lambda value: (1.0 + value) ** -0.5)(x)
    expected = (vectors / np.sqrt(1.0 + values)) @ (vectors.T @ x.ravel())
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-10)


def test_functions_of_maps_that_are_not_orthonormal_are_not_known():
    assert Gradient2D((4, 4)).function_of_normal(np.ones(24), np.sqrt) is None
    assert Mask((4, 4), [1, 1]).function_of_normal(np.ones(2), np.sqrt) is None


def test_large_kernels_have_no_matrix():
    assert Convolution2D((300, 300), np.ones((15, 15))).matrix() is None
    assert Wavelet2D((512, 512), "db8", 4).matrix() is None
    assert Fourier2D((128, 128)).matrix() is None


@pytest.mark.parametrize("scaling", [False, True])
def test_wavelet_groups_and_bands(scaling):
    shape = (12, 16)
    transform = Wavelet2D(shape, "db2", 2, scaling=scaling)
    assert transform.orthonormal and transform.rank == (192 if scaling else 180)
    np.testing.assert_array_equal(np.bincount(transform.groups), [144, 36, 12] if scaling else [144, 36])
    image = np.random.default_rng(1).standard_normal(shape)
    bands = transform.bands(transform.forward(image))
    expected = pywt.wavedec2(image, "db2", mode="periodization", level=2)[::-1]
    for ours, theirs in zip(bands, expected[: len(bands)], strict=True):
        np.testing.assert_allclose(ours, theirs if isinstance(theirs, tuple) else (theirs,), atol=1e-14)


def test_constant_images_have_no_wavelet_details():
    transform = Wavelet2D((12, 20), "sym5", 2)
    np.testing.assert_allclose(transform.forward(np.full((12, 20), 7.0)), 0.0, atol=1e-10)


def test_wavelet_objects_are_taken():
    named, given = Wavelet2D((8, 8), "db3", 2), Wavelet2D((8, 8), pywt.Wavelet("db3"), 2)
    image = np.random.default_rng(2).standard_normal((8, 8))
    np.testing.assert_array_equal(named.forward(image), given.forward(image))


def test_groups_of_stacks_go_on_counting():
    transform = Wavelet2D((4, 4), "haar", 2)
    joined = stack(Gradient2D((4, 4)), transform, transform)
    np.testing.assert_array_equal(np.bincount(joined.groups), [24, 12, 3, 12, 3])
    assert stack(Gradient2D((4, 4)), Gradient2D((4, 4))).groups is None


def test_ranks_that_are_too_large_to_find_are_not_said():
    shape = (64, 64)
    blur = Convolution2D(shape, BLUR, boundary="reflect")
    assert blur.rank is None and stack(Gradient2D(shape), blur).rank is None
    assert stack(blur, Wavelet2D(shape, "haar", 1, scaling=True)).rank == 4096
    synthesis = Wavelet2D(shape, "haar", 2, scaling=True).T
    assert (Gradient2D(shape) @ synthesis).rank == 4095
    assert (Mask(shape, np.arange(7)) @ blur).rank == 7


def test_a_class_of_the_users_needs_two_methods():
    class Doubled(LinearMap):
        def _forward(self, x):
            return 2 * x

        _adjoint = _forward

    doubled = Doubled((3,), (3,))
    np.testing.assert_array_equal((doubled @ as_linear_map(np.eye(3))).forward([1, 2, 3]), [2, 4, 6])
    assert doubled.matrix() is None and doubled.rank is None and doubled.groups is None


def test_what_is_made_of_maps_with_few_entries_has_few():
    """And what has a wavelet in it may have many."""
    shape = (8, 8)
    gradient, wavelet = Gradient2D(shape), Wavelet2D(shape, "haar", 2)
    blur = Convolution2D(shape, np.full((3, 3), 1 / 9))
    for few in (gradient, gradient @ blur, stack(blur, Mask(shape, np.eye(8) > 0)), gradient.T):
        assert few.few_entries
    for many in (wavelet, wavelet.T, wavelet @ blur, stack(gradient, wavelet)):
        assert not many.few_entries


@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize(
    ("shape", "wavelet", "levels"), [((16, 16), "haar", 4), ((32, 16), "db2", 3), ((8, 4), "db4", 2)]
)
@pytest.mark.parametrize("shift", [(0, 0), (1, -2)])
def test_squares_of_wavelets(shape, wavelet, levels, scaling, shift):
    """Also where filters wrap around the image more than once, and of a part of the coefficients."""
    operator = Wavelet2D(shape, wavelet, levels, scaling=scaling, shift=shift)
    squares, values = operator.matrix().toarray() ** 2, np.random.default_rng(0).normal(size=operator.output_shape)
    np.testing.assert_allclose(operator.squared_adjoint(values).ravel(), squares.T @ values, atol=1e-14)
    picked = np.arange(0, len(values), 3)
    some = Mask(operator.output_shape, picked) @ operator
    np.testing.assert_allclose(
        some.squared_adjoint(values[picked]).ravel(), squares[picked].T @ values[picked], atol=1e-14
    )


def test_squares_where_there_is_no_quick_way():
    assert Gradient2D((4, 4)).squared_adjoint(np.ones(24)) is None
    assert (Gradient2D((4, 4)) @ Convolution2D((4, 4), BLUR)).squared_adjoint(np.ones(24)) is None
    np.testing.assert_allclose(Mask((3,), [2, 0, 2]).squared_adjoint(np.array([1.0, 2.0, 4.0])), [2.0, 0.0, 5.0])


def test_variances_for_squares_have_the_shape_of_the_output():
    with pytest.raises(InvalidDataError, match=r"takes arrays of shape \(48,\), not \(4, 12\)"):
        Wavelet2D((8, 8), "haar", 1).squared_adjoint(np.ones((4, 12)))
