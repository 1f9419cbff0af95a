/* Scalar body of truncated_normal in C. body.py has the derivation; the tables come from coefficients.py. */
#ifndef PYMC_EP_TRUNCATED_NORMAL
#define PYMC_EP_TRUNCATED_NORMAL

#include <math.h>

#define PYMC_EP_HALF_LOG_TWO_PI 0.91893853320467274178
#define PYMC_EP_INV_SQRT_TWO_PI 0.39894228040143267794

typedef struct {
    double log_mass, hazard, mean, variance;
} pymc_ep_truncated;

/* exp(-k^2 / 2); the square is split, since its rounding alone would cost k^2 / 2 units in the last place. */
static double pymc_ep_gaussian(double k)
{
    if (fabs(k) > 40.0)
        return 0.0;
    const double high = floor(16.0 * k) / 16.0;
    return exp(-0.5 * high * high) * exp(-0.5 * (k - high) * (k + high));
}

static pymc_ep_truncated pymc_ep_truncated_normal(double k)
{
    if (!isfinite(k)) {
        const pymc_ep_truncated invalid = {NAN, NAN, NAN, NAN};
        return invalid;
    }
    pymc_ep_truncated x;
    const double size = fabs(k);
    const double t = (size - PYMC_EP_SCALE) / (size + PYMC_EP_SCALE);
    double mean = 0.0, variance = 0.0;
    const int terms = (int)(sizeof(PYMC_EP_SCALED_MEAN) / sizeof(double));
    for (int i = 0; i < terms; i++) {
        mean = mean * t + PYMC_EP_SCALED_MEAN[i];
        variance = variance * t + PYMC_EP_SCALED_VARIANCE[i];
    }
    mean /= 1.0 + size;
    if (k >= 0.0) {
        x.hazard = k + mean;
        x.log_mass = -0.5 * k * k - PYMC_EP_HALF_LOG_TWO_PI - log(x.hazard);
        x.mean = mean;
        x.variance = variance / ((1.0 + size) * (1.0 + size));
        return x;
    }
    const double density = PYMC_EP_INV_SQRT_TWO_PI * pymc_ep_gaussian(k);
    const double tail = density / (size + mean);
    x.hazard = density / (1.0 - tail);
    x.mean = x.hazard + size;
    x.log_mass = log1p(-tail);
    x.variance = 1.0 - x.hazard * x.mean;
    return x;
}

#endif
