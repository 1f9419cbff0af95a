/* Branch-free elementary functions, of which loops become vector instructions: those of functions_numba.py. */
#ifndef PYMC_EP_BRANCH_FREE
#define PYMC_EP_BRANCH_FREE
#include <math.h>
#include <stdint.h>
#include <string.h>

/* A call in a loop keeps it from vector instructions. */
#define INLINED static inline __attribute__((always_inline))

namespace pymc_ep_branch_free {

INLINED uint64_t bits_of(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
INLINED double double_of(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }

/* Truth values, with all bits set or none: compilers make vector instructions of them, and branches of others. */
typedef uint64_t mask;

INLINED mask truth(bool x) { return -(mask)x; }
INLINED double select(mask which, double a, double b)
{
  return double_of((bits_of(a) & which) | (bits_of(b) & ~which));
}
INLINED double number(mask which) { return select(which, 1.0, 0.0); }
INLINED double maximum(double a, double b) { return select(truth((a >= b) | (a != a)), a, b); }
INLINED double minimum(double a, double b) { return select(truth((a <= b) | (a != a)), a, b); }

static const double LOG2_E = 1.4426950408889634, WHOLE = 6755399441055744.0;
/* ln 2, the first part with 20 trailing zero bits: its product with an exponent is exact. */
static const double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;

/* (e^r - 1) / r for |r| <= 0.4, by its Taylor series. */
INLINED double exp_series(double r)
{
  const double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
  const double low = (1.0 + 1.0 / 2 * r) + (1.0 / 6 + 1.0 / 24 * r) * r2;
  const double middle = (1.0 / 120 + 1.0 / 720 * r) + (1.0 / 5040 + 1.0 / 40320 * r) * r2;
  const double high = (1.0 / 362880 + 1.0 / 3628800 * r) + (1.0 / 39916800 + 1.0 / 479001600 * r) * r2;
  return (low + middle * r4) + (high + 1.0 / 6227020800.0 * r4) * r8;
}

INLINED double exp(double x)
{
  double inside = x < -708.0 ? -708.0 : x;
  inside = inside > 709.8 ? 709.8 : inside;
  /* The sum is rounded to a whole number, which its last bits hold. */
  const double shifted = inside * LOG2_E + WHOLE, k = shifted - WHOLE;
  const double r = (inside - k * LN2_HIGH) - k * LN2_LOW;
  return (exp_series(r) * r + 1.0) * double_of((bits_of(shifted) << 52) + ((uint64_t)1023 << 52));
}

INLINED double expm1(double x)
{
  double r = x < -0.4 ? -0.4 : x;
  r = r > 0.4 ? 0.4 : r;
  const double near = exp_series(r) * r, far = pymc_ep_branch_free::exp(x) - 1.0;
  return select(truth((x < 0.35) & (x > -0.35)), near, far);
}

/* sum_k z^k / (2 k + 1) up to degree 11. */
INLINED double artanh_series(double z)
{
  const double z2 = z * z, z4 = z2 * z2, z8 = z4 * z4;
  const double low = (1.0 + 1.0 / 3 * z) + (1.0 / 5 + 1.0 / 7 * z) * z2;
  const double middle = (1.0 / 9 + 1.0 / 11 * z) + (1.0 / 13 + 1.0 / 15 * z) * z2;
  return (low + middle * z4) + ((1.0 / 17 + 1.0 / 19 * z) + (1.0 / 21 + 1.0 / 23 * z) * z2) * z8;
}

/* With x = 2^k m, m from sqrt(1/2) to sqrt(2), and s = (m - 1) / (m + 1): k ln 2 + 2 artanh s. */
INLINED double log(double x)
{
  const uint64_t bias = (uint64_t)1023 << 52, bits = bits_of(x);
  const uint64_t biased = (bits - 0x3FE6A09E667F3BCDull + bias) >> 52;
  const double f = double_of(bits - (biased << 52) + bias) - 1.0, s = f / (2.0 + f), z = s * s;
  const double e = double_of(biased | 0x4330000000000000ull) - (4503599627370496.0 + 1023.0);
  const double value = e * LN2_HIGH + (2.0 * s * artanh_series(z) + e * LN2_LOW);
  const double at_most_zero = select(truth(x == 0.0), -INFINITY, NAN);
  return select(truth(x < INFINITY), select(truth(x > 0.0), value, at_most_zero), x);
}

/* log(1 + x) for x from 0 to 1: 2 artanh s with s = x / (2 + x). */
INLINED double log1p_unit(double x)
{
  const double s = x / (2.0 + x), z = s * s, z2 = z * z, z4 = z2 * z2, z8 = z4 * z4;
  const double rest = (1.0 / 25 + 1.0 / 27 * z) + (1.0 / 29 + 1.0 / 31 * z) * z2 + (1.0 / 33 + 1.0 / 35 * z) * z4;
  return 2.0 * s * (artanh_series(z) + rest * z4 * z8);
}

INLINED double log1p(double x)
{
  const double u = 1.0 + x, lost = (x - (u - 1.0)) / u;
  return pymc_ep_branch_free::log(u) + select(truth((x > -1.0) & (x < INFINITY)), lost, 0.0);
}

/* log(1 - e^x) for x < 0 */
INLINED double log1mexp(double x)
{
  const mask near = truth(x > -0.6931471805599453);
  const double e = pymc_ep_branch_free::exp(x);
  return select(near, pymc_ep_branch_free::log(select(near, -pymc_ep_branch_free::expm1(x), 1.0)),
                pymc_ep_branch_free::log1p(-e));
}

/* log Gamma(x) for x > 0: Stirling's series at x, or at x + 7 less log(x (x + 1) ... (x + 6)). */
INLINED double log_gamma(double x)
{
  const mask small = truth(x < 7.0);
  const double z = select(small, x + 7.0, x), w = 1.0 / z, w2 = w * w;
  const double product = ((x * (x + 1.0)) * ((x + 2.0) * (x + 3.0))) * (((x + 4.0) * (x + 5.0)) * (x + 6.0));
  const double low = 1.0 / 12 + w2 * (-1.0 / 360 + w2 * (1.0 / 1260 - w2 / 1680));
  const double rest = 1.0 / 1188 + w2 * (-691.0 / 360360 + w2 / 156);
  const double value = (z - 0.5) * pymc_ep_branch_free::log(z) - z + 0.9189385332046727 +
                       w * (low + w2 * w2 * w2 * w2 * rest) -
                       pymc_ep_branch_free::log(select(small, product, 1.0));
  return select(truth(x > 0.0), value, select(truth(x <= 0.0), INFINITY, NAN));
}

/* Its derivative. */
INLINED double digamma(double x)
{
  const mask small = truth(x < 7.0);
  const double z = select(small, x + 7.0, x), w = 1.0 / z, w2 = w * w;
  const double sum = ((1.0 / x + 1.0 / (x + 1.0)) + (1.0 / (x + 2.0) + 1.0 / (x + 3.0))) +
                     ((1.0 / (x + 4.0) + 1.0 / (x + 5.0)) + 1.0 / (x + 6.0));
  const double low = 1.0 / 12 + w2 * (-1.0 / 120 + w2 * (1.0 / 252 - w2 / 240));
  const double rest = 1.0 / 132 + w2 * (-691.0 / 32760 + w2 / 12);
  const double value = pymc_ep_branch_free::log(z) - 0.5 * w - w2 * (low + w2 * w2 * w2 * w2 * rest) -
                       select(small, sum, 0.0);
  return select(truth(x > 0.0), value, NAN);
}

}
#endif
