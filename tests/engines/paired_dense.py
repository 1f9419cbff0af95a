"""Dense reference of variational Bayes for paired symbols: every cell of the count matrix is visited.

Written from the model alone: the bound is a function of all factors, of xi in each cell, and of nothing else.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import digamma, gammaln


def lam(xi):
    return np.tanh(xi / 2) / (4 * xi)


@dataclass
class Dense:
    """Factors as plain arrays; `counts` is (I, J). Priors: standard normal but for `tau`, a number or a Gamma pair."""

    counts: np.ndarray
    censored: float
    u: np.ndarray
    u_var: np.ndarray
    v: np.ndarray
    v_var: np.ndarray
    b: np.ndarray
    b_var: np.ndarray
    c: np.ndarray
    c_var: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    s: np.ndarray
    t: np.ndarray
    xi: np.ndarray
    star: float = 1.0
    tau: float = 1.0
    gamma: tuple = ()
    gamma_prior: tuple = ()
    concentration: float = 1.0
    lines: list = field(default_factory=list)

    @property
    def seen(self):
        return self.counts > 0

    def mean(self):
        return self.u @ self.v.T + self.b[:, None] + self.c

    def square(self):
        spread = np.zeros_like(self.counts)
        for k in range(self.u.shape[1]):
            uu, vv = self.u[:, k] ** 2 + self.u_var[:, k], self.v[:, k] ** 2 + self.v_var[:, k]
            spread += np.outer(uu, vv) - np.outer(self.u[:, k] ** 2, self.v[:, k] ** 2)
        return self.mean() ** 2 + spread + self.b_var[:, None] + self.c_var

    def each_xi(self):
        return np.where(self.seen, self.xi, self.star)

    def base(self):
        xi = self.each_xi()
        return -np.log1p(np.exp(-xi)) - xi / 2 - lam(xi) * (self.square() - xi**2)

    def expected_tau(self):
        return self.gamma[0] / self.gamma[1] if self.gamma else self.tau

    def bound(self):
        base, mean, n = self.base(), self.mean(), self.censored
        log_pi = digamma(self.alpha) - digamma(self.alpha.sum())
        log_psi = digamma(self.beta) - digamma(self.beta.sum())
        total = (self.counts * (base + mean / 2)).sum() + n * (np.outer(self.s, self.t) * (base - mean / 2)).sum()
        total += (self.counts.sum(axis=1) + n * self.s) @ log_pi + (self.counts.sum(axis=0) + n * self.t) @ log_psi
        total -= n * (self.s @ np.log(self.s) + self.t @ np.log(self.t))
        for own, log_p in ((self.alpha, log_pi), (self.beta, log_psi)):
            a0 = np.full(len(own), self.concentration)
            log_q = gammaln(own.sum()) - gammaln(own).sum() + (own - 1) @ log_p
            total += gammaln(a0.sum()) - gammaln(a0).sum() + (a0 - 1) @ log_p - log_q
        log_tau = digamma(self.gamma[0]) - np.log(self.gamma[1]) if self.gamma else np.log(self.tau)
        for m, var, scaled in (
            (self.u, self.u_var, True),
            (self.v, self.v_var, True),
            (self.b, self.b_var, False),
            (self.c, self.c_var, False),
        ):
            tau, log = (self.expected_tau(), log_tau) if scaled else (1.0, 0.0)
            total += (0.5 * (log - np.log(2 * np.pi)) - 0.5 * tau * (m**2 + var)).sum()
            total += 0.5 * np.log(2 * np.pi * np.e * var).sum()
        if self.gamma:
            (a, r), (a0, r0) = self.gamma, self.gamma_prior
            total += a0 * np.log(r0) - gammaln(a0) + (a0 - 1) * log_tau - r0 * a / r
            total += a - np.log(r) + gammaln(a) + (1 - a) * digamma(a)
        return total

    def done(self, line):
        self.lines.append((line, self.bound()))

    def update_xi(self):
        self.xi = np.sqrt(self.square())
        self.done("xi")

    def update_star(self):
        weights = np.outer(self.s, self.t) * ~self.seen
        self.star = np.sqrt((weights * self.square()).sum() / weights.sum())
        self.done("xi*")

    def update_popularity(self, side):
        n, terms = self.censored, self.base() - self.mean() / 2
        if side == "user":
            counts, own, omega = self.counts.sum(axis=1), self.s, terms @ self.t
        else:
            counts, own, omega = self.counts.sum(axis=0), self.t, terms.T @ self.s
        a = self.concentration + counts + n * own
        self._store(side, a, own)
        logits = digamma(a) - digamma(a.sum()) + omega
        own = np.exp(logits - logits.max())
        own /= own.sum()
        self._store(side, a, own)
        self._store(side, self.concentration + counts + n * own, own)

    def _store(self, side, a, own):
        if side == "user":
            self.alpha, self.s = a, own
        else:
            self.beta, self.t = a, own
        self.done(f"popularity of the {side}")

    def update_rows(self, side, sequential):
        """All rows of a side: the bound is quadratic in a bias, and in the factors of a row."""
        flipped = side == "item"
        counts = self.counts.T if flipped else self.counts
        own, own_var, bias, bias_var = (
            (self.v, self.v_var, self.c, self.c_var) if flipped else (self.u, self.u_var, self.b, self.b_var)
        )
        other, other_var, other_bias = (self.u, self.u_var, self.b) if flipped else (self.v, self.v_var, self.c)
        weights = np.outer(self.t, self.s) if flipped else np.outer(self.s, self.t)
        self.update_xi()
        curve = lam(self.each_xi().T if flipped else self.each_xi())
        for i in range(len(own)):
            n = counts[i] + self.censored * weights[i]
            half = 0.5 * (counts[i] - self.censored * weights[i])
            w = 2 * curve[i] * n
            rho = w.sum() + 1.0
            bias[i] = (half - w * (other @ own[i] + other_bias)).sum() / rho
            bias_var[i] = 1 / rho
            self.done(f"bias of the {side}")
            outer = sum(
                w[j] * (np.outer(other[j], other[j]) + np.diag(other_var[j])) for j in range(len(other))
            ) + self.expected_tau() * np.eye(own.shape[1])
            shift = (half - w * (bias[i] + other_bias)) @ other
            if sequential:
                for k in range(own.shape[1]):
                    own[i, k] = (shift[k] - outer[k] @ own[i] + outer[k, k] * own[i, k]) / outer[k, k]
                    own_var[i, k] = 1 / outer[k, k]
                    self.done(f"factor of the {side}")
            else:
                own[i] = np.linalg.solve(outer, shift)
                own_var[i] = 1 / np.diag(outer)
                self.done(f"factors of the {side}")

    def sweep(self, sequential=False):
        self.update_xi()
        self.update_popularity("user")
        self.update_rows("user", sequential)
        self.update_xi()
        self.update_star()
        self.update_popularity("item")
        self.update_rows("item", sequential)
        if self.gamma:
            square = (self.u**2 + self.u_var).sum() + (self.v**2 + self.v_var).sum()
            n = self.u.size + self.v.size
            self.gamma = self.gamma_prior[0] + n / 2, self.gamma_prior[1] + square / 2
            self.done("precision")
        self.update_xi()
        self.update_star()
