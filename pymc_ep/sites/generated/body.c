/* Tilted moments of one site by the rule of body.py, function by function.

   The text is compiled for each site after the constants of body.py and of op.Rule, and after

   known                    struct of the results of `fixed`
   point                    struct of a log t, its slope and its derivatives in parameters
   density(f, a, n, out)    the same, in entries of an array that are n apart */

#define LANES (2 * SIDE)
#define ROWS (8 + PARAMETERS)
#define APART static __attribute__((noinline, noclone)) /* second copies would take time to compile */

static const double grid[] = GRID;
enum { POINTS = sizeof(grid) / sizeof(grid[0]) };

typedef struct { double x, curvature; } peak;
/* Expansion point, first coarse step, and distance of another peak. */
typedef struct { double x, spacing, beside; } start;
/* `evaluate` fills weights and values, which follow one another. */
typedef struct { double offsets[LANES], weights[LANES], values[1 + PARAMETERS][LANES]; } block;

/* Log t, its slope and its derivatives in parameters at n points, in rows. The only copy of the density. */
APART void evaluate(int n, const double *__restrict f, const known *a, double *__restrict values)
{
  const known held = *a;
  for (int j = 0; j < n; j++) density(f[j], &held, n, values + j);
}

static double slope_at(double x, double m, double v, double p, const known *a)
{
  point here;
  evaluate(1, &x, a, here.value);
  return p * here.value[1] - (x - m) / v;
}

static peak searched(double x, double rise, double z, double low, double high, double m, double v, double p,
                     const known *a)
{
  const double far = 4.0 * sqrt(v);
  for (int k = 0; k < SEARCHES; k++) {
    const double before = x, rise_before = rise;
    x = z;
    rise = slope_at(x, m, v, p, a);
    const double curvature = (rise_before - rise) / (x - before);
    if (isnan(rise)) break;
    if (rise * rise < FOUND * curvature && (x - before) * (x - before) * curvature < 4.0) {
      const peak found = {x, curvature};
      return found;
    }
    if (rise > 0) low = x; else high = x;
    z = x + (curvature > 0 ? rise / curvature : (rise > 0 ? far : -far));
    if (!(low < z && z < high)) z = 0.5 * (low + high);
    if (!isfinite(z)) z = x + (rise > 0 ? far : -far);
  }
  const peak none = {x, 0.0};
  return none;
}

#if PEAKED
static start begin(double m, double v, double p, const known *a, const double *peaks, npy_intp n, double *level)
{
  const double first = peaks[0], second = peaks[n], wide = peaks[2 * n], other = peaks[3 * n];
  point here, there;
  evaluate(1, &first, a, here.value);
  evaluate(1, &second, a, there.value);
  const double l_1 = p * here.value[0] - 0.5 * (first - m) * (first - m) / v;
  const double l_2 = p * there.value[0] - 0.5 * (second - m) * (second - m) / v;
  const bool both = fabs(l_1 - l_2) < BESIDE;
  const double width = both ? fmin(wide, other) : l_1 >= l_2 ? wide : other;
  const start at = {l_1 >= l_2 ? first : second, fmin(2.0 * STEP * width, POLES * peaks[4 * n]),
                    both ? fabs(first - second) : 0.0};
  return at;
}
#elif SCANNED
static peak find_mode(double m, double v, double p, const known *a, double *level)
{
  const double sd = sqrt(v);
  const peak none = {m, 0.0};
  double f[POINTS], values[2 + PARAMETERS][POINTS], slope[POINTS], top = -INFINITY;
  int peaks = 0, place = 0;
  for (int j = 0; j < POINTS; j++) f[j] = m + grid[j] * sd;
  evaluate(POINTS, f, a, values[0]);
  for (int j = 0; j < POINTS; j++) {
    const double offset = grid[j] * sd, t = values[0][j], s = values[1][j];
    const mask good = truth((t <= HIGHEST) & (t > -INFINITY));
    level[j] = select(good, p * t, -INFINITY) - 0.5 * grid[j] * grid[j];
    slope[j] = select(good & truth(fabs(s) < INFINITY), p * s, 0.0) - offset / v;
  }
  for (int j = 0; j < POINTS; j++) top = level[j] > top ? level[j] : top;
  for (int j = 0; j + 1 < POINTS; j++) {
    if (slope[j] > 0 && slope[j + 1] <= 0) { peaks++; place = j; }
    const double upper = fmax(level[j], level[j + 1]), lower = fmin(level[j], level[j + 1]);
    if (upper > top - TESTED) {
      const double steeper = fmax(fabs(slope[j]), fabs(slope[j + 1])) * (grid[j + 1] - grid[j]) * sd;
      if (!(upper - lower <= (1.0 + HIDDEN) * steeper + HIDDEN)) return none;
    }
  }
  if (peaks != 1 || !isfinite(top)) return none;
  const double low = m + grid[place] * sd, high = m + grid[place + 1] * sd;
  const double rise = slope[place], fall = slope[place + 1];
  return searched(low, rise, low + (high - low) * (rise / (rise - fall)), low, high, m, v, p, a);
}

static double outside(double reach, const double *at_ends, double x, double m, double v, double height,
                      double curvature, const double *level)
{
  const double sd = sqrt(v);
  double total = 0.0;
  for (int j = 0; j + 1 < POINTS; j++) {
    const double low = m + grid[j] * sd - x, high = m + grid[j + 1] * sd - x;
    if (high > reach) {
      const double top = low >= reach ? level[j] - height : at_ends[1];
      total += (high - fmax(low, reach)) * exp(top) * (1.0 + curvature * high * high);
    }
    if (low < -reach) {
      const double top = high <= -reach ? level[j + 1] - height : at_ends[0];
      total += (fmin(high, -reach) - low) * exp(top) * (1.0 + curvature * low * low);
    }
  }
  return total;
}
#else
static peak find_mode(double m, double v, double p, const known *a, double *level)
{
  const double rise = slope_at(m, m, v, p, a), sd = sqrt(v);
  const double step = fmin(fmax(fabs(rise * v), 0.3 * sd), 3.0 * sd);
  const peak none = {m, 0.0};
  if (!(step > 0) || isnan(rise)) return none;
  if (rise > 0) return searched(m, rise, m + step, m, INFINITY, m, v, p, a);
  return searched(m, rise, m - step, -INFINITY, m, m, v, p, a);
}
#endif

#if !PEAKED
static start begin(double m, double v, double p, const known *a, const double *, npy_intp, double *level)
{
  const peak found = find_mode(m, v, p, a, level);
  const start at = {found.x, found.curvature > 0 ? 2.0 * STEP / sqrt(found.curvature) : 0.0, 0.0};
  return at;
}
#endif

static void weigh(double start, double spacing, double x, double m, double v, double p, const known *a,
                  const point *origin, block *b)
{
  const double q = 0.5 / v, tilt = 2.0 * (x - m);
  double f[LANES];
  for (int j = 0; j < LANES; j++) {
    b->offsets[j] = (j < SIDE ? -1.0 * (start + j + 1) : start + (j - SIDE) + 1) * spacing;
    f[j] = x + b->offsets[j];
  }
  evaluate(LANES, f, a, b->weights);
  for (int j = 0; j < LANES; j++) {
    const double offset = b->offsets[j], t = b->weights[j], s = b->values[0][j];
    const double weight = p * (t - origin->value[0] + s * (offset - (f[j] - x))) - offset * (offset + tilt) * q;
    b->weights[j] = select(truth(t > HIGHEST), NAN, weight);
  }
  for (int k = 0; k <= PARAMETERS; k++)
    for (int j = 0; j < LANES; j++) b->values[k][j] -= origin->value[1 + k];
}

APART void add(block *b, double *total)
{
  double t0 = 0, t1 = 0, t2 = 0, t3 = 0, t4 = 0, t5 = 0, t6 = 0, bad = 0;
#pragma omp simd reduction(+ : t0, t1, t2, t3, t4, t5, t6, bad)
  for (int j = 0; j < LANES; j++) {
    const double log_weight = b->weights[j], d = b->offsets[j];
    const bool none = log_weight < NO_WEIGHT;
    const double value = exp(log_weight);
    const double w = none ? 0.0 : value, g = none ? 0.0 : b->values[0][j];
    const double w1 = w * d, w2 = w1 * d, w3 = w2 * d;
    bad += log_weight < HIGHER ? 0.0 : 1.0;
    t0 += w; t1 += w1; t2 += w2; t3 += w * g; t4 += w1 * g; t5 += w3; t6 += w3 * d;
    b->weights[j] = w;
  }
  total[0] += t0; total[1] += t1; total[2] += t2; total[3] += t3; total[4] += t4; total[5] += t5; total[6] += t6;
  for (int k = 0; k < PARAMETERS; k++) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < LANES; j++) sum += b->weights[j] > 0.0 ? b->weights[j] * b->values[1 + k][j] : 0.0;
    total[7 + k] += sum;
  }
  total[ROWS - 1] += bad;
}

static bool agree(const double *even, const double *odd, double v, const point *origin)
{
  const double total = even[0] + odd[0], shift = (even[1] + odd[1]) / total;
  const double variance = (even[2] + odd[2]) / total - shift * shift, limit = TOLERANCE * total;
  bool same = fabs(even[0] - odd[0]) < limit && fabs(even[1] - odd[1]) < limit * sqrt(variance) &&
              fabs(even[2] - odd[2]) < limit * variance && fabs(even[3] - odd[3]) * sqrt(v) < limit &&
              fabs(even[4] - odd[4]) < TOLERANCE * fabs(even[4] + odd[4]) + NOISE * total * variance / v;
  for (int k = 0; k < PARAMETERS; k++) {
    const double size = total * fabs(origin->value[2 + k]) + fabs(even[7 + k] + odd[7 + k]);
    same = same && fabs(even[7 + k] - odd[7 + k]) <= TOLERANCE * size;
  }
  return same;
}

/* Sums over the nodes, in `even`; returns their spacing, zero if not accepted. */
static double summed(double x, double m, double v, double p, const known *a, const point *origin, double spacing,
                     double beside, double *even, double *reach, double *at_ends)
{
  block b;
  double odd[ROWS];
  int blocks = 0;
  bool dropped = false;
  for (int k = 0; k < ROWS; k++) even[k] = 0.0;
  even[0] = 1.0;
  while (!dropped && blocks < MOST_BLOCKS) {
    weigh(1.0 * blocks * SIDE, spacing, x, m, v, p, a, origin, &b);
    at_ends[0] = b.weights[SIDE - 1];
    at_ends[1] = b.weights[LANES - 1];
    add(&b, even);
    blocks++;
    dropped = at_ends[0] < -DROP && at_ends[1] < -DROP && blocks * SIDE * spacing >= beside;
  }
  *reach = blocks * SIDE * spacing;
  if (!dropped || even[ROWS - 1] > 0) return 0.0;
  for (int level = 0; level < LEVELS; level++) {
    for (int k = 0; k < ROWS; k++) odd[k] = 0.0;
    for (int k = 0; k < blocks; k++) {
      weigh(k * SIDE - 0.5, spacing, x, m, v, p, a, origin, &b);
      add(&b, odd);
    }
    if (odd[ROWS - 1] > 0) break;
    const bool same = agree(even, odd, v, origin);
    for (int k = 0; k < ROWS; k++) even[k] += odd[k];
    spacing *= 0.5;
    blocks *= 2;
    if (same) return spacing;
  }
  return 0.0;
}

/* Fill the fields of one site, `n` apart, which are zero before. */
static void site_moments(const known *a, double m, double v, double p, const double *peaks, double *out, npy_intp n)
{
  double level[POINTS], even[ROWS], reach, at_ends[2];
  const start at = begin(m, v, p, a, peaks, n, level);
  if (!(at.spacing > 0)) return;
  const double x = at.x;
  point origin;
  evaluate(1, &x, a, origin.value);
  const double spacing = summed(x, m, v, p, a, &origin, at.spacing, at.beside, even, &reach, at_ends);
  if (!(spacing > 0)) return;
  const double t = origin.value[0], g = origin.value[1], height = p * t - 0.5 * (x - m) * (x - m) / v;
  const double total = even[0], shift = even[1] / total, square = even[2] / total - shift * shift;
  const double gradient = even[3] / total, precision = -p * (even[4] / total - shift * gradient) / square;
#if SCANNED
  if (!(outside(reach, at_ends, x, m, v, height, 1.0 / square, level) < LOST * spacing * total)) return;
  const double jump = (p * (g + gradient) - (x - m + shift) / v) * sqrt(v);
  if (!(fabs(jump) <= JUMP * fmax(1.0, fabs(p * (g + gradient)) * sqrt(v)))) return;
#endif
  const double third = even[5] / total - 3.0 * shift * even[2] / total + 2.0 * shift * shift * shift;
  const double fourth = even[6] / total - 4.0 * shift * even[5] / total + 6.0 * shift * shift * even[2] / total -
                        3.0 * shift * shift * shift * shift;
  out[0] = height + log(spacing * total) - HALF_LOG_2_PI - 0.5 * log(v);
  out[n] = x + shift;
  out[2 * n] = square;
  out[3 * n] = p * (g + gradient);
  out[4 * n] = LOG_CONCAVE && precision < 0 ? 0.0 : precision;
  out[5 * n] = third / (square * sqrt(square));
  out[6 * n] = fourth / (square * square) - 3.0;
  for (int k = 0; k < PARAMETERS; k++) out[(7 + k) * n] = p * (origin.value[2 + k] + even[7 + k] / total);
  out[(ROWS - 1) * n] = 1.0;
}

#undef LANES
#undef ROWS
#undef APART
