// Matrix products: quantized rows times panels of 32 outputs, into fp32.
//
// A tile is up to kRows* rows by one panel, computed into a small buffer for an epilogue (store, add, activate, best
// logit). The order of the floating-point operations of a row does not depend on the number of rows (batch invariance).

// The panels of a thread are one stream from memory, so weights are prefetched. If a panel is read more than once (by
// several tiles of rows, or of outputs), each pass prefetches its part of the next panel, which keeps the memory busy;
// otherwise a pass prefetches this many bytes ahead. Tiles of fewer than kMinRowsFromL2 rows wait for memory: prefetch
// weights to L1. Above, arithmetic hides the latency of L2: prefetch to L2 and leave L1 to the rows. With more than
// kMaxTilesFromL2 tiles memory no longer matters (AVX-512: 8 rows gain 2-10 % from L2, 1 row loses 10 %, 32 rows 4 %).
constexpr size_t kPrefetchAhead = 8192;
constexpr int kPanelPasses = kPanel / (2 * W);  // of one tile

constexpr int kBf16Bytes = 2 * kBf16Parts, kSlab = 64 / kBf16Bytes;  // of an input, and inputs of a row that lie together

INLINE size_t slab_bytes(const Activations& inputs) { return inputs.num_rows * inputs.terms * 64; }
INLINE int8_t* row_values(const Activations& inputs, size_t row) { return inputs.values + row * inputs.terms * 64; }

template <int ROWS>
class Ahead {
 public:
  // For one of `num_tiles` tiles, which prefetches from `start` on.
  INLINE Ahead(const uint8_t* start, int num_tiles)
      : at_(start), passes_(num_tiles * kPanelPasses), to_l2_(ROWS >= kMinRowsFromL2 && num_tiles <= kMaxTilesFromL2) {}
  // Called whenever a pass has advanced by `lines` cache lines of its panel.
  INLINE void fetch(int lines) {
    for (int i = 0; i < lines; i += passes_, at_ += 64) to_l2_ ? prefetch_l2(at_) : prefetch(at_);
  }

 private:
  const uint8_t* at_;
  const int passes_;
  const bool to_l2_;
};

struct Tile {
  const uint8_t* ahead;  // prefetch address
  int num_tiles;         // tiles that read the panel
  const uint8_t* panel;
  int32_t k;
  const int8_t* values;  // of the first row
  size_t pitch;          // bytes from one slab of all rows to the next
  const float* scales;   // of the first row; likewise
  const int32_t* biases;
  const float* sums;
  int32_t groups_pitch;
  float* out;  // [rows][kPanel]
};

// Returns the sums of a row and a group over all terms, in steps of the first.
template <int TERMS>
INLINE vf add_terms(const vi (*part)[2], int half) {
  const vf first = to_f(part[0][half]);
  if constexpr (TERMS == 1) return first;
  else return fma(to_f(part[1][half]), set_f(1 / kTermRatio), first);
}

// A line holds a term of a row. Of LINES lines of a tile, dot_pair multiplies the first kPaired, two at a time.
template <int LINES>
constexpr int kPaired = kPairsRows ? LINES / 2 * 2 : 0;

// Adds to the sums of these lines the products of 8 inputs from `q` on; `low` has the weights of the first four inputs.
template <int LINES>
INLINE void dot_paired(const vi (&low)[2], const vi (&high)[2], const int8_t* q, vi (&sums)[LINES][2]) {
  if constexpr (kPaired<LINES> > 0) {
    UNROLL for (int line = 0; line < kPaired<LINES>; line += 2) {
      const int8_t* at = q + line * kDepth;
      UNROLL for (int half = 0; half < 2; half++) {
        dot_pair(sums[line][half], sums[line + 1][half], low[half], high[half], at, at + kDepth);
      }
    }
  }
}

// Brings the sums of these lines into the order of dot_pair (`kToPairs`), or back.
template <bool kToPairs, int LINES>
INLINE void transpose_paired(vi (&sums)[LINES][2]) {
  if constexpr (kPaired<LINES> > 0) {
    UNROLL for (int line = 0; line < kPaired<LINES>; line += 2) {
      UNROLL for (int half = 0; half < 2; half++) {
        if (kToPairs) pair_sums(sums[line][half], sums[line + 1][half]);
        else part_sums(sums[line][half], sums[line + 1][half]);
      }
    }
  }
}

template <int ROWS, int TERMS>
NOINLINE void tile_w8(const Tile& t) {
  constexpr int kLines = ROWS * TERMS;
  Ahead<ROWS * TERMS> ahead(t.ahead, t.num_tiles);
  const int32_t num_groups = t.k / kDepth;
  const float* output_scales = reinterpret_cast<const float*>(t.panel + num_groups * kW8GroupBytes);
  for (int lane = 0; lane < kPanel; lane += 2 * W) {
    const uint8_t* p = t.panel + lane * 4;
    const int8_t* q = t.values;
    vf total[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = zero_f();
    for (int32_t g = 0; g < num_groups; g++, q += t.pitch) {
      vi part[kLines][2];
      UNROLL for (int line = 0; line < kLines; line++) {
        const int32_t* bias = t.biases + line * t.groups_pitch + g;
        part[line][0] = part[line][1] = kW8Bias ? set_i(*bias) : zero_i();
      }
      transpose_paired<true>(part);
      // NOTE: unrolled, because GCC 12 copies and spills the sums at the ends of a loop (4 % of the time of 8 rows).
      UNROLL for (int i = 0; i < kDepth; i += 16) {
        ahead.fetch(16 * kPanel / 64);
        if constexpr (kPaired<kLines> > 0) {
          UNROLL for (int u = 0; u < 16; u += 8) {
            const uint8_t *first = p + u * kPanel, *second = first + 4 * kPanel;
            const w8_t low[2] = {load_w8(first), load_w8(first + 4 * W)};
            const w8_t high[2] = {load_w8(second), load_w8(second + 4 * W)};
            dot_paired(low, high, q + i + u, part);
          }
        }
        UNROLL for (int u = 0; u < 16; u += 4, p += 4 * kPanel) {
          const w8_t w0 = load_w8(p), w1 = load_w8(p + 4 * W);
          UNROLL for (int line = kPaired<kLines>; line < kLines; line++) {
            const vi b = bcast4(q + line * kDepth + i + u);
            part[line][0] = dot_w8(part[line][0], w0, b);
            part[line][1] = dot_w8(part[line][1], w1, b);
          }
        }
      }
      transpose_paired<false>(part);
      ahead.fetch(1);
      const auto* halves = reinterpret_cast<const uint16_t*>(p - lane * 4) + lane;
      const vf d0 = load_f16(halves), d1 = load_f16(halves + W);
      p += kW8GroupBytes - kW8Bytes;
      UNROLL for (int r = 0; r < ROWS; r++) {
        const vf scale = set_f(t.scales[r * t.groups_pitch + g]);
        total[r][0] = fma(add_terms<TERMS>(part + r * TERMS, 0), mul(d0, scale), total[r][0]);
        total[r][1] = fma(add_terms<TERMS>(part + r * TERMS, 1), mul(d1, scale), total[r][1]);
      }
    }
    const vf s0 = load_f(output_scales + lane), s1 = load_f(output_scales + lane + W);
    UNROLL for (int r = 0; r < ROWS; r++) {
      store_f(t.out + r * kPanel + lane, mul(total[r][0], s0));
      store_f(t.out + r * kPanel + lane + W, mul(total[r][1], s1));
    }
  }
}

// Slices of 8 inputs whose products fit in a sum of dot_w4: of each, a lane of 16 bits adds 4.
constexpr int slices_of_sum(WeightKind kind) {
  const int largest = 4 * 127 * (kind == WeightKind::kFp4 ? kFp4Steps[7] : 15);
  return kW4SumBits == 32 || 4 * largest < 1 << 15 ? 4 : 2;
}

template <WeightKind KIND, int ROWS, int TERMS>
NOINLINE void tile_w4(const Tile& t) {
  constexpr int kLines = ROWS * TERMS;
  constexpr bool kHasMinima = KIND == WeightKind::kW4;
  constexpr int kSlices = slices_of_sum(KIND);
  constexpr size_t kNibbleBytes = kPanel * kW4Group / 2, kGroupBytes = kNibbleBytes + (kHasMinima ? 4 : 2) * kPanel;
  Ahead<ROWS * TERMS> ahead(t.ahead, t.num_tiles);
  const auto steps = [](vi nibbles) { return KIND == WeightKind::kFp4 ? look_up(nibbles, kFp4Steps) : nibbles; };
  const int32_t num_groups = t.k / kW4Group;
  for (int lane = 0; lane < kPanel; lane += 2 * W) {
    const uint8_t* p = t.panel;
    const int8_t* q = t.values;
    vf total[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = zero_f();
    for (int32_t g = 0; g < num_groups; g++, p += kGroupBytes, q += g % 2 ? kW4Group : t.pitch - kW4Group) {
      vi part[kLines][2], sums[kLines][2];
      UNROLL for (int line = 0; line < kPaired<kLines>; line++) part[line][0] = part[line][1] = zero_i();
      ahead.fetch(static_cast<int>(kGroupBytes) / 64);
      UNROLL for (int u = 0; u < kW4Group / 8; u++) {
        const bool is_first = u % kSlices == 0, is_last = u % kSlices == kSlices - 1;
        const uint8_t* slice = p + u * 4 * kPanel + lane * 4;
        const vi x0 = load_i(slice), x1 = load_i(slice + 4 * W);
        const vi low[2] = {steps(low_nibbles(x0)), steps(low_nibbles(x1))};
        const vi high[2] = {steps(high_nibbles(x0)), steps(high_nibbles(x1))};
        dot_paired(low, high, q + u * 8, part);
        UNROLL for (int line = kPaired<kLines>; line < kLines; line++) {
          const int8_t* at = q + line * kDepth + u * 8;
          const vi b = bcast4(at), c = bcast4(at + 4);
          vi* sum = sums[line];
          sum[0] = dot_w4(is_first ? mul_w4(low[0], b) : dot_w4(sum[0], low[0], b), high[0], c);
          sum[1] = dot_w4(is_first ? mul_w4(low[1], b) : dot_w4(sum[1], low[1], b), high[1], c);
          if (!is_last) continue;
          UNROLL for (int half = 0; half < 2; half++) {
            const vi wide = widen_w4(sum[half]);
            part[line][half] = u < kSlices ? wide : add_i(part[line][half], wide);
          }
        }
      }
      transpose_paired<false>(part);
      const auto* halves = reinterpret_cast<const uint16_t*>(p + kNibbleBytes) + lane;
      const vf d0 = load_f16(halves), d1 = load_f16(halves + W);
      if constexpr (!kHasMinima) {
        constexpr float kMiddle = KIND == WeightKind::kFp4 ? kFp4Middle : 8;
        UNROLL for (int r = 0; r < ROWS; r++) {
          const vf scale = set_f(t.scales[r * t.groups_pitch + g]);
          const vf offset = set_f(-kMiddle * t.sums[r * t.groups_pitch + g]);
          total[r][0] = fma(fma(add_terms<TERMS>(part + r * TERMS, 0), scale, offset), d0, total[r][0]);
          total[r][1] = fma(fma(add_terms<TERMS>(part + r * TERMS, 1), scale, offset), d1, total[r][1]);
        }
        continue;
      }
      const vf m0 = load_f16(halves + kPanel), m1 = load_f16(halves + kPanel + W);
      UNROLL for (int r = 0; r < ROWS; r++) {
        const vf scale = set_f(t.scales[r * t.groups_pitch + g]), total_q = set_f(t.sums[r * t.groups_pitch + g]);
        total[r][0] = fma(total_q, m0, fma(mul(add_terms<TERMS>(part + r * TERMS, 0), scale), d0, total[r][0]));
        total[r][1] = fma(total_q, m1, fma(mul(add_terms<TERMS>(part + r * TERMS, 1), scale), d1, total[r][1]));
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      store_f(t.out + r * kPanel + lane, total[r][0]);
      store_f(t.out + r * kPanel + lane + W, total[r][1]);
    }
  }
}

template <int ROWS>
NOINLINE void tile_bf16(const Tile& t) {
  Ahead<ROWS> ahead(t.ahead, t.num_tiles);
  for (int lane = 0; lane < kPanel; lane += 2 * W) {
    const uint8_t* p = t.panel + lane * 4;
    const int8_t* q = t.values;
    vf total[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = zero_f();
    for (int32_t slab = 0; slab < t.k / kSlab; slab++, q += t.pitch) {
      for (int i = 0; i < 16; i += 4 * kBf16Parts) {
        ahead.fetch(16 * kPanel / 64);
        UNROLL for (int u = 0; u < 4 * kBf16Parts; u++) {
          const int part = u % kBf16Parts;
          const vi w0 = bf16_part(load_i(p), part), w1 = bf16_part(load_i(p + 4 * W), part);
          UNROLL for (int r = 0; r < ROWS; r++) {
            const vi b = bcast4(q + r * 64 + (i + u) * 4);
            total[r][0] = dot_bf16(total[r][0], w0, b);
            total[r][1] = dot_bf16(total[r][1], w1, b);
          }
          if (part == kBf16Parts - 1) p += 4 * kPanel;
        }
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      store_f(t.out + r * kPanel + lane, total[r][0]);
      store_f(t.out + r * kPanel + lane + W, total[r][1]);
    }
  }
}

template <WeightKind KIND, int ROWS, int TERMS>
NOINLINE void tile_low_bits(const Tile& t);  // low_bits.inl

// The largest number of rows of a tile.
constexpr int tile_rows(WeightKind kind, int terms) {
  if (kind == WeightKind::kBf16) return kRowsBf16;
  const int rows = terms == 2 ? kRowsTwoTerms : kind == WeightKind::kW8 ? kRowsInt : kRowsNibbles;
  // With scales a row has two sums, and those of 8 rows do not fit the registers of AVX-512. On AVX2, 3 rows are not faster.
  return has_low_bits(kind) && kind != WeightKind::kTernary && rows > 4 ? rows * 3 / 4 : rows;
}

template <WeightKind KIND, int TERMS, int ROWS>
INLINE void run_tile(const Tile& tile, int rows) {
  if constexpr (ROWS > 0) {
    if (rows < ROWS) return run_tile<KIND, TERMS, ROWS - 1>(tile, rows);
    if constexpr (KIND == WeightKind::kW8) tile_w8<ROWS, TERMS>(tile);
    else if constexpr (has_nibbles(KIND)) tile_w4<KIND, ROWS, TERMS>(tile);
    else if constexpr (has_low_bits(KIND)) tile_low_bits<KIND, ROWS, TERMS>(tile);
    else tile_bf16<ROWS>(tile);
  }
}

template <WeightKind KIND>
INLINE void run_int_tile(const Tile& tile, int terms, int rows) {
  return terms == 1 ? run_tile<KIND, 1, tile_rows(KIND, 1)>(tile, rows) : run_tile<KIND, 2, tile_rows(KIND, 2)>(tile, rows);
}

NOINLINE void run_tile(WeightKind kind, int terms, const Tile& tile, int rows) {
  switch (kind) {
    case WeightKind::kW8: return run_int_tile<WeightKind::kW8>(tile, terms, rows);
    case WeightKind::kW4: return run_int_tile<WeightKind::kW4>(tile, terms, rows);
    case WeightKind::kW4Symmetric: return run_int_tile<WeightKind::kW4Symmetric>(tile, terms, rows);
    case WeightKind::kFp4: return run_int_tile<WeightKind::kFp4>(tile, terms, rows);
    case WeightKind::kTernary: return run_int_tile<WeightKind::kTernary>(tile, terms, rows);
    case WeightKind::kW2: return run_int_tile<WeightKind::kW2>(tile, terms, rows);
    case WeightKind::kW3: return run_int_tile<WeightKind::kW3>(tile, terms, rows);
    case WeightKind::kBf16: return run_tile<WeightKind::kBf16, 1, kRowsBf16>(tile, rows);
  }
}

// Multiplies `num_rows` rows of `inputs` from `first_row` on with panels [panel_begin, panel_end). For each tile calls
// `epilogue(row, rows, column, tile)`: `rows` rows from `row` (counted from `first_row`) by kPanel outputs from `column`.
template <class Epilogue>
INLINE void gemm(const Matrix& matrix, const Activations& inputs, int first_row, int num_rows, int panel_begin,
                 int panel_end, const Epilogue& epilogue) {
  constexpr int kMaxRows = 12;
  static_assert(kRowsInt <= kMaxRows && kRowsNibbles <= kMaxRows && kRowsBf16 <= kMaxRows);
  alignas(64) float out[kMaxRows * kPanel];
  const int limit = tile_rows(matrix.kind, inputs.terms);
  const int num_tiles = (num_rows + limit - 1) / limit;
  for (int panel = panel_begin; panel < panel_end; panel++) {
    const uint8_t *here = matrix.panels + panel * matrix.panel_bytes, *next = here + matrix.panel_bytes;
    for (int i = 0; i < num_tiles; i++) {
      const int row = num_rows * i / num_tiles, rows = num_rows * (i + 1) / num_tiles - row;
      const size_t input_row = static_cast<size_t>(first_row + row), groups = input_row * inputs.groups_pitch;
      const bool is_only_pass = num_tiles * kPanelPasses == 1;
      const Tile tile = {is_only_pass ? here + kPrefetchAhead : next + matrix.panel_bytes * i / num_tiles / 64 * 64,
                         num_tiles,
                         here,
                         matrix.k,
                         row_values(inputs, input_row),
                         slab_bytes(inputs),
                         inputs.scales + groups,
                         inputs.biases + groups * inputs.terms,
                         inputs.sums + groups,
                         inputs.groups_pitch,
                         out};
      run_tile(matrix.kind, inputs.terms, tile, rows);
      epilogue(row, rows, panel * kPanel, out);
    }
  }
}
