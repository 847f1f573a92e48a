// Which numbers dropout keeps: a function of the seed and the number's place, the same one as in dropout.py.
#pragma once

#include <cstdint>
#include <vector>

constexpr int LEVELS = 1 << 16;

// The random word of a place: SplitMix64, whose state after n draws is known without drawing them.
inline uint64_t random_word(uint64_t seed, uint64_t place) {
  uint64_t z = seed + (place + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

struct Dropout {
  uint64_t seed;
  int dropped_levels;  // of 65,536; 0 for none

  bool is_on() const { return dropped_levels > 0; }
  float scale() const { return float(LEVELS) / float(LEVELS - dropped_levels); }
};

// The factors of one row at a time: 0 where a number falls, the scale where it stays. Every row begins a new word.
class Factors {
 public:
  Factors(Dropout dropout, long width)
      : dropout_(dropout), words_((width + 3) / 4), bits_(words_), factors_(words_ * 4, 1.0f) {}

  const float* of_row(long row) {
    if (dropout_.is_on()) draw(row);
    return factors_.data();
  }

 private:
  void draw(long row) {
    uint64_t first = uint64_t(row) * words_, seed = dropout_.seed;
    uint64_t* bits = bits_.data();
#pragma omp simd
    for (long i = 0; i < words_; i++) bits[i] = random_word(seed, first + i);
    const auto* fates = reinterpret_cast<const int16_t*>(bits);
    auto lowest_kept = int16_t(dropout_.dropped_levels - LEVELS / 2);
    float scale = dropout_.scale(), *factors = factors_.data();
#pragma omp simd
    for (long i = 0; i < words_ * 4; i++) factors[i] = fates[i] >= lowest_kept ? scale : 0.0f;
  }

  Dropout dropout_;
  long words_;
  std::vector<uint64_t> bits_;
  std::vector<float> factors_;
};
