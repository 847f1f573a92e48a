// Attention over packed sequences: for each sentence and head softmax(q k^T / sqrt(width)) v, all of it in the cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "dropout.h"
#include "numbers.h"
#include "products.h"

namespace {

constexpr long QUERIES_AT_A_TIME = 24;  // where attention is causal, later keys are left out for so many at once

struct Shape {
  long sentences, heads, width, longest_query, longest_key;
  bool is_causal;
};

// Rows of packed tokens in a tensor that may hold other things beside them, as q, k and v lie in one.
template <typename T>
struct Packed {
  T* data;
  long stride;
  const int64_t* offsets;

  long length(long sentence) const { return offsets[sentence + 1] - offsets[sentence]; }
  T* at(long sentence, long head, long width) const { return data + offsets[sentence] * stride + head * width; }
};

// Float matrices of one sentence and head, rows rounded up to whole vectors.
class Scratch {
 public:
  Scratch(long rows, long columns)
      : stride_(round_up(columns)),
        data_(static_cast<float*>(std::aligned_alloc(64, rows * stride_ * sizeof(float))), std::free) {
    if (!data_) {
      std::fprintf(stderr, "attention: no memory for %ld x %ld numbers; is there a very long sentence?\n", rows, columns);
      std::abort();  // an exception may not leave a thread of OpenMP
    }
  }

  operator Rows() const { return {data_.get(), stride_}; }
  operator Left() const { return {data_.get(), stride_, 1}; }
  Left transposed() const { return {data_.get(), 1, stride_}; }
  float* row(long i) const { return data_.get() + i * stride_; }
  long stride() const { return stride_; }

 private:
  long stride_;
  std::unique_ptr<float, decltype(&std::free)> data_;
};

template <typename T>
void load_rows(const Scratch& to, const T* from, long stride, long rows, long width, float scale = 1.0f) {
  for (long i = 0; i < rows; i++) {
    float* row = to.row(i);
#pragma omp simd
    for (long e = 0; e < width; e++) row[e] = load(from[i * stride + e]) * scale;
    for (long e = width; e < to.stride(); e++) row[e] = 0.0f;
  }
}

template <typename T>
void load_transposed(const Scratch& to, const T* from, long stride, long rows, long width) {
  long padded = round_up(rows);
  for (long e = 0; e < width; e++) {
    float* row = to.row(e);
    for (long i = 0; i < rows; i++) row[i] = load(from[i * stride + e]);
    for (long i = rows; i < padded; i++) row[i] = 0.0f;
  }
}

// Two numbers at a time: half as many single loads, which are what this costs.
void load_transposed(const Scratch& to, const bfloat16* from, long stride, long rows, long width) {
  long padded = round_up(rows);
  std::vector<uint32_t> pairs(padded, 0);
  uint32_t* words = pairs.data();
  for (long e = 0; e + 1 < width; e += 2) {
    for (long i = 0; i < rows; i++) std::memcpy(words + i, from + i * stride + e, sizeof(uint32_t));
    float *first = to.row(e), *second = to.row(e + 1);
#pragma omp simd
    for (long i = 0; i < padded; i++) {
      first[i] = float_of_bits(words[i] << 16);
      second[i] = float_of_bits(words[i] & 0xffff0000);
    }
  }
  if (width % 2) {
    float* last = to.row(width - 1);
    for (long i = 0; i < padded; i++) last[i] = i < rows ? load(from[i * stride + width - 1]) : 0.0f;
  }
}

template <typename T>
void store_rows(T* to, long stride, const Scratch& from, long rows, long width, float scale = 1.0f) {
  for (long i = 0; i < rows; i++) {
    const float* row = from.row(i);
#pragma omp simd
    for (long e = 0; e < width; e++) store(to[i * stride + e], row[e] * scale);
  }
}

// Scores become probabilities; returns the logarithm of what they were divided by.
float softmax(float* scores, long count) {
  float highest = scores[0], sum = 0.0f;
#pragma omp simd reduction(max : highest)
  for (long k = 0; k < count; k++) highest = highest > scores[k] ? highest : scores[k];
#pragma omp simd reduction(+ : sum)
  for (long k = 0; k < count; k++) {
    scores[k] = exponential(scores[k] - highest);
    sum += scores[k];
  }
  float factor = 1.0f / sum;
#pragma omp simd
  for (long k = 0; k < count; k++) scores[k] *= factor;
  return highest + std::log(sum);
}

// Which keys a block of queries sees.
long keys_seen(const Shape& shape, long last_query, long keys) {
  return shape.is_causal ? std::min(keys, last_query + 1) : keys;
}

template <typename T>
class Forward {
 public:
  Forward(const Shape& shape, Dropout dropout)
      : shape_(shape),
        factors_(dropout, shape.longest_key),
        q_(shape.longest_query, shape.width),
        k_transposed_(shape.width, shape.longest_key),
        v_(shape.longest_key, shape.width),
        scores_(QUERIES_AT_A_TIME, shape.longest_key),
        mixed_(shape.longest_query, shape.width) {}

  void run(Packed<const T> q, Packed<const T> k, Packed<const T> v, Packed<T> out, float* log_sums, long sentence,
           long head) {
    long queries = q.length(sentence), keys = k.length(sentence), width = shape_.width;
    load_rows(q_, q.at(sentence, head, width), q.stride, queries, width, 1.0f / std::sqrt(float(width)));
    load_transposed(k_transposed_, k.at(sentence, head, width), k.stride, keys, width);
    load_rows(v_, v.at(sentence, head, width), v.stride, keys, width);
    long first_row = (sentence * shape_.heads + head) * shape_.longest_query;
    for (long first = 0; first < queries; first += QUERIES_AT_A_TIME) {
      long end = std::min(queries, first + QUERIES_AT_A_TIME), seen = keys_seen(shape_, end - 1, keys);
      Rows mixed{mixed_.row(first), mixed_.stride()};
      multiply({q_.row(first), q_.stride(), 1}, k_transposed_, scores_, end - first, seen, width);
      for (long i = first; i < end; i++) {
        float* row = scores_.row(i - first);
        long count = keys_seen(shape_, i, keys);
        log_sums[(q.offsets[sentence] + i) * shape_.heads + head] = softmax(row, count);
        const float* factors = factors_.of_row(first_row + i);
#pragma omp simd
        for (long j = 0; j < count; j++) row[j] *= factors[j];
        std::fill(row + count, row + seen, 0.0f);
      }
      multiply(scores_, v_, mixed, end - first, width, seen);
    }
    store_rows(out.at(sentence, head, width), out.stride, mixed_, queries, width);
  }

 private:
  Shape shape_;
  Factors factors_;
  Scratch q_, k_transposed_, v_, scores_, mixed_;
};

template <typename T>
class Backward {
 public:
  Backward(const Shape& shape, Dropout dropout)
      : shape_(shape),
        factors_(dropout, shape.longest_key),
        q_(shape.longest_query, shape.width),
        k_(shape.longest_key, shape.width),
        k_transposed_(shape.width, shape.longest_key),
        v_transposed_(shape.width, shape.longest_key),
        d_out_(shape.longest_query, shape.width),
        weights_(shape.longest_query, shape.longest_key),
        d_scores_(shape.longest_query, shape.longest_key),
        d_q_(shape.longest_query, shape.width),
        d_k_(shape.longest_key, shape.width),
        d_v_(shape.longest_key, shape.width) {}

  struct Tensors {
    Packed<const T> q, k, v, out, d_out;
    const float* log_sums;
    Packed<T> d_q, d_k, d_v;
  };

  void run(const Tensors& t, long sentence, long head) {
    long queries = t.q.length(sentence), keys = t.k.length(sentence), width = shape_.width;
    float scale = 1.0f / std::sqrt(float(width));
    const T* k = t.k.at(sentence, head, width);
    load_rows(q_, t.q.at(sentence, head, width), t.q.stride, queries, width, scale);
    load_rows(k_, k, t.k.stride, keys, width);
    load_transposed(k_transposed_, k, t.k.stride, keys, width);
    load_transposed(v_transposed_, t.v.at(sentence, head, width), t.v.stride, keys, width);
    load_rows(d_out_, t.d_out.at(sentence, head, width), t.d_out.stride, queries, width);
    for (long first = 0; first < queries; first += QUERIES_AT_A_TIME) {
      long end = std::min(queries, first + QUERIES_AT_A_TIME), seen = keys_seen(shape_, end - 1, keys);
      Rows weights{weights_.row(first), weights_.stride()}, d_scores{d_scores_.row(first), d_scores_.stride()};
      multiply({q_.row(first), q_.stride(), 1}, k_transposed_, weights, end - first, seen, width);
      multiply({d_out_.row(first), d_out_.stride(), 1}, v_transposed_, d_scores, end - first, seen, width);
      for (long i = first; i < end; i++) through_softmax(t, sentence, head, i, keys);
      Rows d_q{d_q_.row(first), d_q_.stride()};
      multiply({d_scores_.row(first), d_scores_.stride(), 1}, k_, d_q, end - first, width, seen);
    }
    multiply(d_scores_.transposed(), q_, d_k_, keys, width, queries);
    multiply(weights_.transposed(), d_out_, d_v_, keys, width, queries);
    store_rows(t.d_q.at(sentence, head, width), t.d_q.stride, d_q_, queries, width, scale);
    store_rows(t.d_k.at(sentence, head, width), t.d_k.stride, d_k_, keys, width);
    store_rows(t.d_v.at(sentence, head, width), t.d_v.stride, d_v_, keys, width);
  }

 private:
  // Query i: scores become the weights that forward mixed with, their gradients become those of the scores.
  void through_softmax(const Tensors& t, long sentence, long head, long i, long keys) {
    long width = shape_.width, count = keys_seen(shape_, i, keys);
    const T* out = t.out.at(sentence, head, width) + i * t.out.stride;
    const float* d_out = d_out_.row(i);
    float mean = 0.0f, log_sum = t.log_sums[(t.q.offsets[sentence] + i) * shape_.heads + head];
#pragma omp simd reduction(+ : mean)
    for (long e = 0; e < width; e++) mean += load(out[e]) * d_out[e];
    const float* factors = factors_.of_row((sentence * shape_.heads + head) * shape_.longest_query + i);
    float *weights = weights_.row(i), *d_scores = d_scores_.row(i);
#pragma omp simd
    for (long j = 0; j < count; j++) {
      float probability = exponential(weights[j] - log_sum);
      weights[j] = probability * factors[j];
      d_scores[j] = probability * (d_scores[j] * factors[j] - mean);
    }
    std::fill(weights + count, weights + keys, 0.0f);
    std::fill(d_scores + count, d_scores + keys, 0.0f);
  }

  Shape shape_;
  Factors factors_;
  Scratch q_, k_, k_transposed_, v_transposed_, d_out_, weights_, d_scores_, d_q_, d_k_, d_v_;
};

}  // namespace

// Sequence i of a tensor is its rows offsets[i] to offsets[i + 1]; all strides count numbers.
struct Attention {
  long sentences, heads, width, longest_query, longest_key, is_causal;
  uint64_t seed;
  long dropped_levels;
  long query_stride, key_stride;  // k and v have the same
  const int64_t *query_offsets, *key_offsets;
};

template <typename T>
void attention_forward(const Attention& a, const T* q, const T* k, const T* v, T* out, float* log_sums) {
  Shape shape{a.sentences, a.heads, a.width, a.longest_query, a.longest_key, a.is_causal != 0};
#pragma omp parallel
  {
    Forward<T> forward(shape, {a.seed, int(a.dropped_levels)});
#pragma omp for schedule(dynamic, 4)
    for (long i = 0; i < a.sentences * a.heads; i++)
      forward.run({q, a.query_stride, a.query_offsets}, {k, a.key_stride, a.key_offsets},
                  {v, a.key_stride, a.key_offsets}, {out, a.heads * a.width, a.query_offsets}, log_sums, i / a.heads,
                  i % a.heads);
  }
}

template <typename T>
void attention_backward(const Attention& a, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* log_sums, T* d_q, T* d_k, T* d_v) {
  Shape shape{a.sentences, a.heads, a.width, a.longest_query, a.longest_key, a.is_causal != 0};
  long d_model = a.heads * a.width;
  typename Backward<T>::Tensors tensors{
      {q, a.query_stride, a.query_offsets}, {k, a.key_stride, a.key_offsets}, {v, a.key_stride, a.key_offsets},
      {out, d_model, a.query_offsets},      {d_out, d_model, a.query_offsets}, log_sums,
      {d_q, a.query_stride, a.query_offsets}, {d_k, a.key_stride, a.key_offsets}, {d_v, a.key_stride, a.key_offsets}};
#pragma omp parallel
  {
    Backward<T> backward(shape, {a.seed, int(a.dropped_levels)});
#pragma omp for schedule(dynamic, 4)
    for (long i = 0; i < a.sentences * a.heads; i++) backward.run(tensors, i / a.heads, i % a.heads);
  }
}

#define EXPORT(T)                                                                                                  \
  extern "C" void attention_forward_##T(const Attention* a, const T* q, const T* k, const T* v, T* out,            \
                                        float* log_sums) {                                                         \
    attention_forward(*a, q, k, v, out, log_sums);                                                                 \
  }                                                                                                                \
  extern "C" void attention_backward_##T(const Attention* a, const T* q, const T* k, const T* v, const T* out,     \
                                         const T* d_out, const float* log_sums, T* d_q, T* d_k, T* d_v) {          \
    attention_backward(*a, q, k, v, out, d_out, log_sums, d_q, d_k, d_v);                                          \
  }
EXPORT(float)
EXPORT(bfloat16)
