// Numbers as the kernels see them: float or bfloat16 in memory, always float in registers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct bfloat16 {
  uint16_t bits;
};

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float load(float x) { return x; }
inline float load(bfloat16 x) { return float_of_bits(uint32_t(x.bits) << 16); }

inline void store(float& to, float x) { to = x; }

// Rounds to the nearest, ties to even, as torch does; what is not a number stays none.
inline void store(bfloat16& to, float x) {
  uint32_t bits = bits_of_float(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = uint16_t(x == x ? rounded : 0x7fc0);
}

// e^x to within 2 units in the last place, in a form that the compiler turns into vector instructions.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  float n = std::rint(x * 1.44269504f);
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2, ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * float_of_bits(uint32_t(int32_t(n) + 127) << 23);
}
