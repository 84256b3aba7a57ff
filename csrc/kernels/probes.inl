// The kernels that csrc/probes.h measures.

void probe_quantize(WeightKind kind, const float* x, int k, const Activations& inputs, int row) {
  quantize_row(kind, x, k, inputs, row);
}

void probe_multiply(const Product& p) {
  gemm(*p.matrix, *p.inputs, p.first_row, p.num_rows, p.panel_begin, p.panel_end,
       [&](int row, int rows, int column, const float* tile) {
         float* out = p.out + static_cast<size_t>(row) * p.out_pitch + column % p.out_pitch;
         for (int r = 0; r < rows; r++, out += p.out_pitch) {
           for (int i = 0; i < kPanel; i += W) store_f(out + i, load_f(tile + r * kPanel + i));
         }
       });
}

constexpr int kChains = 10;  // independent sums, enough to hide the latency of any instruction

// Makes the compiler assume that `x` is read.
INLINE void use(vf x) {
  alignas(64) float lanes[W];
  store_f(lanes, x);
  asm volatile("" : : "m"(lanes));
}
INLINE void use(vi x) {
  alignas(64) int32_t lanes[W];
  store_i(lanes, x);
  asm volatile("" : : "m"(lanes));
}

// Adds up `dot`s of registers, on numbers that the compiler cannot fold.
template <class Sum, class Dot>
INLINE int64_t probe_dots(int64_t num_rounds, Sum zero, int operations_per_lane, const Dot& dot) {
  alignas(64) static const uint8_t numbers[W * 4] = {1, 2, 3};
  Sum sums[kChains];
  UNROLL for (int c = 0; c < kChains; c++) sums[c] = zero;
  for (int64_t i = 0; i < num_rounds; i++) {
    UNROLL for (int c = 0; c < kChains; c++) {
      const uint8_t* hidden = numbers;
      asm volatile("" : "+r"(hidden));
      sums[c] = dot(sums[c], load_i(hidden));
    }
  }
  UNROLL for (int c = 0; c < kChains; c++) use(sums[c]);
  return num_rounds * kChains * W * operations_per_lane;
}

int64_t probe_compute(WeightKind kind, int64_t num_rounds) {
  alignas(64) static const uint8_t numbers[W * 4] = {4, 5, 6};
  if (kind == WeightKind::kW8) {
    const w8_t w = load_w8(numbers);
    return probe_dots(num_rounds, zero_i(), 8, [&](vi sum, vi b) { return dot_w8(sum, w, b); });
  }
  const vi w = load_i(numbers);
  if (kind != WeightKind::kBf16) {
    return probe_dots(num_rounds, zero_i(), 8, [&](vi sum, vi b) { return dot_w4(sum, w, b); });
  }
  return probe_dots(num_rounds, zero_f(), 4 / kBf16Parts, [&](vf sum, vi b) { return dot_bf16(sum, w, b); });
}

void probe_read(const uint8_t* data, size_t num_bytes) {
  constexpr size_t kPiece = 256;
  vi sums[4] = {zero_i(), zero_i(), zero_i(), zero_i()};
  for (size_t at = 0; at + kPiece <= num_bytes; at += kPiece) {
    for (size_t i = 0; i < kPiece; i += 64) prefetch(data + at + kPrefetchAhead + i);
    UNROLL for (size_t i = 0; i < kPiece / sizeof(vi); i++) {
      sums[i % 4] = add_i(sums[i % 4], load_i(data + at + i * sizeof(vi)));
    }
  }
  UNROLL for (int i = 0; i < 4; i++) use(sums[i]);
}
