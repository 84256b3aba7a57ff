// Products with weights of 2 and 3 bits, which keep the integer scales of their file; `Matrix` describes the panels.
//
// A sum of 16 products is multiplied by the scale of its inputs in integers. What all weights of a group have in common
// (minus the middle code times the scale, or the minimum) multiplies the sum of the inputs, in integers too. The 32
// inputs that share a scale of the activation then cost one conversion to floats, and d is applied once for a block.
//
// Sums are exact. Of 16 inputs a lane of 16 bits adds 8 products, of 32 ternary ones 16: at most 16 * 3 * 127 = 6,096,
// with 3 bits 8 * 7 * 127 = 7,112. Of 32 inputs with scales up to 32, 32 * 32 * (7 + 4) * 127 is less than 2^24, above
// which floats do not hold every integer.

typedef int32_t Lanes32 __attribute__((vector_size(sizeof(vi))));
typedef int16_t Lanes16 __attribute__((vector_size(sizeof(vi))));

// The low bits of the inputs from 4 i on of a row of 16.
INLINE vi two_bits(vi row, int i) { return (vi)((Lanes32)row >> 2 * i & 0x03030303); }
// Bit i of every byte, worth 4.
INLINE vi third_bit(vi row, int i) {
  const Lanes32 bits = (Lanes32)row;
  return (vi)((i < 2 ? bits << (2 - i) : bits >> (i - 2)) & 0x04040404);
}
INLINE vi either(vi a, vi b) { return (vi)((Lanes32)a | (Lanes32)b); }
// The scales of the first or last 32 inputs of a slab, as pairs of 16 bits.
INLINE vi scale_pairs(vi bytes, int half) {
  return (vi)(half ? (Lanes16)bytes >> 8 : (Lanes16)((Lanes16)bytes << 8) >> 8);
}
INLINE vi minus_middle(vi pairs) { return (vi)((Lanes16)pairs * -4); }

// The sums of a tile of rows with 2 W outputs.
template <WeightKind KIND, int ROWS, int TERMS>
struct LowTile {
  static constexpr bool kHasScales = KIND != WeightKind::kTernary, kHasMinima = KIND == WeightKind::kW2;
  const Tile& t;
  vi part[ROWS][TERMS][2];  // products of 32 inputs
  vf sum[ROWS][2], minimum[ROWS][2];  // of a block, without d and dmin

  INLINE void begin_block() {
    UNROLL for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = minimum[r][0] = minimum[r][1] = zero_f();
  }

  // Adds the products of 32 inputs at `q`, which share scale `g`. `half`: of the slab at `p`.
  INLINE void add_group(const uint8_t* p, const int8_t* q, int half, int32_t g) {
    const vi h0 = load_high(p, half, 0), h1 = load_high(p, half, 1);
    vi sums[ROWS][TERMS][2], pairs[2];
    UNROLL for (int v = 0; v < 2; v++) pairs[v] = load_scales(p, half, v, false);
    UNROLL for (int u = 0; u < 2; u++) {
      const uint8_t* row = p + (2 * half + u) * kLowRowBytes;
      const vi x0 = load_i(row), x1 = load_i(row + 4 * W);
      UNROLL for (int i = 0; i < 4; i++) {
        const vi w0 = weights(x0, h0, u, i), w1 = weights(x1, h1, u, i);
        const bool is_first = i == 0 && (u == 0 || kHasScales);
        UNROLL for (int r = 0; r < ROWS; r++) {
          UNROLL for (int term = 0; term < TERMS; term++) {
            const vi b = bcast4(q + (r * TERMS + term) * kDepth + u * kLowGroup + i * 4);
            vi* s = sums[r][term];
            s[0] = is_first ? mul_w4(w0, b) : dot_w4(s[0], w0, b);
            s[1] = is_first ? mul_w4(w1, b) : dot_w4(s[1], w1, b);
          }
        }
      }
      if (kHasScales || u == 1) add_sums(sums, pairs, u);
    }
    finish_group(p, half, g, pairs);
  }

 private:
  INLINE void add_sums(const vi (&sums)[ROWS][TERMS][2], const vi (&pairs)[2], int u) {
    UNROLL for (int v = 0; v < 2; v++) {
      const vi factor = sum_factor(pairs[v], u);
      UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int term = 0; term < TERMS; term++) {
          vi& total = part[r][term][v];
          const vi products = sums[r][term][v];
          total = kHasScales ? dot_s16(u == 0 ? zero_i() : total, products, factor) : widen_w4(products);
        }
      }
    }
  }

  // Adds what the weights have in common, times the sums of the inputs, and applies the scales of the inputs.
  INLINE void finish_group(const uint8_t* p, int half, int32_t g, const vi (&pairs)[2]) {
    UNROLL for (int v = 0; v < 2; v++) {
      const vi common = kHasMinima ? load_scales(p, half, v, true) : kHasScales ? minus_middle(pairs[v]) : set_i(-1);
      UNROLL for (int r = 0; r < ROWS; r++) {
        const vf scale = set_f(t.scales[r * t.groups_pitch + g]);
        vi low[TERMS][2];
        UNROLL for (int term = 0; term < TERMS; term++) {
          const vi inputs = set_i(t.biases[(r * TERMS + term) * t.groups_pitch + g]);
          low[term][v] = dot_s16(kHasMinima ? zero_i() : part[r][term][v], common, inputs);
        }
        vf& total = kHasMinima ? minimum[r][v] : sum[r][v];
        total = fma(add_terms<TERMS>(low, v), scale, total);
        if constexpr (kHasMinima) sum[r][v] = fma(add_terms<TERMS>(part[r], v), scale, sum[r][v]);
      }
    }
  }

  // The scales or minima of 32 inputs of a slab, as pairs of 16 bits.
  INLINE static vi load_scales(const uint8_t* p, int half, int v, bool are_minima) {
    if (!kHasScales) return zero_i();
    const vi bytes = load_i(p + low_scales_row(KIND) * kLowRowBytes + v * 4 * W);
    if (!kHasMinima) return scale_pairs(bytes, half);
    return (vi)((Lanes32)bytes >> (half * 8 + are_minima * 4) & 0x000f000f);
  }

  INLINE static vi load_high(const uint8_t* p, int half, int v) {
    return KIND == WeightKind::kW3 ? load_i(p + (4 + half) * kLowRowBytes + v * 4 * W) : zero_i();
  }

  INLINE static vi weights(vi low, vi high, int u, int i) {
    const vi bits = two_bits(low, i);
    return KIND == WeightKind::kW3 ? either(bits, third_bit(high, 4 * u + i)) : bits;
  }
};

template <WeightKind KIND, int ROWS, int TERMS>
NOINLINE void tile_low_bits(const Tile& t) {
  constexpr size_t kSlabBytes = low_slab_bytes(KIND), kBlockBytes = low_block_bytes(KIND);
  constexpr int kSlabs = low_block(KIND) / kDepth;
  Ahead<ROWS * TERMS> ahead(t.ahead, t.num_tiles);
  for (int lane = 0; lane < kPanel; lane += 2 * W) {
    const uint8_t* block = t.panel;
    const int8_t* q = t.values;
    LowTile<KIND, ROWS, TERMS> tile{t, {}, {}, {}};
    vf total[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = zero_f();
    for (int32_t g = 0; g < t.k / kW4Group; block += kBlockBytes) {
      tile.begin_block();
      const uint8_t* p = block + lane * 4;
      for (int slab = 0; slab < kSlabs; slab++, p += kSlabBytes, q += t.pitch, g += 2) {
        ahead.fetch(static_cast<int>(kSlabBytes / 64));
        UNROLL for (int half = 0; half < 2; half++) tile.add_group(p, q + half * kW4Group, half, g + half);
      }
      const auto* halves = reinterpret_cast<const uint16_t*>(block + kSlabs * kSlabBytes) + lane;
      UNROLL for (int v = 0; v < 2; v++) {
        const vf d = load_f16(halves + v * W);
        UNROLL for (int r = 0; r < ROWS; r++) total[r][v] = fma(tile.sum[r][v], d, total[r][v]);
        if constexpr (KIND != WeightKind::kW2) continue;
        const vf minus_dmin = load_f16(halves + kPanel + v * W);
        UNROLL for (int r = 0; r < ROWS; r++) total[r][v] = fma(tile.minimum[r][v], minus_dmin, total[r][v]);
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      store_f(t.out + r * kPanel + lane, total[r][0]);
      store_f(t.out + r * kPanel + lane + W, total[r][1]);
    }
  }
}
