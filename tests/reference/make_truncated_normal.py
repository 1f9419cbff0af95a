"""Write truncated_normal.csv: mass and moments of N(-k, 1) on x > 0, and their derivatives in k, to 17 digits.

    python tests/reference/make_truncated_normal.py

Needs mpmath. Closed forms in erfc at 700 digits, derivatives as their central differences with a step of 1e-100; so
many digits, because the derivatives reach 1e-320 where the values are of order one.
"""

import csv
from pathlib import Path

import mpmath as mp

SIZES = (1e-8, 1e-3, 0.1, 0.5, 1.0, 1.7, 2.5, 3.3, 3.999, 4.0, 4.9, 5.0, 5.1, 6.5, 8.0, 10.0, 14.2, 20.0, 26.5, 30.1,
         37.0, 38.4, 1e2, 1e8)  # fmt: skip
FURTHER = (0.0, 50.0, 199.9, 200.1, 1e3, 3e4, 1e5, 1e6, 1e7, -8.3, -22.7, -35.5, -40.0, -1e3)
OUTPUTS = ("log_mass", "hazard", "truncated_mean", "truncated_variance")


def moments(k: mp.mpf) -> tuple[mp.mpf, mp.mpf, mp.mpf, mp.mpf]:
    mass = mp.erfc(k / mp.sqrt(2)) / 2
    hazard = mp.exp(-k * k / 2) / mp.sqrt(2 * mp.pi) / mass
    log_mass = mp.log(mass) if k > 0 else mp.log1p(-mp.erfc(-k / mp.sqrt(2)) / 2)
    return log_mass, hazard, hazard - k, 1 - hazard * (hazard - k)


def main() -> None:
    mp.mp.dps = 700
    step = mp.mpf(10) ** -100
    with Path(__file__).with_name("truncated_normal.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["k", *OUTPUTS, *(f"d_{name}" for name in OUTPUTS)])
        for k in sorted((*SIZES, *(-size for size in SIZES), *FURTHER)):
            values = moments(mp.mpf(k))
            above, below = moments(k + step), moments(k - step)
            derivatives = [(u - v) / (2 * step) for u, v in zip(above, below, strict=True)]
            writer.writerow([repr(k), *(repr(float(v)) for v in (*values, *derivatives))])


if __name__ == "__main__":
    main()
