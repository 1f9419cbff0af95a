# Seconds of lme4 and glmmTMB on data of the kind of small_models.py: medians, as lines of model, lme4, glmmTMB.
#
#     Rscript docs/benchmarks/mixed_models.R [REPETITIONS]
#
# Loading R and the packages is left out. Needs lme4 and glmmTMB.

suppressPackageStartupMessages({
  library(lme4)
  library(glmmTMB)
})

radon <- function() {
  county <- c(1:85, sample(85, 834, TRUE))
  floor <- rbinom(919, 1, 0.5)
  uranium <- rnorm(85)
  effect <- 0.3 * uranium + rnorm(85, 0, 0.3)
  y <- 1.3 - 0.6 * floor + effect[county] + rnorm(919, 0, 0.7)
  data.frame(y, floor, uranium = uranium[county], county = factor(county))
}

sleep <- function() {
  subject <- rep(1:18, each = 10)
  day <- rep(0:9, 18)
  y <- 250 + 10 * day + rnorm(18, 0, 25)[subject] + rnorm(18, 0, 6)[subject] * day + rnorm(180, 0, 25)
  data.frame(y, day, subject = factor(subject))
}

grouped <- function(binary) {
  group <- c(1:100, sample(100, 300, TRUE))
  eta <- if (binary) rnorm(100, 0, 1.5) else rnorm(100, 1, 0.5)
  y <- if (binary) rbinom(400, 1, plogis(eta[group])) else rpois(400, exp(eta[group]))
  data.frame(y, group = factor(group))
}

crossed <- function() {
  cells <- expand.grid(column = 1:15, row = 1:20)
  y <- rpois(300, exp(1 + rnorm(20, 0, 0.4)[cells$row] + rnorm(15, 0, 0.3)[cells$column]))
  data.frame(y, row = factor(cells$row), column = factor(cells$column))
}

seeds <- function() {
  data.frame(
    y = c(10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3),
    n = c(39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7),
    seed = rep(0:1, c(11, 10)), extract = rep(c(0, 1, 0, 1), c(5, 6, 5, 5)), plate = factor(1:21)
  )
}

models <- list(
  "919 normal, 85 counties" = list(radon, y ~ floor + uranium + (1 | county), NULL),
  "180 normal, 18 levels and slopes" = list(sleep, y ~ day + (1 | subject) + (0 + day | subject), NULL),
  "400 counts, 100 groups" = list(function() grouped(FALSE), y ~ 1 + (1 | group), poisson()),
  "400 binary, 100 groups" = list(function() grouped(TRUE), y ~ 1 + (1 | group), binomial()),
  "300 counts, 20 x 15 crossed" = list(crossed, y ~ 1 + (1 | row) + (1 | column), poisson()),
  "Seeds, 21 binomial" = list(seeds, cbind(y, n - y) ~ seed * extract + (1 | plate), binomial())
)

given <- commandArgs(TRUE)
repetitions <- if (length(given)) as.integer(given[1]) else 5
set.seed(0)
for (name in names(models)) {
  model <- models[[name]]
  spent <- sapply(seq_len(repetitions + 1), function(k) {
    data <- model[[1]]()
    family <- model[[3]]
    by_lme4 <- if (is.null(family)) quote(lmer(model[[2]], data)) else quote(glmer(model[[2]], data, family))
    by_tmb <- quote(glmmTMB(model[[2]], data, if (is.null(family)) gaussian() else family))
    c(system.time(suppressMessages(eval(by_lme4)))[[1]], system.time(suppressMessages(eval(by_tmb)))[[1]])
  })
  # The first of each compiles and loads.
  medians <- apply(spent[, -1, drop = FALSE], 1, median)
  cat(name, sprintf("%.4f", medians), sep = "\t")
  cat("\n")
}
cat("versions", as.character(packageVersion("lme4")), as.character(packageVersion("glmmTMB")), sep = "\t")
cat("\n")
