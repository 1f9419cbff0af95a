"""Dense reference of variational Bayes for symbols that are paired with each other: every pair is visited.

Written from the model alone. The bound is a function of all factors, of xi of each pair, and of nothing else; sums over
unordered pairs are halves of sums over ordered ones.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import digamma, gammaln

from .paired_dense import lam


@dataclass
class SymmetricDense:
    """Factors as plain arrays; `counts` is symmetric, (N, N). Standard normal priors, and a flat Dirichlet."""

    counts: np.ndarray
    censored: float
    u: np.ndarray
    u_var: np.ndarray
    b: np.ndarray
    b_var: np.ndarray
    alpha: np.ndarray
    s: np.ndarray
    xi: np.ndarray
    star: float = 1.0
    lines: list = field(default_factory=list)

    @property
    def others(self):
        return 1.0 - np.eye(len(self.s))

    def mean(self):
        return self.u @ self.u.T + self.b[:, None] + self.b

    def square(self):
        """E a^2 of pairs of different symbols."""
        uu = self.u**2 + self.u_var
        spread = uu @ uu.T - (self.u**2) @ (self.u**2).T
        return self.mean() ** 2 + spread + self.b_var[:, None] + self.b_var

    def each_xi(self):
        return np.where(self.counts > 0, self.xi, self.star)

    def base(self):
        xi = self.each_xi()
        return -np.log1p(np.exp(-xi)) - xi / 2 - lam(xi) * (self.square() - xi**2)

    def omega(self):
        """Expected bound of the log probability that a drawn pair is censored, which is zero on the diagonal."""
        return (self.base() - self.mean() / 2) * self.others

    def bound(self):
        log_pi = digamma(self.alpha) - digamma(self.alpha.sum())
        n, s = self.censored, self.s
        total = (
            0.5 * (self.counts * (np.log(2.0) + self.base() + self.mean() / 2)).sum() + self.counts.sum(axis=1) @ log_pi
        )
        total += n * (s @ self.omega() @ s + 2 * s @ log_pi - 2 * s @ np.log(s))
        log_q = gammaln(self.alpha.sum()) - gammaln(self.alpha).sum() + (self.alpha - 1) @ log_pi
        total += gammaln(len(s)) - log_q
        for m, var in ((self.u, self.u_var), (self.b, self.b_var)):
            total += (-0.5 * np.log(2 * np.pi) - 0.5 * (m**2 + var) + 0.5 * np.log(2 * np.pi * np.e * var)).sum()
        return total

    def done(self, line):
        self.lines.append((line, self.bound()))

    def update_xi(self):
        self.xi = np.sqrt(self.square())
        self.done("xi")

    def update_star(self):
        weights = np.outer(self.s, self.s) * (self.counts == 0) * self.others
        self.star = np.sqrt((weights * self.square()).sum() / weights.sum())
        self.done("xi*")

    def update_alpha(self):
        self.alpha = 1.0 + self.counts.sum(axis=1) + 2 * self.censored * self.s
        self.done("alpha")

    def update_s(self):
        log_pi = digamma(self.alpha) - digamma(self.alpha.sum())
        logits, before, step, log_s = log_pi + self.omega() @ self.s, self.bound(), 1.0, np.log(self.s)
        while True:
            found = np.exp(log_s + step * (logits - log_s))
            self.s = found / found.sum()
            if self.bound() >= before - 1e-12:
                break
            step /= 2
        self.done("s")

    def update_row(self, i, sequential):
        self.xi[i] = self.xi[:, i] = np.sqrt(self.square()[i])
        self.done("xi of the row")
        there = np.arange(len(self.s)) != i
        other, other_var, bias = self.u[there], self.u_var[there], self.b[there]
        curve = lam(self.each_xi()[i, there])
        drawn = 2 * self.censored * self.s[i] * self.s[there]
        half, w = 0.5 * (self.counts[i, there] - drawn), 2 * curve * (self.counts[i, there] + drawn)
        rho = w.sum() + 1.0
        self.b[i] = (half - w * (other @ self.u[i] + bias)).sum() / rho
        self.b_var[i] = 1 / rho
        self.done("bias")
        outer = np.eye(self.u.shape[1]) + (w[:, None] * other).T @ other + np.diag(w @ other_var)
        shift = (half - w * (self.b[i] + bias)) @ other
        if sequential:
            for k in range(len(shift)):
                self.u[i, k] = (shift[k] - outer[k] @ self.u[i] + outer[k, k] * self.u[i, k]) / outer[k, k]
                self.u_var[i, k] = 1 / outer[k, k]
                self.done("factor")
        else:
            self.u[i], self.u_var[i] = np.linalg.solve(outer, shift), 1 / np.diag(outer)
            self.done("factors")

    def sweep(self, sequential=False):
        self.update_alpha()
        self.update_s()
        self.update_alpha()
        for i in range(len(self.s)):
            self.update_row(i, sequential)
        self.update_xi()
        self.update_star()
