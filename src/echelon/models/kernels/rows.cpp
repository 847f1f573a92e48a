// Small things done to every row: embedding, ReLU with dropout, and the loss of a row of logits.
#include <omp.h>

#include <cmath>
#include <vector>

#include "dropout.h"
#include "numbers.h"

struct Embed {
  long rows, width;
  uint64_t seed;
  long dropped_levels;
  float scale;  // of the embedding, before its position is added
};

// out[i] = dropout(table[tokens[i]] * scale + places[positions[i]])
extern "C" void embed_forward(const Embed* a, const float* table, const int64_t* tokens, const float* places,
                              const int64_t* positions, float* out) {
  long width = a->width;
  float scale = a->scale;
#pragma omp parallel
  {
    Factors dropout({a->seed, int(a->dropped_levels)}, width);
#pragma omp for schedule(static)
    for (long i = 0; i < a->rows; i++) {
      const float *factors = dropout.of_row(i), *word = table + tokens[i] * width;
      const float* place = places + positions[i] * width;
      float* to = out + i * width;
#pragma omp simd
      for (long d = 0; d < width; d++) to[d] = (word[d] * scale + place[d]) * factors[d];
    }
  }
}

// d_table[tokens[i]] += the gradient of row i. One thread: a token may come often, and the order must not vary.
extern "C" void embed_backward(const Embed* a, const int64_t* tokens, const float* d_out, float* d_table) {
  long width = a->width;
  float scale = a->scale;
  Factors dropout({a->seed, int(a->dropped_levels)}, width);
  for (long i = 0; i < a->rows; i++) {
    const float *factors = dropout.of_row(i), *given = d_out + i * width;
    float* to = d_table + tokens[i] * width;
#pragma omp simd
    for (long d = 0; d < width; d++) to[d] += given[d] * factors[d] * scale;
  }
}

struct Relu {
  long rows, width;
  uint64_t seed;
  long dropped_levels;
};

// x = dropout(max(x, 0)), in place.
template <typename T>
void relu_forward(const Relu& a, T* x) {
#pragma omp parallel
  {
    Factors dropout({a.seed, int(a.dropped_levels)}, a.width);
#pragma omp for schedule(static)
    for (long i = 0; i < a.rows; i++) {
      const float* factors = dropout.of_row(i);
      T* row = x + i * a.width;
#pragma omp simd
      for (long d = 0; d < a.width; d++) {
        float number = load(row[d]);
        store(row[d], (number < 0.0f ? 0.0f : number) * factors[d]);  // what is not a number stays none
      }
    }
  }
}

// The gradient in place: what forward made is above zero exactly where it passes, so no dropout is drawn again.
template <typename T>
void relu_backward(const Relu& a, const T* out, T* gradient) {
  float scale = Dropout{a.seed, int(a.dropped_levels)}.scale();
#pragma omp parallel for simd schedule(static)
  for (long i = 0; i < a.rows * a.width; i++)
    store(gradient[i], load(out[i]) > 0.0f ? load(gradient[i]) * scale : 0.0f);
}

struct Sums {
  long rows, width;
};

// sums[d] = the sum of column d: what the gradient of a bias is. Each thread sums its rows, then they are added up.
template <typename T>
void sum_of_rows(const Sums& a, const T* x, float* sums) {
  long width = a.width;
  std::vector<float> parts(width * omp_get_max_threads(), 0.0f);
#pragma omp parallel
  {
    float* part = parts.data() + width * omp_get_thread_num();
#pragma omp for schedule(static)
    for (long i = 0; i < a.rows; i++) {
      const T* row = x + i * width;
#pragma omp simd
      for (long d = 0; d < width; d++) part[d] += load(row[d]);
    }
  }
  for (long part = 0; part < omp_get_max_threads(); part++)
    for (long d = 0; d < width; d++) sums[d] = (part ? sums[d] : 0.0f) + parts[part * width + d];
}

struct Losses {
  long rows, vocabulary;
  float smoothing;
  float weight;  // of the divergences of twins
  long wants_gradient;
};

// A row of logits as a distribution: probability v is powers[v] * factor, its logarithm logit v - log_sum.
struct Softmax {
  float log_sum, factor;
  float mean;  // of the logits

  float nll(float logit) const { return log_sum - logit; }
  float smoothed(float logit, float smoothing) const {
    return (1.0f - smoothing) * nll(logit) + smoothing * (log_sum - mean);
  }
};

template <typename T>
Softmax softmax_of(const T* row, long count, float* powers) {
  float highest = load(row[0]), total = 0.0f, sum = 0.0f;
#pragma omp simd reduction(max : highest) reduction(+ : total)
  for (long v = 0; v < count; v++) {
    float logit = load(row[v]);
    powers[v] = logit;
    highest = highest > logit ? highest : logit;
    total += logit;
  }
#pragma omp simd reduction(+ : sum)
  for (long v = 0; v < count; v++) {
    powers[v] = exponential(powers[v] - highest);
    sum += powers[v];
  }
  return {highest + std::log(sum), 1.0f / sum, total / float(count)};
}

// The two losses of each row of logits; where wanted, the gradient of the smoothed one takes the logits' place.
template <typename T>
void losses_of_rows(const Losses& a, T* logits, const int64_t* targets, float* nlls, float* smoothed) {
  long count = a.vocabulary;
  float even = a.smoothing / float(count);
#pragma omp parallel
  {
    std::vector<float> scratch(count);
    float* powers = scratch.data();
#pragma omp for schedule(static)
    for (long i = 0; i < a.rows; i++) {
      T* row = logits + i * count;
      Softmax softmax = softmax_of(row, count, powers);
      float of_target = load(row[targets[i]]);
      nlls[i] = softmax.nll(of_target);
      smoothed[i] = softmax.smoothed(of_target, a.smoothing);
      if (!a.wants_gradient) continue;
      float at_target = powers[targets[i]] * softmax.factor - even - (1.0f - a.smoothing);
#pragma omp simd
      for (long v = 0; v < count; v++) store(row[v], powers[v] * softmax.factor - even);
      store(row[targets[i]], at_target);
    }
  }
}

// Twins are neighbouring rows with distributions p and q and the same target. Their loss is the mean of the two
// smoothed ones + weight * (sum p log(p/q) + sum q log(q/p)); where wanted, its gradient takes the logits' place.
template <typename T>
void losses_of_twins(const Losses& a, T* logits, const int64_t* targets, float* nlls, float* losses) {
  long count = a.vocabulary;
  float even = a.smoothing / float(count), weight = a.weight;
#pragma omp parallel
  {
    std::vector<float> scratch(2 * count);
    float *p = scratch.data(), *q = p + count;
#pragma omp for schedule(static)
    for (long i = 0; i < a.rows / 2; i++) {
      T *first = logits + 2 * i * count, *second = first + count;
      Softmax of_p = softmax_of(first, count, p), of_q = softmax_of(second, count, q);
      float shift = of_p.log_sum - of_q.log_sum, p_to_q = 0.0f, q_to_p = 0.0f;
#pragma omp simd reduction(+ : p_to_q, q_to_p)
      for (long v = 0; v < count; v++) {
        float log_ratio = load(first[v]) - load(second[v]) - shift;
        p[v] *= of_p.factor;
        q[v] *= of_q.factor;
        p_to_q += p[v] * log_ratio;
        q_to_p -= q[v] * log_ratio;
      }
      long target = targets[2 * i];
      float at_first = load(first[target]), at_second = load(second[target]);
      nlls[i] = 0.5f * (of_p.nll(at_first) + of_q.nll(at_second));
      losses[i] = 0.5f * (of_p.smoothed(at_first, a.smoothing) + of_q.smoothed(at_second, a.smoothing)) +
                  weight * (p_to_q + q_to_p);
      if (!a.wants_gradient) continue;
#pragma omp simd
      for (long v = 0; v < count; v++) {
        float log_ratio = load(first[v]) - load(second[v]) - shift;
        float wanted = v == target ? even + (1.0f - a.smoothing) : even;
        float apart = p[v] - q[v];
        store(first[v], 0.5f * (p[v] - wanted) + weight * (p[v] * (log_ratio - p_to_q) + apart));
        store(second[v], 0.5f * (q[v] - wanted) - weight * (q[v] * (log_ratio + q_to_p) + apart));
      }
    }
  }
}

#define EXPORT(T)                                                                                                 \
  extern "C" void relu_forward_##T(const Relu* a, T* x) { relu_forward(*a, x); }                                  \
  extern "C" void relu_backward_##T(const Relu* a, const T* out, T* gradient) { relu_backward(*a, out, gradient); } \
  extern "C" void sum_of_rows_##T(const Sums* a, const T* x, float* sums) { sum_of_rows(*a, x, sums); }          \
  extern "C" void losses_of_rows_##T(const Losses* a, T* logits, const int64_t* targets, float* nlls,             \
                                     float* smoothed) {                                                           \
    losses_of_rows(*a, logits, targets, nlls, smoothed);                                                          \
  }                                                                                                               \
  extern "C" void losses_of_twins_##T(const Losses* a, T* logits, const int64_t* targets, float* nlls,            \
                                      float* losses) {                                                            \
    losses_of_twins(*a, logits, targets, nlls, losses);                                                           \
  }
EXPORT(float)
EXPORT(bfloat16)
