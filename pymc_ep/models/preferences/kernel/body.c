/* Posteriors of compared utilities; see body.py for the equations. All arrays are contiguous. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    npy_intp n_users;
    const npy_int64 *item_ends;
    const npy_int32 *items;
    const npy_int64 *pair_ends;
    const npy_int32 *firsts, *seconds;
} pymc_ep_comparisons;

/* Comparisons of a user: number of its items, where its items, pairs and matrix begin, and its pairs. */
typedef struct {
    npy_intp n, n_pairs, item, pair, entry;
    const npy_int32 *firsts, *seconds;
} pymc_ep_user;

/* Write all users; NULL where memory is short. */
static pymc_ep_user *pymc_ep_users(const pymc_ep_comparisons *given) {
    pymc_ep_user *users = (pymc_ep_user *)malloc((given->n_users + 1) * sizeof(pymc_ep_user));
    if (users == NULL)
        return NULL;
    npy_intp entry = 0;
    for (npy_intp u = 0; u < given->n_users; u++) {
        const npy_intp item = given->item_ends[u], pair = given->pair_ends[u];
        const npy_intp n = given->item_ends[u + 1] - item;
        users[u] = (pymc_ep_user){n, given->pair_ends[u + 1] - pair, item, pair, entry, given->firsts + pair,
                                  given->seconds + pair};
        entry += n * n;
    }
    return users;
}

static double pymc_ep_dot(npy_intp n, const double *x, const double *y) {
    double total = 0.0;
#pragma omp simd reduction(+ : total)
    for (npy_intp k = 0; k < n; k++)
        total += x[k] * y[k];
    return total;
}

/* Overwrite the lower triangle of a symmetric matrix by its Cholesky factor; 0 if it has none. */
static int pymc_ep_factorise(npy_intp n, double *matrix) {
    for (npy_intp r = 0; r < n; r++) {
        double *row = matrix + r * n;
        for (npy_intp c = 0; c < r; c++)
            row[c] = (row[c] - pymc_ep_dot(c, row, matrix + c * n)) / matrix[c * n + c];
        const double pivot = row[r] - pymc_ep_dot(r, row, row);
        if (!(pivot > 0.0))
            return 0;
        row[r] = sqrt(pivot);
    }
    return 1;
}

/* Add D^T diag(precision) D values, (n, n). */
static void pymc_ep_add_weighted(const pymc_ep_user *user, const double *precision, const double *values, double *out) {
    const npy_intp n = user->n;
    for (npy_intp k = 0; k < user->n_pairs; k++) {
        const double *one = values + user->firsts[k] * n, *two = values + user->seconds[k] * n, p = precision[k];
        double *into_one = out + user->firsts[k] * n, *into_two = out + user->seconds[k] * n;
        for (npy_intp c = 0; c < n; c++) {
            const double step = p * (one[c] - two[c]);
            into_one[c] += step;
            into_two[c] -= step;
        }
    }
}

/* A kernel of no items is the identity. */
static int pymc_ep_prior_factors(const pymc_ep_comparisons *given, npy_intp n_items, npy_intp width,
                                 const double *factors, const double *kernel, double scale, double *out,
                                 npy_int64 *failed) {
    pymc_ep_user *users = pymc_ep_users(given);
    if (users == NULL)
        return 1;
    npy_intp first = given->n_users;
#pragma omp parallel for schedule(dynamic, 16) reduction(min : first)
    for (npy_intp u = 0; u < given->n_users; u++) {
        const npy_intp n = users[u].n;
        const npy_int32 *items = given->items + users[u].item;
        double *matrix = out + users[u].entry;
        memset(matrix, 0, n * n * sizeof(double));
        for (npy_intp r = 0; r < n; r++)
            for (npy_intp c = 0; c <= r; c++) {
                const double between = n_items > 0 ? kernel[items[r] * n_items + items[c]] : r == c;
                matrix[r * n + c] = scale * between +
                                    pymc_ep_dot(width, factors + items[r] * width, factors + items[c] * width);
            }
        if (!pymc_ep_factorise(n, matrix) && u < first)
            first = u;
    }
    *failed = first < given->n_users ? first : -1;
    free(users);
    return 0;
}

/* Write W^T, (n, n), with two matrices as buffers; return log |A|. */
static double pymc_ep_whiten(const pymc_ep_user *user, const double *lower, const double *precision, double *held,
                             double *white) {
    const npy_intp n = user->n;
    double *through = held, *root = held + n * n, log_det = 0.0;
    memset(held, 0, 2 * n * n * sizeof(double));
    pymc_ep_add_weighted(user, precision, lower, through);
    for (npy_intp r = 0; r < n; r++)
        root[r * n + r] = 1.0;
    for (npy_intp k = 0; k < n; k++) {
        const double *row = through + k * n, *own = lower + k * n;
        for (npy_intp r = 0; r <= k; r++)
            for (npy_intp c = 0; c <= r; c++)
                root[r * n + c] += own[r] * row[c];
    }
    pymc_ep_factorise(n, root);
    for (npy_intp r = 0; r < n; r++) {
        double *row = white + r * n;
        log_det += 2.0 * log(root[r * n + r]);
        for (npy_intp c = 0; c < n; c++)
            row[c] = (lower[r * n + c] - pymc_ep_dot(c, root + c * n, row)) / root[c * n + c];
    }
    return log_det;
}

/* Write the posterior means of a user's differences, with a row as buffer. */
static void pymc_ep_means(const pymc_ep_user *user, const double *white, const double *prior_mean, const double *shift,
                          const double *precision, double *pull, double *mean) {
    const npy_intp n = user->n;
    memset(pull, 0, n * sizeof(double));
    for (npy_intp k = 0; k < user->n_pairs; k++) {
        const double *one = white + user->firsts[k] * n, *two = white + user->seconds[k] * n;
        const double weight = shift[k] - precision[k] * prior_mean[k];
        for (npy_intp c = 0; c < n; c++)
            pull[c] += weight * (one[c] - two[c]);
    }
    for (npy_intp k = 0; k < user->n_pairs; k++) {
        const double *one = white + user->firsts[k] * n, *two = white + user->seconds[k] * n;
        double total = 0.0;
#pragma omp simd reduction(+ : total)
        for (npy_intp c = 0; c < n; c++)
            total += (one[c] - two[c]) * pull[c];
        mean[k] = prior_mean[k] + total;
    }
}

static int pymc_ep_difference_moments(const pymc_ep_comparisons *given, const double *lower, const double *prior_mean,
                                      const double *shift, const double *precision, double *mean, double *variance,
                                      double *log_det, double *whitened) {
    int failed = 0;
    pymc_ep_user *users = pymc_ep_users(given);
    if (users == NULL)
        return 1;
#pragma omp parallel for schedule(dynamic, 16) reduction(| : failed)
    for (npy_intp u = 0; u < given->n_users; u++) {
        const pymc_ep_user *user = users + u;
        const npy_intp n = user->n, begin = user->pair;
        double *white = whitened + user->entry, *held = (double *)malloc(((2 * n + 1) * n + 1) * sizeof(double));
        if (held == NULL) {
            failed = 1;
            continue;
        }
        log_det[u] = pymc_ep_whiten(user, lower + user->entry, precision + begin, held, white);
        pymc_ep_means(user, white, prior_mean + begin, shift + begin, precision + begin, held + 2 * n * n,
                      mean + begin);
        for (npy_intp k = 0; k < user->n_pairs; k++) {
            const double *one = white + user->firsts[k] * n, *two = white + user->seconds[k] * n;
            double square = 0.0;
#pragma omp simd reduction(+ : square)
            for (npy_intp c = 0; c < n; c++)
                square += (one[c] - two[c]) * (one[c] - two[c]);
            variance[begin + k] = square;
        }
        free(held);
    }
    free(users);
    return failed;
}

static int pymc_ep_difference_means(const pymc_ep_comparisons *given, const double *whitened, const double *prior_mean,
                                    const double *shift, const double *precision, double *mean) {
    int failed = 0;
    pymc_ep_user *users = pymc_ep_users(given);
    if (users == NULL)
        return 1;
#pragma omp parallel for schedule(dynamic, 16) reduction(| : failed)
    for (npy_intp u = 0; u < given->n_users; u++) {
        const npy_intp begin = users[u].pair;
        double *pull = (double *)malloc((users[u].n + 1) * sizeof(double));
        if (pull == NULL) {
            failed = 1;
            continue;
        }
        pymc_ep_means(users + u, whitened + users[u].entry, prior_mean + begin, shift + begin, precision + begin, pull,
                      mean + begin);
        free(pull);
    }
    free(users);
    return failed;
}

static int pymc_ep_precision_losses(const pymc_ep_comparisons *given, const double *whitened, const double *precision,
                                    double *out) {
    int failed = 0;
    pymc_ep_user *users = pymc_ep_users(given);
    if (users == NULL)
        return 1;
#pragma omp parallel for schedule(dynamic, 16) reduction(| : failed)
    for (npy_intp u = 0; u < given->n_users; u++) {
        const pymc_ep_user *user = users + u;
        const npy_intp n = user->n;
        double *matrix = out + user->entry, *through = (double *)calloc(n * n + 1, sizeof(double));
        if (through == NULL) {
            failed = 1;
            continue;
        }
        pymc_ep_add_weighted(user, precision + user->pair, whitened + user->entry, through);
        memset(matrix, 0, n * n * sizeof(double));
        for (npy_intp k = 0; k < user->n_pairs; k++) {
            const npy_intp i = user->firsts[k], j = user->seconds[k];
            const double p = precision[user->pair + k];
            matrix[i * n + i] += p;
            matrix[j * n + j] += p;
            matrix[i * n + j] -= p;
            matrix[j * n + i] -= p;
        }
        for (npy_intp r = 0; r < n; r++)
            for (npy_intp c = 0; c <= r; c++) {
                const double value = pymc_ep_dot(n, through + r * n, through + c * n);
                matrix[r * n + c] -= value;
                if (c < r)
                    matrix[c * n + r] -= value;
            }
        free(through);
    }
    free(users);
    return failed;
}
