// Products of small float matrices that lie in the cache.
#pragma once

typedef float Vector __attribute__((vector_size(64)));
constexpr long LANES = 16;

inline long round_up(long n) { return (n + LANES - 1) / LANES * LANES; }

// The left matrix; its rows may lie in any direction, so that a transposed one needs no copy.
struct Left {
  const float* data;
  long row_step, depth_step;
};

// The right matrix and the result: rows of whole vectors.
struct Rows {
  float* data;
  long stride;
};

template <int ROWS, int VECTORS>
inline void multiply_block(Left a, Rows b, Rows c, long depth) {
  Vector sums[ROWS][VECTORS] = {};
  for (long p = 0; p < depth; p++) {
    const auto* row = reinterpret_cast<const Vector*>(b.data + p * b.stride);
    for (int i = 0; i < ROWS; i++) {
      float factor = a.data[i * a.row_step + p * a.depth_step];
      for (int j = 0; j < VECTORS; j++) sums[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < VECTORS; j++) reinterpret_cast<Vector*>(c.data + i * c.stride)[j] = sums[i][j];
}

template <int VECTORS>
void multiply_columns(Left a, Rows b, Rows c, long rows, long depth) {
  for (; rows >= 6; rows -= 6) {
    multiply_block<6, VECTORS>(a, b, c, depth);
    a.data += 6 * a.row_step;
    c.data += 6 * c.stride;
  }
  switch (rows) {
    case 5: return multiply_block<5, VECTORS>(a, b, c, depth);
    case 4: return multiply_block<4, VECTORS>(a, b, c, depth);
    case 3: return multiply_block<3, VECTORS>(a, b, c, depth);
    case 2: return multiply_block<2, VECTORS>(a, b, c, depth);
    case 1: return multiply_block<1, VECTORS>(a, b, c, depth);
  }
}

// c[rows, columns] = a[rows, depth] b[depth, columns], the columns rounded up to whole vectors.
inline void multiply(Left a, Rows b, Rows c, long rows, long columns, long depth) {
  long vectors = round_up(columns) / LANES;
  for (; vectors >= 4; vectors -= 4) {
    multiply_columns<4>(a, b, c, rows, depth);
    b.data += 4 * LANES;
    c.data += 4 * LANES;
  }
  switch (vectors) {
    case 3: return multiply_columns<3>(a, b, c, rows, depth);
    case 2: return multiply_columns<2>(a, b, c, rows, depth);
    case 1: return multiply_columns<1>(a, b, c, rows, depth);
  }
}
