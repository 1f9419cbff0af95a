/* Moments of inner products of Gaussian rows; see body.py and full_body.py for the equations. Arrays are contiguous.
 *
 * `ends` and `others` are those of Pairs; m and a, or m and the factors of covariances, are own rows, n and b others.
 * Functions return nonzero where memory is short.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Least product of the r_d of a pair whose logarithm is taken at once. Below it logarithms are summed, as the product
 * may underflow. */
#define PYMC_EP_LEAST_PRODUCT 1e-280

static double pymc_ep_log_product(npy_intp width, const double *a, const double *b) {
    double logs = 0.0;
    for (npy_intp d = 0; d < width; d++)
        logs += log1p(-a[d] * b[d]);
    return logs;
}

static int pymc_ep_log_mean_exp(npy_intp n_rows, npy_intp width, const npy_int64 *ends, const npy_int64 *others,
                                const double *m, const double *a, const double *n, const double *b, double *out,
                                double *log_out) {
#pragma omp parallel for schedule(dynamic, 16)
    for (npy_intp i = 0; i < n_rows; i++) {
        const double *mi = m + i * width, *ai = a + i * width;
        for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
            const double *nj = n + others[c] * width, *bj = b + others[c] * width;
            double total = 0.0, terms = 0.0, improper = 0.0, product = 1.0;
#pragma omp simd reduction(+ : total, terms, improper) reduction(* : product)
            for (npy_intp d = 0; d < width; d++) {
                const double r = 1.0 - ai[d] * bj[d], both = mi[d] * nj[d];
                improper += r > 0.0 ? 0.0 : 1.0;
                product *= r;
                total += both;
                terms += (both + 0.5 * (ai[d] * nj[d] * nj[d] + bj[d] * mi[d] * mi[d])) / r;
            }
            out[c] = total;
            if (improper > 0.0)
                log_out[c] = NPY_INFINITY;
            else if (product > PYMC_EP_LEAST_PRODUCT)
                log_out[c] = terms - 0.5 * log(product);
            else
                log_out[c] = terms - 0.5 * pymc_ep_log_product(width, ai, bj);
        }
    }
    return 0;
}

static int pymc_ep_log_mean_exp_pullback(npy_intp n_rows, npy_intp width, const npy_int64 *ends,
                                         const npy_int64 *others, const double *m, const double *a, const double *n,
                                         const double *b, const double *weight, const double *weight_log,
                                         double *of_mean, double *of_variance) {
    memset(of_mean, 0, n_rows * width * sizeof(double));
    memset(of_variance, 0, n_rows * width * sizeof(double));
#pragma omp parallel for schedule(dynamic, 16)
    for (npy_intp i = 0; i < n_rows; i++) {
        const double *mi = m + i * width, *ai = a + i * width;
        double *of_m = of_mean + i * width, *of_a = of_variance + i * width;
        for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
            const double *nj = n + others[c] * width, *bj = b + others[c] * width, w = weight[c], v = weight_log[c];
#pragma omp simd
            for (npy_intp d = 0; d < width; d++) {
                const double r = 1.0 - ai[d] * bj[d], g = (nj[d] + bj[d] * mi[d]) / r;
                of_m[d] += w * nj[d] + v * g;
                of_a[d] += 0.5 * v * (bj[d] / r + g * g);
            }
        }
    }
    return 0;
}

static int pymc_ep_variance(npy_intp n_rows, npy_intp width, const npy_int64 *ends, const npy_int64 *others,
                            const double *m, const double *a, const double *n, const double *b, double *out,
                            double *spread) {
#pragma omp parallel for schedule(dynamic, 16)
    for (npy_intp i = 0; i < n_rows; i++) {
        const double *mi = m + i * width, *ai = a + i * width;
        for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
            const double *nj = n + others[c] * width, *bj = b + others[c] * width;
            double total = 0.0, terms = 0.0;
#pragma omp simd reduction(+ : total, terms)
            for (npy_intp d = 0; d < width; d++) {
                total += mi[d] * nj[d];
                terms += ai[d] * (nj[d] * nj[d] + bj[d]) + bj[d] * mi[d] * mi[d];
            }
            out[c] = total;
            spread[c] = terms;
        }
    }
    return 0;
}

static int pymc_ep_variance_pullback(npy_intp n_rows, npy_intp width, const npy_int64 *ends, const npy_int64 *others,
                                     const double *m, const double *a, const double *n, const double *b,
                                     const double *weight, const double *of_spread, double *of_mean,
                                     double *of_variance) {
    memset(of_mean, 0, n_rows * width * sizeof(double));
    memset(of_variance, 0, n_rows * width * sizeof(double));
#pragma omp parallel for schedule(dynamic, 16)
    for (npy_intp i = 0; i < n_rows; i++) {
        const double *mi = m + i * width;
        double *of_m = of_mean + i * width, *of_a = of_variance + i * width;
        for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
            const double *nj = n + others[c] * width, *bj = b + others[c] * width, w = weight[c], v = of_spread[c];
#pragma omp simd
            for (npy_intp d = 0; d < width; d++) {
                of_m[d] += w * nj[d] + 2.0 * v * bj[d] * mi[d];
                of_a[d] += v * (nj[d] * nj[d] + bj[d]);
            }
        }
    }
    return 0;
}

/* Numbers of one pair: h = n + B m, x = C^{-1} w, and the matrices L^T B and C, the Cholesky factor of M. */
typedef struct {
    double *h, *x, *across, *root;
} pymc_ep_pair;

static int pymc_ep_allocate(npy_intp width, pymc_ep_pair *pair) {
    pair->h = (double *)malloc((2 * width * (width + 1) + 1) * sizeof(double));
    if (pair->h == NULL)
        return 1;
    pair->x = pair->h + width;
    pair->across = pair->x + width;
    pair->root = pair->across + width * width;
    return 0;
}

/* Fill in a pair; 0 if M is not positive definite. */
static int pymc_ep_weighted(npy_intp width, const double *m, const double *factor, const double *n, const double *b,
                            pymc_ep_pair *pair) {
    double *h = pair->h, *x = pair->x, *across = pair->across, *root = pair->root;
    memset(x, 0, width * sizeof(double));
    memset(across, 0, width * width * sizeof(double));
    memset(root, 0, width * width * sizeof(double));
    for (npy_intp d = 0; d < width; d++) {
        double total = n[d];
        for (npy_intp e = 0; e < width; e++)
            total += b[d * width + e] * m[e];
        h[d] = total;
    }
    for (npy_intp k = 0; k < width; k++)
        for (npy_intp d = 0; d <= k; d++) {
            const double by = factor[k * width + d];
            x[d] += by * h[k];
            for (npy_intp e = 0; e < width; e++)
                across[d * width + e] += by * b[k * width + e];
        }
    for (npy_intp d = 0; d < width; d++) {
        root[d * width + d] = 1.0;
        for (npy_intp k = 0; k < width; k++) {
            const double by = across[d * width + k];
            for (npy_intp e = 0; e <= (d < k ? d : k); e++)
                root[d * width + e] -= by * factor[k * width + e];
        }
    }
    for (npy_intp d = 0; d < width; d++) {
        for (npy_intp e = 0; e <= d; e++) {
            double total = root[d * width + e];
            for (npy_intp k = 0; k < e; k++)
                total -= root[d * width + k] * root[e * width + k];
            if (d > e)
                root[d * width + e] = total / root[e * width + e];
            else if (total > 0.0)
                root[d * width + d] = sqrt(total);
            else
                return 0;
        }
        double total = x[d];
        for (npy_intp k = 0; k < d; k++)
            total -= root[d * width + k] * x[k];
        x[d] = total / root[d * width + d];
    }
    return 1;
}

static int pymc_ep_full_log_mean_exp(npy_intp n_rows, npy_intp width, const npy_int64 *ends, const npy_int64 *others,
                                     const double *m, const double *factor, const double *n, const double *b,
                                     double *out, double *log_out) {
    const npy_intp square = width * width;
    int failed = 0;
#pragma omp parallel reduction(| : failed)
    {
        pymc_ep_pair pair;
        failed = pymc_ep_allocate(width, &pair);
#pragma omp for schedule(dynamic, 16)
        for (npy_intp i = 0; i < n_rows; i++) {
            const double *mi = m + i * width;
            for (npy_int64 c = ends[i]; !failed && c < ends[i + 1]; c++) {
                const double *nj = n + others[c] * width;
                const int proper = pymc_ep_weighted(width, mi, factor + i * square, nj, b + others[c] * square, &pair);
                double total = 0.0, terms = 0.0;
                for (npy_intp d = 0; d < width; d++) {
                    total += mi[d] * nj[d];
                    if (proper)
                        terms += 0.5 * (mi[d] * (pair.h[d] - nj[d]) + pair.x[d] * pair.x[d]) -
                                 log(pair.root[d * width + d]);
                }
                out[c] = total;
                log_out[c] = proper ? total + terms : NPY_INFINITY;
            }
        }
        free(pair.h);
    }
    return failed;
}

static int pymc_ep_full_log_mean_exp_pullback(npy_intp n_rows, npy_intp width, const npy_int64 *ends,
                                              const npy_int64 *others, const double *m, const double *factor,
                                              const double *n, const double *b, const double *weight,
                                              const double *weight_log, double *of_mean, double *of_cov) {
    const npy_intp square = width * width;
    int failed = 0;
    memset(of_mean, 0, n_rows * width * sizeof(double));
    memset(of_cov, 0, n_rows * square * sizeof(double));
#pragma omp parallel reduction(| : failed)
    {
        pymc_ep_pair pair;
        failed = pymc_ep_allocate(width, &pair);
#pragma omp for schedule(dynamic, 16)
        for (npy_intp i = 0; i < n_rows; i++) {
            double *of_m = of_mean + i * width, *of_c = of_cov + i * square;
            for (npy_int64 c = ends[i]; !failed && c < ends[i + 1]; c++) {
                const double *nj = n + others[c] * width, *bj = b + others[c] * square;
                const double half = 0.5 * weight_log[c];
                pymc_ep_weighted(width, m + i * width, factor + i * square, nj, bj, &pair);
                double *z = pair.across, *h = pair.h;
                /* z = C^{-1} L^T B, in place of L^T B; then h + z^T x is the mean under the weighted distribution. */
                for (npy_intp k = 0; k < width; k++) {
                    for (npy_intp l = 0; l < k; l++)
                        for (npy_intp e = 0; e < width; e++)
                            z[k * width + e] -= pair.root[k * width + l] * z[l * width + e];
                    for (npy_intp e = 0; e < width; e++) {
                        z[k * width + e] /= pair.root[k * width + k];
                        h[e] += pair.x[k] * z[k * width + e];
                    }
                }
                for (npy_intp d = 0; d < width; d++) {
                    of_m[d] += weight[c] * nj[d] + weight_log[c] * h[d];
                    for (npy_intp e = 0; e <= d; e++)
                        of_c[d * width + e] += half * (bj[d * width + e] + h[d] * h[e]);
                }
                for (npy_intp k = 0; k < width; k++)
                    for (npy_intp d = 0; d < width; d++) {
                        const double by = half * z[k * width + d];
                        for (npy_intp e = 0; e <= d; e++)
                            of_c[d * width + e] += by * z[k * width + e];
                    }
            }
            for (npy_intp d = 0; d < width; d++)
                for (npy_intp e = 0; e < d; e++)
                    of_c[e * width + d] = of_c[d * width + e];
        }
        free(pair.h);
    }
    return failed;
}

static int pymc_ep_full_variance(npy_intp n_rows, npy_intp width, const npy_int64 *ends, const npy_int64 *others,
                                 const double *m, const double *factor, const double *n, const double *b, double *out,
                                 double *spread) {
    const npy_intp square = width * width;
    int failed = 0;
#pragma omp parallel reduction(| : failed)
    {
        double *own = (double *)malloc((square + 1) * sizeof(double));
        failed = own == NULL;
#pragma omp for schedule(dynamic, 16)
        for (npy_intp i = 0; i < n_rows; i++) {
            const double *mi = m + i * width, *L = factor + i * square;
            for (npy_intp d = 0; !failed && d < width; d++)
                for (npy_intp e = 0; e < width; e++) {
                    own[d * width + e] = 0.0;
                    for (npy_intp k = 0; k <= (d < e ? d : e); k++)
                        own[d * width + e] += L[d * width + k] * L[e * width + k];
                }
            for (npy_int64 c = ends[i]; !failed && c < ends[i + 1]; c++) {
                const double *nj = n + others[c] * width, *bj = b + others[c] * square;
                double total = 0.0, terms = 0.0;
                for (npy_intp d = 0; d < width; d++) {
                    total += mi[d] * nj[d];
                    for (npy_intp e = 0; e < width; e++) {
                        const double bde = bj[d * width + e];
                        terms += own[d * width + e] * (nj[d] * nj[e] + bde) + mi[d] * mi[e] * bde;
                    }
                }
                out[c] = total;
                spread[c] = terms;
            }
        }
        free(own);
    }
    return failed;
}

static int pymc_ep_full_variance_pullback(npy_intp n_rows, npy_intp width, const npy_int64 *ends,
                                          const npy_int64 *others, const double *m, const double *factor,
                                          const double *n, const double *b, const double *weight,
                                          const double *of_spread, double *of_mean, double *of_cov) {
    const npy_intp square = width * width;
    memset(of_mean, 0, n_rows * width * sizeof(double));
    memset(of_cov, 0, n_rows * square * sizeof(double));
#pragma omp parallel for schedule(dynamic, 16)
    for (npy_intp i = 0; i < n_rows; i++) {
        const double *mi = m + i * width;
        double *of_m = of_mean + i * width, *of_c = of_cov + i * square;
        for (npy_int64 c = ends[i]; c < ends[i + 1]; c++) {
            const double *nj = n + others[c] * width, *bj = b + others[c] * square, v = of_spread[c];
            for (npy_intp d = 0; d < width; d++) {
                double along = 0.0;
                for (npy_intp e = 0; e < width; e++) {
                    along += bj[d * width + e] * mi[e];
                    of_c[d * width + e] += v * (nj[d] * nj[e] + bj[d * width + e]);
                }
                of_m[d] += weight[c] * nj[d] + 2.0 * v * along;
            }
        }
    }
    return 0;
}
