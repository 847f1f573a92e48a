// Between two blocks of the Transformer: dropout, addition and layer normalisation in one pass over the rows.
#include <omp.h>

#include <cmath>
#include <vector>

#include "dropout.h"
#include "numbers.h"

struct AddNorm {
  long rows, width;
  uint64_t seed;
  long dropped_levels;
  float epsilon;  // backward has the deviations, and leaves it alone
};

// sums = x + dropout(block); normed = (sums - mean) / deviation * weight + bias. block and stream may be null; stream
// is normed in float.
template <typename T>
void add_norm_forward(const AddNorm& a, const float* x, const T* block, const float* weight, const float* bias,
                      float* sums, T* normed, float* stream, float* means, float* inverse_deviations) {
  long width = a.width;
#pragma omp parallel
  {
    Factors dropout({a.seed, int(a.dropped_levels)}, width);
#pragma omp for schedule(static)
    for (long i = 0; i < a.rows; i++) {
      float *sum = sums + i * width, total = 0.0f, squares = 0.0f;
      const float* from = x + i * width;
      if (block) {
        const float* factors = dropout.of_row(i);
        const T* added = block + i * width;
#pragma omp simd
        for (long d = 0; d < width; d++) sum[d] = from[d] + load(added[d]) * factors[d];
        from = sum;
      }
#pragma omp simd reduction(+ : total)
      for (long d = 0; d < width; d++) total += from[d];
      float mean = total / float(width);
#pragma omp simd reduction(+ : squares)
      for (long d = 0; d < width; d++) squares += (from[d] - mean) * (from[d] - mean);
      float inverse = 1.0f / std::sqrt(squares / float(width) + a.epsilon);
      T* out = normed + i * width;
#pragma omp simd
      for (long d = 0; d < width; d++) store(out[d], (from[d] - mean) * inverse * weight[d] + bias[d]);
      if (stream) {
        float* exact = stream + i * width;
#pragma omp simd
        for (long d = 0; d < width; d++) exact[d] = (from[d] - mean) * inverse * weight[d] + bias[d];
      }
      means[i] = mean;
      inverse_deviations[i] = inverse;
    }
  }
}

// d_sums is the gradient of x: what comes through the norm, and what comes past it (d_past). d_past, d_stream and
// d_block may be null. The gradients of weight and bias are summed by each thread, then over threads in their order.
template <typename T>
void add_norm_backward(const AddNorm& a, const float* sums, const float* weight, const float* means,
                       const float* inverse_deviations, const T* d_normed, const float* d_stream,
                       const float* d_past, float* d_sums, T* d_block, float* d_weight, float* d_bias) {
  long width = a.width;
  std::vector<float> parts(2 * width * omp_get_max_threads(), 0.0f), nothing(width, 0.0f);
#pragma omp parallel
  {
    Factors dropout({a.seed, int(a.dropped_levels)}, width);
    std::vector<float> inner(width);
    float *d_weight_part = parts.data() + 2 * width * omp_get_thread_num(), *d_bias_part = d_weight_part + width;
    float* gradient = inner.data();
#pragma omp for schedule(static)
    for (long i = 0; i < a.rows; i++) {
      const float *from = sums + i * width, *exact = d_stream ? d_stream + i * width : nothing.data();
      const T* given = d_normed + i * width;
      float mean = means[i], inverse = inverse_deviations[i], total = 0.0f, projected = 0.0f;
#pragma omp simd reduction(+ : total, projected)
      for (long d = 0; d < width; d++) {
        float normal = (from[d] - mean) * inverse;
        gradient[d] = load(given[d]) + exact[d];
        d_weight_part[d] += gradient[d] * normal;
        d_bias_part[d] += gradient[d];
        gradient[d] *= weight[d];
        total += gradient[d];
        projected += gradient[d] * normal;
      }
      total /= float(width);
      projected /= float(width);
      float* out = d_sums + i * width;
      const float* past = d_past ? d_past + i * width : nothing.data();
#pragma omp simd
      for (long d = 0; d < width; d++)
        out[d] = past[d] + (gradient[d] - total - (from[d] - mean) * inverse * projected) * inverse;
      if (d_block) {
        const float* factors = dropout.of_row(i);
        T* to = d_block + i * width;
#pragma omp simd
        for (long d = 0; d < width; d++) store(to[d], out[d] * factors[d]);
      }
    }
  }
  for (long part = 0; part < omp_get_max_threads(); part++)
    for (long d = 0; d < width; d++) {
      d_weight[d] += parts[2 * width * part + d];
      d_bias[d] += parts[2 * width * part + width + d];
    }
}

#define EXPORT(T)                                                                                                    \
  extern "C" void add_norm_forward_##T(const AddNorm* a, const float* x, const T* block, const float* weight,        \
                                       const float* bias, float* sums, T* normed, float* stream, float* means,       \
                                       float* inverse_deviations) {                                                  \
    add_norm_forward(*a, x, block, weight, bias, sums, normed, stream, means, inverse_deviations);                   \
  }                                                                                                                  \
  extern "C" void add_norm_backward_##T(const AddNorm* a, const float* sums, const float* weight,                    \
                                        const float* means, const float* inverse_deviations, const T* d_normed,      \
                                        const float* d_stream, const float* d_past, float* d_sums, T* d_block,       \
                                        float* d_weight, float* d_bias) {                                            \
    add_norm_backward(*a, sums, weight, means, inverse_deviations, d_normed, d_stream, d_past, d_sums, d_block,      \
                      d_weight, d_bias);                                                                             \
  }
EXPORT(float)
EXPORT(bfloat16)
