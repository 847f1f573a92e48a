// Sums of gradients in whole numbers, which do not depend on the order of adding (train/exchange/fixed_point.py).
#include <cmath>

#include "numbers.h"

static const long kWorthThreads = 1 << 16;  // fewer numbers are added before other threads have woken up

// sums += round(numbers * scale), ties to even, each clamped to what a slot may add. `largest` becomes the largest of
// itself and all |numbers|, as the bits of a float: bits of infinity and of what is not a number are larger still.
extern "C" void add_fixed_point(const float* numbers, int32_t* sums, uint32_t* largest, long count, float scale,
                                float limit) {
  uint32_t most = *largest;
#pragma omp parallel for simd reduction(max : most) schedule(static) if (count > kWorthThreads)
  for (long i = 0; i < count; i++) {
    uint32_t magnitude = bits_of_float(numbers[i]) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
    float scaled = numbers[i] * scale;
    scaled = scaled > -limit ? scaled : -limit;
    scaled = scaled < limit ? scaled : limit;
    sums[i] += int32_t(std::rint(scaled));
  }
  *largest = most;
}

// Whole numbers become floats in their place, multiplied by `factor`.
extern "C" void read_fixed_point(void* buffer, long count, float factor) {
  char* place = static_cast<char*>(buffer);
#pragma omp parallel for simd schedule(static) if (count > kWorthThreads)
  for (long i = 0; i < count; i++) {
    int32_t sum;
    std::memcpy(&sum, place + 4 * i, sizeof sum);
    float number = float(sum) * factor;
    std::memcpy(place + 4 * i, &number, sizeof number);
  }
}
