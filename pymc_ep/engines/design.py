"""Designs of points that integrate a nearly normal density in standardised coordinates z."""

import itertools

import numpy as np

__all__ = ["RADIUS", "composite_design", "composite_weights"]

RADIUS = 1.1
"""Radius of the composite design's sphere in units of sqrt(p), above 1 for the centre to have a positive weight
(Rue, Martino and Chopin 2009, section 6.5)."""


def composite_design(p: int) -> np.ndarray:
    """Return the points of a central composite design but its centre, (m, p), on a sphere of radius RADIUS sqrt(p).

    A two-level factorial with all main effects and interactions of two factors apart (resolution V), and two points on
    each axis (Box and Wilson 1951; Sanchez and Sanchez 2005). Column j of the factorial is (-1) to the number of bits
    that the row's number shares with an integer c_j. Effects are apart where no four or fewer of the c_j have an
    exclusive or of zero, so that c_j is the next integer that is not that of up to three before it.
    """
    columns: list[int] = []
    taken = {0}
    for _ in range(p):
        columns.append(next(c for c in itertools.count(1) if c not in taken))
        sums = [a ^ b ^ c for a, b, c in itertools.combinations_with_replacement([0, *columns], 3)]
        taken = set(sums)
    rows = np.arange(2 ** columns[-1].bit_length())
    bits = np.bitwise_count(rows[:, None] & np.array(columns))
    factorial = np.where(bits % 2, -1.0, 1.0)
    axial = np.sqrt(p) * np.concatenate([np.eye(p), -np.eye(p)])
    return RADIUS * np.concatenate([factorial, axial])


def composite_weights(points: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the weights of centre and points, (m,), against a density divided by its value at the centre.

    They integrate the constant and the squares under the standard normal exactly: mass f^-2 on the sphere, f the
    `RADIUS`, gives each coordinate the variance 1, the rest of the mass is the centre's, and exp(p f^2 / 2) undoes the
    normal density on the sphere.
    """
    m, p = points.shape
    mass = RADIUS**-2.0
    return 1.0 - mass, np.full(m, mass / m * np.exp(0.5 * p * RADIUS**2))
