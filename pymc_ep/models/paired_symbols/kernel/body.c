/* Row updates of the paired-symbol model; see body.py for the equations. All arrays are contiguous. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const double *mean, *variance, *bias, *bias_variance;
} pymc_ep_symbols;

static double pymc_ep_curvature(double xi) {
    if (xi < 1e-3)
        return 0.125 - xi * xi / 96.0;
    const double e = exp(-xi);
    return (1.0 - e) / ((1.0 + e) * 4.0 * xi);
}

/* E a and E a^2 of the cell (i, j). */
static void pymc_ep_pair_moments(const pymc_ep_symbols *own, const pymc_ep_symbols *other, npy_intp i, npy_intp j,
                                 npy_intp width, double *mean, double *square) {
    const double *m = own->mean + i * width, *a = own->variance + i * width;
    const double *n = other->mean + j * width, *b = other->variance + j * width;
    double total = 0.0, spread = 0.0;
    for (npy_intp k = 0; k < width; k++) {
        total += m[k] * n[k];
        spread += a[k] * (n[k] * n[k] + b[k]) + b[k] * m[k] * m[k];
    }
    total += own->bias[i] + other->bias[j];
    *mean = total;
    *square = total * total + spread + own->bias_variance[i] + other->bias_variance[j];
}

static void pymc_ep_pair_sums(npy_intp n_own, npy_intp width, const npy_int64 *ends, const npy_int32 *others,
                              const double *counts, pymc_ep_symbols own, pymc_ep_symbols other, const double *t,
                              double *out) {
#pragma omp parallel for schedule(dynamic, 64)
    for (npy_intp i = 0; i < n_own; i++) {
        double *sums = out + 4 * i;
        sums[0] = sums[1] = sums[2] = sums[3] = 0.0;
        for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
            const npy_intp j = others[c];
            double mean, square;
            pymc_ep_pair_moments(&own, &other, i, j, width, &mean, &square);
            const double xi = sqrt(square), height = -log1p(exp(-xi)) - 0.5 * xi;
            sums[0] += counts[c] * (height + 0.5 * mean);
            sums[1] += t[j] * height;
            sums[2] += t[j] * square;
            sums[3] += t[j];
        }
    }
}

/* Solve with the lower triangle of a positive definite matrix, which becomes its Cholesky factor. */
static void pymc_ep_solve_row(npy_intp width, double *precision, double *shift, double *out) {
    for (npy_intp k = 0; k < width; k++) {
        double *row = precision + k * width, total;
        for (npy_intp d = 0; d < k; d++) {
            const double *column = precision + d * width;
            total = row[d];
            for (npy_intp e = 0; e < d; e++)
                total -= row[e] * column[e];
            row[d] = total * column[d];
        }
        total = row[k];
        for (npy_intp d = 0; d < k; d++)
            total -= row[d] * row[d];
        /* Reciprocals of the diagonal, so that nothing is divided twice. */
        row[k] = 1.0 / sqrt(total);
        total = shift[k];
        for (npy_intp d = 0; d < k; d++)
            total -= row[d] * shift[d];
        shift[k] = total * row[k];
    }
    for (npy_intp k = width - 1; k >= 0; k--) {
        const double *row = precision + k * width, x = shift[k] * row[k];
        out[k] = x;
        for (npy_intp d = 0; d < k; d++)
            shift[d] -= row[d] * x;
    }
}

/* One round of coordinate ascent from `before`. */
static void pymc_ep_relax_row(npy_intp width, const double *precision, const double *shift, const double *before,
                              double *out) {
    for (npy_intp k = 0; k < width; k++)
        out[k] = before[k];
    for (npy_intp k = 0; k < width; k++) {
        double total = shift[k];
        for (npy_intp d = 0; d < k; d++)
            total -= precision[k * width + d] * out[d];
        for (npy_intp d = k + 1; d < width; d++)
            total -= precision[d * width + k] * out[d];
        out[k] = total / precision[k * width + k];
    }
}

/* Write the sums over the cells of own symbol i: precision, the lower triangle, shift, slope, and those of its bias. */
static void pymc_ep_add_cells(npy_intp i, npy_intp width, const npy_int64 *ends, const npy_int32 *others,
                              const double *counts, const pymc_ep_symbols *own, const pymc_ep_symbols *other,
                              const double *t, double censored, double lam, double *precision, double *shift,
                              double *slope, double *of_bias) {
    double rho = 0.0, pull = 0.0;
    for (npy_intp k = 0; k < width; k++) {
        shift[k] = slope[k] = 0.0;
        for (npy_intp d = 0; d <= k; d++)
            precision[k * width + d] = 0.0;
    }
    for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
        const npy_intp j = others[c];
        const double *v = other->mean + j * width, *b = other->variance + j * width;
        double mean, square;
        pymc_ep_pair_moments(own, other, i, j, width, &mean, &square);
        const double lam_ij = pymc_ep_curvature(sqrt(square)), half = 0.5 * counts[c];
        const double w = 2.0 * (counts[c] * lam_ij + censored * t[j] * (lam_ij - lam));
        const double by = half - w * other->bias[j];
        rho += w;
        pull += half - w * (mean - own->bias[i]);
        for (npy_intp k = 0; k < width; k++) {
            const double w_k = w * v[k];
            double *row = precision + k * width;
            shift[k] += by * v[k];
            slope[k] += w_k;
            for (npy_intp d = 0; d <= k; d++)
                row[d] += w_k * v[d];
            row[k] += w * b[k];
        }
    }
    of_bias[0] = rho;
    of_bias[1] = pull;
}

/* The moments of the other symbols, the sum of their weights, D' and lam(xi*). */
typedef struct {
    const double *outer, *mean, *mean_bias;
    double bias, weight, number, lam;
} pymc_ep_background;

/* Write own symbol i, given the sums over its cells. */
static void pymc_ep_finish_row(npy_intp i, npy_intp width, const double *m, const pymc_ep_symbols *prior,
                               double censored, const pymc_ep_background *of, int sequential, double *precision,
                               double *shift, const double *slope, const double *of_bias, double *new_mean,
                               double *new_variance, double *new_bias, double *new_bias_variance) {
    const double scale = 2.0 * of->lam * censored;
    double along = 0.0;
    for (npy_intp k = 0; k < width; k++)
        along += m[k] * of->mean[k];
    if (isinf(prior->bias_variance[i])) {
        new_bias[i] = prior->bias[i];
        new_bias_variance[i] = 0.0;
    } else {
        const double rho = of_bias[0] + scale * of->weight + prior->bias_variance[i];
        const double pull = of_bias[1] - censored * (0.5 * of->weight + 2.0 * of->lam * (of->bias + along));
        new_bias[i] = (pull + prior->bias_variance[i] * prior->bias[i]) / rho;
        new_bias_variance[i] = 1.0 / rho;
    }
    for (npy_intp k = 0; k < width; k++) {
        const double tau = prior->variance[i * width + k];
        for (npy_intp d = 0; d <= k; d++)
            precision[k * width + d] += scale * of->outer[k * width + d];
        precision[k * width + k] += tau;
        shift[k] += tau * prior->mean[i * width + k] - censored * (0.5 * of->mean[k] + 2.0 * of->lam * of->mean_bias[k]) -
                    (slope[k] + scale * of->mean[k]) * new_bias[i];
        new_variance[i * width + k] = 1.0 / precision[k * width + k];
    }
    if (sequential)
        pymc_ep_relax_row(width, precision, shift, m, new_mean + i * width);
    else
        pymc_ep_solve_row(width, precision, shift, new_mean + i * width);
}

/* Return 0, or 1 where memory ran out, as the functions below. */
static int pymc_ep_row_statistics(npy_intp n_own, npy_intp width, const npy_int64 *ends, const npy_int32 *others,
                                  const double *counts, pymc_ep_symbols own, pymc_ep_symbols other, const double *s,
                                  const double *t, double number, double xi, double *precisions, double *shift,
                                  double *slope, double *of_bias) {
    const double lam = pymc_ep_curvature(xi);
    const npy_intp packed = width * (width + 1) / 2;
    int failed = 0;
#pragma omp parallel
    {
        double *precision = (double *)malloc(width * width * sizeof(double));
        if (precision == NULL)
            failed = 1;
#pragma omp for schedule(dynamic, 16)
        for (npy_intp i = 0; i < n_own; i++) {
            if (precision == NULL)
                continue;
            pymc_ep_add_cells(i, width, ends, others, counts, &own, &other, t, number * s[i], lam, precision,
                              shift + i * width, slope + i * width, of_bias + 2 * i);
            double *out = precisions + i * packed;
            for (npy_intp k = 0; k < width; k++)
                for (npy_intp d = 0; d <= k; d++)
                    *out++ = precision[k * width + d];
        }
        free(precision);
    }
    return failed;
}

static int pymc_ep_solve_rows(npy_intp n_own, npy_intp width, const double *precisions, const double *shifts,
                              const double *slopes, const double *of_bias, const double *mean, pymc_ep_symbols prior,
                              const double *s, const double *outer, const double *of_mean, const double *of_mean_bias,
                              double bias, double number, double xi, int sequential, double *new_mean,
                              double *new_variance, double *new_bias, double *new_bias_variance) {
    const pymc_ep_background of = {outer, of_mean, of_mean_bias, bias, 1.0, number, pymc_ep_curvature(xi)};
    const npy_intp packed = width * (width + 1) / 2;
    int failed = 0;
#pragma omp parallel
    {
        double *precision = (double *)malloc((width * width + width) * sizeof(double));
        double *shift = precision + width * width;
        if (precision == NULL)
            failed = 1;
#pragma omp for schedule(dynamic, 16)
        for (npy_intp i = 0; i < n_own; i++) {
            if (precision == NULL)
                continue;
            const double *in = precisions + i * packed;
            for (npy_intp k = 0; k < width; k++) {
                shift[k] = shifts[i * width + k];
                for (npy_intp d = 0; d <= k; d++)
                    precision[k * width + d] = *in++;
            }
            pymc_ep_finish_row(i, width, mean + i * width, &prior, number * s[i], &of, sequential, precision, shift,
                               slopes + i * width, of_bias + 2 * i, new_mean, new_variance, new_bias,
                               new_bias_variance);
        }
        free(precision);
    }
    return failed;
}

static int pymc_ep_update_rows(npy_intp n_own, npy_intp width, const npy_int64 *ends, const npy_int32 *others,
                               const double *counts, pymc_ep_symbols own, pymc_ep_symbols other,
                               pymc_ep_symbols prior, const double *s, const double *t, const double *outer,
                               const double *of_mean, const double *of_mean_bias, double bias, double number,
                               double xi, int sequential, double *new_mean, double *new_variance, double *new_bias,
                               double *new_bias_variance) {
    const pymc_ep_background of = {outer, of_mean, of_mean_bias, bias, 1.0, number, pymc_ep_curvature(xi)};
    int failed = 0;
#pragma omp parallel
    {
        double *precision = (double *)malloc((width * width + 2 * width) * sizeof(double));
        double *shift = precision + width * width, *slope = shift + width, of_bias[2];
        if (precision == NULL)
            failed = 1;
#pragma omp for schedule(dynamic, 16)
        for (npy_intp i = 0; i < n_own; i++) {
            if (precision == NULL)
                continue;
            pymc_ep_add_cells(i, width, ends, others, counts, &own, &other, t, number * s[i], of.lam, precision, shift,
                              slope, of_bias);
            pymc_ep_finish_row(i, width, own.mean + i * width, &prior, number * s[i], &of, sequential, precision, shift,
                               slope, of_bias, new_mean, new_variance, new_bias, new_bias_variance);
        }
        free(precision);
    }
    return failed;
}

/* Add a symbol to the moments of all with a weight. */
static void pymc_ep_add_symbol(npy_intp width, const double *mean, const double *variance, double bias, double weight,
                               double *outer, double *of_mean, double *of_mean_bias, pymc_ep_background *of) {
    for (npy_intp k = 0; k < width; k++) {
        const double weighted = weight * mean[k];
        of_mean[k] += weighted;
        of_mean_bias[k] += weighted * bias;
        for (npy_intp d = 0; d <= k; d++)
            outer[k * width + d] += weighted * mean[d];
        outer[k * width + k] += weight * variance[k];
    }
    of->bias += weight * bias;
    of->weight += weight;
}

/* Update symbols that are paired with each other one after the other, in the arrays of the result. */
static int pymc_ep_update_in_turn(npy_intp n_own, npy_intp width, const npy_int64 *ends, const npy_int32 *others,
                                  const double *counts, pymc_ep_symbols before, pymc_ep_symbols prior, const double *s,
                                  const double *outer, const double *of_mean, const double *of_mean_bias, double bias,
                                  double number, double xi, int sequential, int point_factors, int point_bias,
                                  double *mean, double *variance, double *own_bias, double *bias_variance) {
    const npy_intp square = width * width;
    const size_t one = sizeof(double);
    const pymc_ep_symbols own = {mean, variance, own_bias, bias_variance};
    memcpy(mean, before.mean, n_own * width * one);
    memcpy(variance, before.variance, n_own * width * one);
    memcpy(own_bias, before.bias, n_own * one);
    memcpy(bias_variance, before.bias_variance, n_own * one);
    double *held = (double *)malloc((2 * square + 4 * width) * one);
    if (held == NULL)
        return 1;
    double *precision = held, *rest = precision + square, *rest_mean = rest + square, *rest_mean_bias = rest_mean + width;
    double *shift = rest_mean_bias + width, *slope = shift + width, of_bias[2];
    memcpy(rest, outer, square * one);
    memcpy(rest_mean, of_mean, width * one);
    memcpy(rest_mean_bias, of_mean_bias, width * one);
    pymc_ep_background of = {rest, rest_mean, rest_mean_bias, bias, 1.0, number, pymc_ep_curvature(xi)};
    for (npy_intp i = 0; i < n_own; i++) {
        double *m = mean + i * width, *a = variance + i * width;
        pymc_ep_add_symbol(width, m, a, own_bias[i], -s[i], rest, rest_mean, rest_mean_bias, &of);
        pymc_ep_add_cells(i, width, ends, others, counts, &own, &own, s, number * s[i], of.lam, precision, shift, slope,
                          of_bias);
        pymc_ep_finish_row(i, width, m, &prior, number * s[i], &of, sequential, precision, shift, slope, of_bias, mean,
                           variance, own_bias, bias_variance);
        if (point_factors)
            memset(a, 0, width * one);
        if (point_bias)
            bias_variance[i] = 0.0;
        pymc_ep_add_symbol(width, m, a, own_bias[i], s[i], rest, rest_mean, rest_mean_bias, &of);
    }
    free(held);
    return 0;
}
