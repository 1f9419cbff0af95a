/* Scalar body of rectified_poisson in C. body.py has the derivation of every regime and the notation;
 * the tables come from coefficients.py; the functions of truncated_normal/body.c precede this text. */
#ifndef PYMC_EP_RECTIFIED_POISSON
#define PYMC_EP_RECTIFIED_POISSON

#define PYMC_EP_SADDLE_FROM 100.0

typedef struct {
    double log_z, mean, variance, gradient, precision;
} pymc_ep_tilted;

typedef struct {
    double log_mass, mean, variance;
} pymc_ep_sums;

static pymc_ep_sums pymc_ep_saddle_sums(double p, double size)
{
    const int terms = size < 200.0 ? 8 : size < 1e3 ? 6 : size < 1e4 ? 4 : size < 1e6 ? 3 : 2;
    const double inverse = 1.0 / size;
    pymc_ep_sums sums = {0.0, 0.0, 0.0};
    for (int order = terms; order > 0; order--) {
        const int start = order * (order - 1);
        double log_term = 0.0, mean_term = 0.0, variance_term = 0.0;
        for (int i = start; i < start + 2 * order; i++) {
            log_term = log_term * p + PYMC_EP_SADDLE_LOG_MASS[i];
            mean_term = mean_term * p + PYMC_EP_SADDLE_MEAN[i];
            variance_term = variance_term * p + PYMC_EP_SADDLE_VARIANCE[i];
        }
        sums.log_mass = (sums.log_mass + log_term * p) * inverse;
        sums.mean = (sums.mean + mean_term * p) * inverse;
        sums.variance = (sums.variance + variance_term * p) * inverse;
    }
    return sums;
}

/* -log t_y(f) for f > 0, where difference = y - f is known to full relative accuracy; Loader's form for y >= 16. */
static double pymc_ep_negative_log_site(double y, double f, double difference)
{
    if (y < 16.0)
        return f - y * log(f) + lgamma(y + 1.0);
    const double ratio = difference / (y + f);
    double deviance;
    if (fabs(ratio) < 0.1) {
        const double square = ratio * ratio;
        double series = 0.0;
        for (int j = 8; j > 0; j--)
            series = (series + 1.0 / (2 * j + 1)) * square;
        deviance = difference * ratio + 2.0 * y * ratio * series;
    } else {
        deviance = y * log(y / f) - difference;
    }
    const double inverse = 1.0 / (y * y);
    const double tail = 1.0 / 1260.0 + inverse * (-1.0 / 1680.0 + inverse / 1188.0);
    const double stirling = (1.0 / 12.0 + inverse * (-1.0 / 360.0 + inverse * tail)) / y;
    return deviance + stirling + PYMC_EP_HALF_LOG_TWO_PI + 0.5 * log(y);
}

static pymc_ep_tilted pymc_ep_saddle(double y, double mean, double variance, double power, double sd, double root,
                                     double mode, double size)
{
    const double a = power * y, centre = mode * sd;
    const pymc_ep_sums sums = pymc_ep_saddle_sums(a / size, size);
    const double total = mean / sd + power * sd;
    const double slope =
        total >= 0.0 ? 2.0 * power * (y - mean) / (sd * (total + root)) : 0.5 * (root - total) / sd;
    pymc_ep_tilted out;
    out.log_z = -power * pymc_ep_negative_log_site(y, centre, slope * centre / power) -
                0.5 * slope * slope * variance + 0.5 * log(mode * mode / size) + sums.log_mass;
    out.mean = centre * (1.0 + sums.mean);
    out.variance = centre * centre / size * (1.0 + sums.variance);
    out.gradient = slope + mode * sums.mean / sd;
    out.precision = (a - mode * mode * sums.variance) / (centre * centre * (1.0 + sums.variance));
    return out;
}

static double pymc_ep_log_prefactor(double y, double mean, double power, double sd)
{
    const double standard = mean / sd;
    return -0.5 * standard * standard + power * y * log(sd) - PYMC_EP_HALF_LOG_TWO_PI - power * lgamma(y + 1.0);
}

static pymc_ep_tilted pymc_ep_backward(double y, double mean, double power, double sd, double kappa)
{
    const double a = power * y;
    const int steps = (int)ceil(PYMC_EP_SADDLE_FROM - a);
    const double order = a + steps;
    const double mode = 2.0 * order / (kappa + sqrt(kappa * kappa + 4.0 * order));
    const double size = order + mode * mode;
    const pymc_ep_sums sums = pymc_ep_saddle_sums(order / size, size);
    double log_j = order * log(mode) - order + 0.5 * mode * mode + sums.log_mass;
    log_j += log(mode) + PYMC_EP_HALF_LOG_TWO_PI - 0.5 * log(size);
    double ratio = mode * (1.0 + sums.mean), following = ratio, product = 1.0;
    for (int i = 0; i < steps; i++) {
        following = ratio;
        ratio = (order - i) / (kappa + ratio);
        product *= ratio;
        if (product < 1e-200) {
            log_j -= log(product);
            product = 1.0;
        }
    }
    log_j -= log(product);
    const double scaled = ratio * (following - ratio);
    pymc_ep_tilted out;
    out.log_z = pymc_ep_log_prefactor(y, mean, power, sd) + log_j;
    out.mean = sd * ratio;
    out.variance = sd * sd * scaled;
    out.gradient = (ratio - mean / sd) / sd;
    out.precision = (1.0 - scaled) / (sd * sd * scaled);
    return out;
}

static pymc_ep_tilted pymc_ep_power_series(double y, double mean, double power, double sd, double kappa)
{
    const double a = power * y, drift = -kappa, square = kappa * kappa;
    const double half = lgamma(0.5 * (a + 1.0));
    const double gamma_ratio = sqrt(2.0) * exp(lgamma(0.5 * a + 1.0) - half);
    double even = 1.0, odd = drift * gamma_ratio, lower_even = gamma_ratio, lower_odd = drift * a;
    double total = even + odd, lower_total = lower_even + lower_odd;
    for (double k = 0.0; even + odd > 1e-18 * total || lower_even + lower_odd > 1e-18 * lower_total; k += 2.0) {
        const double to_even = square / ((k + 1.0) * (k + 2.0));
        const double to_odd = square / ((k + 2.0) * (k + 3.0));
        even *= to_even * (a + k + 1.0);
        odd *= to_odd * (a + k + 2.0);
        lower_even *= to_even * (a + k);
        lower_odd *= to_odd * (a + k + 1.0);
        total += even + odd;
        lower_total += lower_even + lower_odd;
    }
    const double inverse = lower_total / total;
    const double ratio = drift + inverse;
    const double reduction = ratio * inverse - a;
    pymc_ep_tilted out;
    out.log_z = pymc_ep_log_prefactor(y, mean, power, sd) + log(total) + half + 0.5 * (a - 1.0) * log(2.0);
    out.mean = sd * ratio;
    out.variance = sd * sd * (1.0 - reduction);
    out.gradient = inverse / sd - power;
    out.precision = reduction / (sd * sd * (1.0 - reduction));
    return out;
}

static pymc_ep_tilted pymc_ep_flat_zero(double mean, double power, double sd, double kappa)
{
    const double k = mean / sd;
    const pymc_ep_truncated under = pymc_ep_truncated_normal(k), over = pymc_ep_truncated_normal(kappa);
    const double above = under.hazard / (under.hazard + over.hazard);
    const double below = over.hazard / (under.hazard + over.hazard);
    const double gap = over.mean + under.mean;
    const double scaled = below * under.variance + above * over.variance + below * above * gap * gap;
    pymc_ep_tilted out;
    if (k <= 0.0)
        out.log_z = under.log_mass + log1p(under.hazard / over.hazard);
    else if (kappa >= 0.0)
        out.log_z = -0.5 * k * k - PYMC_EP_HALF_LOG_TWO_PI + log(1.0 / under.hazard + 1.0 / over.hazard);
    else
        out.log_z = -power * (mean - 0.5 * power * sd * sd) + over.log_mass + log1p(over.hazard / under.hazard);
    out.mean = sd * (above * over.mean - below * under.mean);
    out.variance = sd * sd * scaled;
    out.gradient = -power * above;
    out.precision = power * below * above * gap / (sd * scaled);
    return out;
}

static pymc_ep_tilted pymc_ep_cut_zero(double mean, double power, double sd, double kappa)
{
    const double k = mean / sd;
    const pymc_ep_truncated x = pymc_ep_truncated_normal(kappa);
    pymc_ep_tilted out;
    if (kappa >= 0.0) {
        out.log_z = -0.5 * k * k - PYMC_EP_HALF_LOG_TWO_PI - log(x.hazard);
        out.gradient = (x.mean - k) / sd;
    } else {
        out.log_z = -power * (mean - 0.5 * power * sd * sd) + x.log_mass;
        out.gradient = x.hazard / sd - power;
    }
    out.mean = sd * x.mean;
    out.variance = sd * sd * x.variance;
    out.precision = x.hazard * x.mean / (sd * sd * x.variance);
    return out;
}

static pymc_ep_tilted pymc_ep_rectified_poisson(double y, double mean, double variance, double power, int zero_mass)
{
    if (!(y >= 0.0 && variance > 0.0 && power > 0.0 && isfinite(y + mean + variance + power))) {
        const pymc_ep_tilted invalid = {NAN, NAN, NAN, NAN, NAN};
        return invalid;
    }
    const double sd = sqrt(variance);
    const double kappa = power * sd - mean / sd;
    if (y == 0.0)
        return zero_mass ? pymc_ep_flat_zero(mean, power, sd, kappa) : pymc_ep_cut_zero(mean, power, sd, kappa);
    const double a = power * y;
    const double root = sqrt(kappa * kappa + 4.0 * a);
    const double mode = kappa > 0.0 ? 2.0 * a / (kappa + root) : 0.5 * (root - kappa);
    const double size = a + mode * mode;
    if (size >= PYMC_EP_SADDLE_FROM)
        return pymc_ep_saddle(y, mean, variance, power, sd, root, mode, size);
    if (kappa >= 0.0)
        return pymc_ep_backward(y, mean, power, sd, kappa);
    return pymc_ep_power_series(y, mean, power, sd, kappa);
}

#endif
