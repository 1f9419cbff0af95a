/* Tilted moments of one site of two predictors by the rule of body_of_two.py, function by function.

   The text is compiled for each site after its constants and after

   known                        struct of the results of `fixed`
   point                        struct of a log t, its two slopes and its derivatives in parameters
   density(f, g, a, n, out)     the same, in entries of an array that are n apart */

#define ALL (SUMS + PARAMETERS)
#define ENDS (2 * MOST_ROWS)
#define APART static __attribute__((noinline, noclone)) /* second copies would take time to compile */

static const double grid[] = GRID;
enum { POINTS = sizeof(grid) / sizeof(grid[0]) };

typedef struct { double m_1, m_2, l_1, l_21, l_2, p; const known *a; } cavity;
typedef struct { double f, z_1, z_2, h_11, h_12, h_22; } peak;
typedef struct { cavity at; double z_1, z_2, s_1, s_21, s_2; point origin; } frame;
/* `evaluate` fills weights and values, which follow one another. */
typedef struct { double column[LANES], weights[LANES], values[2 + PARAMETERS][LANES]; } part;
typedef struct { double top, at, first, last; } row;
typedef struct { double low, high; } ends_of;

/* Log t, its slopes and its derivatives in parameters at n points, in rows. The only copy of the density. */
APART void evaluate(int n, const double *__restrict f, const double *__restrict g, const known *a,
                    double *__restrict values)
{
  const known held = *a;
  for (int j = 0; j < n; j++) density(f[j], g[j], &held, n, values + j);
}

static peak slopes_at(double z_1, double z_2, const cavity *c)
{
  const double f = c->m_1 + c->l_1 * z_1, g = c->m_2 + c->l_21 * z_1 + c->l_2 * z_2;
  point here;
  evaluate(1, &f, &g, c->a, here.value);
  const double t = here.value[0] <= HIGHEST ? here.value[0] : NAN, s_1 = here.value[1], s_2 = here.value[2];
  const peak found = {c->p * t - 0.5 * (z_1 * z_1 + z_2 * z_2), z_1, z_2, c->p * (c->l_1 * s_1 + c->l_21 * s_2) - z_1,
                      c->p * c->l_2 * s_2 - z_2, 0.0};
  return found;
}

static peak mode_from(const cavity *c)
{
  peak here = slopes_at(0.0, 0.0, c);
  for (int k = 0; k < STEPS; k++) {
    const double g_1 = here.h_11, g_2 = here.h_12;
    const peak b = slopes_at(here.z_1 + DIFFERENCE, here.z_2, c), d = slopes_at(here.z_1, here.z_2 + DIFFERENCE, c);
    const double h_11 = (g_1 - b.h_11) / DIFFERENCE, h_22 = (g_2 - d.h_12) / DIFFERENCE;
    const double h_12 = 0.5 * (g_2 - b.h_12 + g_1 - d.h_11) / DIFFERENCE;
    const double least = 0.5 * (h_11 + h_22) - sqrt(0.25 * (h_11 - h_22) * (h_11 - h_22) + h_12 * h_12);
    if (!isfinite(least)) break;
    const double more = fmax(LEAST - least, 0.0), det = (h_11 + more) * (h_22 + more) - h_12 * h_12;
    const double step_1 = ((h_22 + more) * g_1 - h_12 * g_2) / det, step_2 = ((h_11 + more) * g_2 - h_12 * g_1) / det;
    if (step_1 * g_1 + step_2 * g_2 < FOUND) {
      const peak found = {here.f, here.z_1, here.z_2, more == 0.0 ? h_11 : 0.0, h_12, h_22};
      return found;
    }
    double scale = fmin(1.0, FAR / sqrt(step_1 * step_1 + step_2 * step_2));
    bool moved = false;
    for (int j = 0; j < HALVINGS && !moved; j++, scale *= 0.25) {
      const peak next = slopes_at(here.z_1 + scale * step_1, here.z_2 + scale * step_2, c);
      moved = next.f > here.f && isfinite(next.h_11) && isfinite(next.h_12);
      if (moved) here = next;
    }
    if (!moved) break;
  }
  const peak none = {here.f, here.z_1, here.z_2, 0.0, 0.0, 0.0};
  return none;
}

static void weigh(double first, double place, double step, const frame *s, part *b)
{
  const double u_2 = place * step, p = s->at.p, z_1 = s->z_1, z_2 = s->z_2;
  double f[LANES], g[LANES], lower[LANES];
  for (int j = 0; j < LANES; j++) {
    const double u_1 = (first + j) * step, d_1 = s->s_1 * u_1, d_2 = s->s_21 * u_1 + s->s_2 * u_2;
    const double x_1 = z_1 + d_1, x_2 = z_2 + d_2;
    b->column[j] = u_1;
    f[j] = s->at.m_1 + s->at.l_1 * x_1;
    g[j] = s->at.m_2 + s->at.l_21 * x_1 + s->at.l_2 * x_2;
    lower[j] = d_1 * (z_1 + 0.5 * d_1) + d_2 * (z_2 + 0.5 * d_2);
  }
  evaluate(LANES, f, g, s->at.a, b->weights);
  for (int j = 0; j < LANES; j++) {
    const double t = b->weights[j];
    b->weights[j] = select(truth(t > HIGHEST), NAN, p * (t - s->origin.value[0]) - lower[j]);
  }
  for (int k = 0; k < 2 + PARAMETERS; k++)
    for (int j = 0; j < LANES; j++) b->values[k][j] -= s->origin.value[1 + k];
}

APART void add(double u_2, part *b, double *total)
{
  double t_0 = 0, t_1 = 0, t_11 = 0, t_111 = 0, g_1 = 0, g_2 = 0, u_g_1 = 0, u_g_2 = 0, bad = 0;
#pragma omp simd reduction(+ : t_0, t_1, t_11, t_111, g_1, g_2, u_g_1, u_g_2, bad)
  for (int j = 0; j < LANES; j++) {
    const double log_weight = b->weights[j], u = b->column[j];
    const bool none = log_weight < -4.0 * DROP;
    const double value = exp(log_weight);
    const double w = none ? 0.0 : value, first = none ? 0.0 : b->values[0][j], second = none ? 0.0 : b->values[1][j];
    const double w_1 = w * u, w_11 = w_1 * u;
    bad += log_weight < HIGHER ? 0.0 : 1.0;
    t_0 += w; t_1 += w_1; t_11 += w_11; t_111 += w_11 * u;
    g_1 += w * first; g_2 += w * second; u_g_1 += w_1 * first; u_g_2 += w_1 * second;
    b->weights[j] = w;
  }
  const double u_22 = u_2 * u_2;
  const double sums[SUMS] = {t_0, t_1, t_0 * u_2, t_11, t_1 * u_2, t_0 * u_22, t_111, t_11 * u_2, t_1 * u_22,
                             t_0 * u_22 * u_2, g_1, g_2, u_g_1, u_g_2, g_1 * u_2, g_2 * u_2, bad};
  for (int k = 0; k < SUMS; k++) total[k] += sums[k];
  for (int k = 0; k < PARAMETERS; k++) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < LANES; j++) sum += b->weights[j] > 0.0 ? b->weights[j] * b->values[2 + k][j] : 0.0;
    total[SUMS + k] += sum;
  }
}

/* Add a part of a row, and its highest node to the row's; return the log weights at its ends. */
static ends_of part_of(double first, double place, double step, const frame *s, part *b, double *total, row *found)
{
  weigh(first, place, step, s, b);
  for (int j = 0; j < LANES; j++)
    if (b->weights[j] > found->top) { found->top = b->weights[j]; found->at = first + j; }
  const ends_of ends = {b->weights[0], b->weights[LANES - 1]};
  add(place * step, b, total);
  return ends;
}

static row row_of(double centre, double place, double step, const frame *s, part *b, double *total)
{
  row found = {-INFINITY, centre, centre - LANES / 2, centre + LANES / 2};
  ends_of ends = part_of(found.first, place, step, s, b, total, &found);
  for (int k = 0; ends.low > -DROP && k < MOST_PARTS; k++)
    ends.low = part_of(found.first -= LANES, place, step, s, b, total, &found).low;
  for (int k = 0; ends.high > -DROP && k < MOST_PARTS; k++, found.last += LANES)
    ends.high = part_of(found.last, place, step, s, b, total, &found).high;
  if (ends.low > -DROP || ends.high > -DROP) total[SUMS - 1] += 1.0;
  found.last -= 1.0;
  return found;
}

static void lattice(double start_1, double start_2, double step, const frame *s, double *total, double ends[2][ENDS])
{
  part b;
  for (int k = 0; k < ALL; k++) total[k] = 0.0;
  for (int k = 0; k < ENDS; k++) { ends[0][k] = INFINITY; ends[1][k] = -INFINITY; }
  for (int side = 0; side < 2; side++) {
    double centre = start_1;
    for (int k = side == 0 ? 0 : -1;; k += side == 0 ? 1 : -1) {
      if (k >= MOST_ROWS || k < -MOST_ROWS) { total[SUMS - 1] += 1.0; break; }
      const row found = row_of(centre, start_2 + k, step, s, &b, total);
      if (!(found.top > -DROP)) break;
      ends[0][MOST_ROWS + k] = found.first;
      ends[1][MOST_ROWS + k] = found.last;
      centre = found.at;
    }
  }
}

static bool agree(const double *one, const double *other, const point *origin)
{
  const double total = one[0] + other[0], limit = TOLERANCE * total;
  bool same = one[SUMS - 1] + other[SUMS - 1] == 0.0;
  for (int k = 0; k < 6; k++) same = same && fabs(one[k] - other[k]) < (k < 3 ? 1.0 : 10.0) * limit;
  for (int k = 0; k < PARAMETERS; k++) {
    const double size = total * fabs(origin->value[3 + k]) + fabs(one[SUMS + k] + other[SUMS + k]);
    same = same && fabs(one[SUMS + k] - other[SUMS + k]) <= 10.0 * TOLERANCE * size;
  }
  return same;
}

/* Sums over all nodes; returns the area of a node, zero if not accepted. */
static double summed(double step, const frame *s, double *total, double ends[2][ENDS])
{
  double other[ALL], others[2][ENDS];
  lattice(0.0, 0.0, step, s, total, ends);
  for (int level = 0; level < LEVELS; level++, step *= 0.5) {
    lattice(0.5, 0.5, step, s, other, others);
    const bool same = agree(total, other, &s->origin);
    for (int k = 0; k < ALL; k++) total[k] += other[k];
    if (same) return 0.5 * step * step;
    if (total[SUMS - 1] > 0.0) break;
    for (int side = 0; side < 2; side++) {
      lattice(0.5 * side, 0.5 - 0.5 * side, step, s, other, others);
      for (int k = 0; k < ALL; k++) total[k] += other[k];
    }
  }
  return 0.0;
}

static bool hidden(double f, double step, const frame *s, double ends[2][ENDS])
{
  const cavity *c = &s->at;
  for (int axis = 0; axis < 2; axis++) {
    for (int k = 0; k < POINTS; k++) {
      double x[2] = {0.0, 0.0}, bend = 0.0;
      const double spacing = (axis == 0 ? s->s_2 : s->s_1) * step;
      x[axis] = grid[k];
      for (int j = 0; j < ALONG; j++) {
        const peak here = slopes_at(x[0], x[1], c);
        const peak near = axis == 0 ? slopes_at(x[0], x[1] + DIFFERENCE, c) : slopes_at(x[0] + DIFFERENCE, x[1], c);
        const double slope = axis == 0 ? here.h_12 : here.h_11, after = axis == 0 ? near.h_12 : near.h_11;
        bend = (slope - after) / DIFFERENCE;
        const double move = slope / fmax(bend, LEAST);
        if (!isfinite(move)) break;
        const double taken = fmin(fmax(move, -FAR), FAR);
        x[1 - axis] += taken;
        if (taken * slope < FOUND) break;
      }
      if (!(slopes_at(x[0], x[1], c).f > f - SEEN)) continue;
      if (bend * spacing * spacing > NARROW) return true;
      const double u_1 = (x[0] - s->z_1) / s->s_1, u_2 = (x[1] - s->z_2 - s->s_21 * u_1) / s->s_2;
      const double place = floor(u_2 / step + 0.5) + MOST_ROWS;
      if (!(place >= 0 && place < ENDS)) return true;
      if (!(ends[0][(int)place] - 1.0 <= u_1 / step && u_1 / step <= ends[1][(int)place] + 1.0)) return true;
    }
  }
  return false;
}

/* Fill the fields of one site, `n` apart, which are zero before. */
static void site_moments(const known *a, double m_1, double m_2, double v_1, double v_2, double v_12, double p,
                         double *out, npy_intp n)
{
  frame s;
  const double l_1 = sqrt(v_1), l_21 = v_12 / l_1, l_2 = sqrt(v_2 - l_21 * l_21);
  const cavity at = {m_1, m_2, l_1, l_21, l_2, p, a};
  const peak mode = mode_from(&at);
  if (!(mode.h_11 > 0.0)) return;
  const double det_h = mode.h_11 * mode.h_22 - mode.h_12 * mode.h_12;
  s.at = at;
  s.z_1 = mode.z_1;
  s.z_2 = mode.z_2;
  s.s_1 = sqrt(mode.h_22 / det_h);
  s.s_21 = -mode.h_12 / det_h / s.s_1;
  s.s_2 = sqrt(mode.h_11 / det_h - s.s_21 * s.s_21);
  const double x_1 = m_1 + l_1 * s.z_1, x_2 = m_2 + l_21 * s.z_1 + l_2 * s.z_2;
  evaluate(1, &x_1, &x_2, a, s.origin.value);
  double total[ALL], ends[2][ENDS];
  const double area = summed(STEP, &s, total, ends);
  if (!(area > 0.0) || hidden(mode.f, STEP, &s, ends)) return;
  const double w = total[0], u_1 = total[1] / w, u_2 = total[2] / w;
  const double c_11 = total[3] / w - u_1 * u_1, c_12 = total[4] / w - u_1 * u_2, c_22 = total[5] / w - u_2 * u_2;
  const double g_1 = total[10] / w, g_2 = total[11] / w;
  const double t_1 = l_1 * s.s_1, t_21 = l_21 * s.s_1 + l_2 * s.s_21, t_2 = l_2 * s.s_2;
  /* Covariance of u and g, and C^-1 times it; then T^-T. */
  const double b_11 = total[12] / w - u_1 * g_1, b_12 = total[13] / w - u_1 * g_2;
  const double b_21 = total[14] / w - u_2 * g_1, b_22 = total[15] / w - u_2 * g_2, det = c_11 * c_22 - c_12 * c_12;
  const double e_11 = (c_22 * b_11 - c_12 * b_21) / det, e_12 = (c_22 * b_12 - c_12 * b_22) / det;
  const double e_21 = (c_11 * b_21 - c_12 * b_11) / det, e_22 = (c_11 * b_22 - c_12 * b_12) / det;
  const double q_21 = e_21 / t_2, q_22 = e_22 / t_2, q_11 = (e_11 - t_21 * q_21) / t_1;
  const double q_12 = (e_12 - t_21 * q_22) / t_1;
  const double d_111 = total[6] / w - 3.0 * u_1 * c_11 - u_1 * u_1 * u_1;
  const double d_112 = total[7] / w - 2.0 * u_1 * c_12 - u_2 * c_11 - u_1 * u_1 * u_2;
  const double d_122 = total[8] / w - 2.0 * u_2 * c_12 - u_1 * c_22 - u_1 * u_2 * u_2;
  const double d_222 = total[9] / w - 3.0 * u_2 * c_22 - u_2 * u_2 * u_2;
  const double fields[] = {
    mode.f + log(area * s.s_1 * s.s_2 * w) - LOG_2_PI,
    x_1 + t_1 * u_1,
    x_2 + t_21 * u_1 + t_2 * u_2,
    t_1 * t_1 * c_11,
    t_21 * t_21 * c_11 + 2.0 * t_21 * t_2 * c_12 + t_2 * t_2 * c_22,
    t_1 * (t_21 * c_11 + t_2 * c_12),
    p * (s.origin.value[1] + g_1),
    p * (s.origin.value[2] + g_2),
    -p * q_11,
    -p * q_22,
    -0.5 * p * (q_12 + q_21),
    t_1 * t_1 * t_1 * d_111,
    t_1 * t_1 * (t_21 * d_111 + t_2 * d_112),
    t_1 * (t_21 * t_21 * d_111 + 2.0 * t_21 * t_2 * d_112 + t_2 * t_2 * d_122),
    t_21 * t_21 * t_21 * d_111 + 3.0 * t_21 * t_21 * t_2 * d_112 + 3.0 * t_21 * t_2 * t_2 * d_122 +
      t_2 * t_2 * t_2 * d_222,
  };
  enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };
  for (int k = 0; k < FIELDS; k++) out[k * n] = fields[k];
  for (int k = 0; k < PARAMETERS; k++) out[(FIELDS + k) * n] = p * (s.origin.value[3 + k] + total[SUMS + k] / w);
  out[(FIELDS + PARAMETERS) * n] = 1.0;
}

#undef ALL
#undef ENDS
#undef APART
