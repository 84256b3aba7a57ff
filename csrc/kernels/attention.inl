// Paged attention with grouped query heads over a bf16 or int8 KV cache.
//
// Rows are (token, query head) pairs that share a KV head. A context is processed in chunks of kChunkTokens at absolute
// positions, with a running maximum. The result of a row depends only on the tokens visible to it: all others are
// masked before they can reach a maximum, a scale or a sum. So it is independent of the other rows of the batch, of
// the chunking of its prompt, and of stale values in unused slots of a block.

constexpr float kNoScore = -1e30f;

// Bytes between the rows of a tile beyond what they hold: at a power of two the rows would share few sets of the L1 cache.
constexpr int kRowGap = 64;

struct AttentionTile {
  // signed bytes or inputs of dot_bf16, times scale and log2(e)
  alignas(64) int8_t queries[kRowsAttention][kMaxHeadDim * kBf16Bytes + kRowGap];
  float scales[kRowsAttention];
  int32_t biases[kRowsAttention];  // int8: kW8Bias * sum of the query
  float rest_scales[kRowsAttention];  // int8, keys that hold their values: of the second part
  int32_t rest_biases[kRowsAttention];
  int begin[kRowsAttention], end[kRowsAttention];  // positions that the row sees
  float* out[kRowsAttention];
  int num_rows;
  float sinks[kRowsAttention];  // a score times log2(e) that takes part in the softmax, or kNoScore
  float softcap;  // of the scores times log2(e); 0: none
  bool has_slopes;
  float slopes[kRowsAttention];  // times log2(e), of the distance to the row's own position
  int positions[kRowsAttention];
};

// The blocks of one sequence, one layer and one KV head.
struct Context {
  const uint8_t* first_piece;  // in block 0 of the cache
  size_t block_bytes;
  const int32_t* table;
  int first_block, last_block;  // blocks that some row sees
  const uint8_t* piece(int block) const { return first_piece + table[block] * block_bytes; }
};

// Prefetch distance in KV blocks. Blocks are scattered in memory, so the hardware prefetcher cannot predict them.
// Prefetch to L2: to L1, at any distance, attention of 64 sequences took 1.7 times as long (AMD Zen 4).
// With more rows than kRowsOfDecode attention is compute-bound and needs no prefetch.
constexpr int kBlocksAhead = 4, kRowsOfDecode = 8;

// Returns the block to prefetch while `block` is processed; after the last one, the first ones of the next context.
INLINE const uint8_t* piece_ahead(const Context& context, const Context& following, int block) {
  const int ahead = block + kBlocksAhead, after = following.first_block + ahead - context.last_block - 1;
  if (ahead <= context.last_block) return context.piece(ahead);
  return following.piece(after < following.last_block ? after : following.last_block);
}

// Stores a query of `d` numbers, which are multiplied by `scale`, in the format of the cache.
INLINE void quantize_query(AttentionTile& tile, int r, KvKind kind, const float* query, int d, float scale) {
  if (kind == KvKind::kInt8) {
    int32_t total;
    tile.scales[r] = quantize_s8(query, d, tile.queries[r], &total) * (scale * kLog2E);
    tile.biases[r] = w8_bias(total);
    return;
  }
  const vf factor = set_f(scale * kLog2E);
  for (int i = 0; i < d; i += W) {
    store_bf16_inputs(tile.queries[r] + i * kBf16Bytes, mul(load_f(query + i), factor));
  }
}

INLINE void load_query(AttentionTile& tile, int r, KvKind kind, const HeadShape& shape, const float* head, int position) {
  const Heads& heads = shape.layer->heads;
  alignas(64) float query[kMaxHeadDim];
  rotate_head(shape, head, shape.layer->q_norm, position, query);
  quantize_query(tile, r, kind, query, heads.dim, heads.scale);
}

template <int ROWS>
struct AttentionState {
  alignas(64) float scores[ROWS][kChunkTokens];
  alignas(64) int16_t weights[ROWS][kChunkTokens * kBf16Parts];  // int8 cache: fixed point of 16 bits; else inputs of dot_bf16
  alignas(64) float value_scales[kChunkTokens];
  alignas(64) float out[ROWS][kMaxHeadDim + kRowGap / sizeof(float)];
  float largest[ROWS], sum[ROWS], correction[ROWS], unit[ROWS];
};

// Prefetches `BYTES` bytes at `data`, and as many `distance` bytes after it.
template <int BYTES>
INLINE void prefetch_pair(const uint8_t* data, size_t distance) {
  for (int i = 0; i < BYTES; i += 64) {
    prefetch_l2(data + i);
    prefetch_l2(data + distance + i);
  }
}

// Adds the products of keys and queries for a pair of inputs, or for the number OF_PAIR of it.
template <int OF_PAIR, int ROWS>
INLINE void score_pair(const AttentionTile& tile, const uint8_t* keys, int pair, vf (&total)[ROWS][2]) {
  const vi k0 = bf16_part(load_i(keys), OF_PAIR), k1 = bf16_part(load_i(keys + 4 * W), OF_PAIR);
  UNROLL for (int r = 0; r < ROWS; r++) {
    const vi q = bcast4(tile.queries[r] + (pair * kBf16Parts + OF_PAIR) * 4);
    total[r][0] = dot_bf16(total[r][0], k0, q);
    total[r][1] = dot_bf16(total[r][1], k1, q);
  }
}

// Computes the scores of a block, whose first token is `at` within the chunk, and prefetches the block `ahead`.
template <KvKind KV, int ROWS>
INLINE void score_block(const AttentionTile& tile, const uint8_t* piece, const uint8_t* ahead, int d, int at,
                        AttentionState<ROWS>& s) {
  constexpr bool kInt = KV == KvKind::kInt8;
  const int steps = kInt ? d / 4 : d / 2;
  const size_t key_bytes = static_cast<size_t>(steps) * 4 * kBlockTokens;
  const size_t scales_at = static_cast<size_t>(d) * 2 * kBlockTokens;  // int8
  for (int token = 0; token < kBlockTokens; token += 2 * W) {
    const uint8_t* keys = piece + token * 4;
    vi part[ROWS][2];
    vf total[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) {
      if (kInt) part[r][0] = part[r][1] = set_i(tile.biases[r]);
      else total[r][0] = total[r][1] = zero_f();
    }
    for (int i = 0; i < steps; i++, keys += 4 * kBlockTokens) {
      if constexpr (ROWS <= kRowsOfDecode) prefetch_pair<8 * W>(ahead + (keys - piece), key_bytes);
      if constexpr (kInt) {
        const w8_t k0 = load_w8(keys), k1 = load_w8(keys + 4 * W);
        UNROLL for (int r = 0; r < ROWS; r++) {
          const vi q = bcast4(tile.queries[r] + i * 4);
          part[r][0] = dot_w8(part[r][0], k0, q);
          part[r][1] = dot_w8(part[r][1], k1, q);
        }
      } else {
        score_pair<0>(tile, keys, i, total);
        if constexpr (kBf16Parts == 2) score_pair<1>(tile, keys, i, total);
      }
    }
    if constexpr (kInt) {
      if constexpr (ROWS <= kRowsOfDecode) prefetch_pair<8 * W>(ahead + scales_at + token * 4, 4 * kBlockTokens);
      const float* scales = reinterpret_cast<const float*>(piece + scales_at) + token;
      const vf s0 = load_f(scales), s1 = load_f(scales + W);
      UNROLL for (int r = 0; r < ROWS; r++) {
        const vf scale = set_f(tile.scales[r]);
        store_f(&s.scores[r][at + token], mul(to_f(part[r][0]), mul(scale, s0)));
        store_f(&s.scores[r][at + token + W], mul(to_f(part[r][1]), mul(scale, s1)));
      }
      store_f(&s.value_scales[at + token], load_f(scales + kBlockTokens));
      store_f(&s.value_scales[at + token + W], load_f(scales + kBlockTokens + W));
    } else {
      UNROLL for (int r = 0; r < ROWS; r++) {
        store_f(&s.scores[r][at + token], total[r][0]);
        store_f(&s.scores[r][at + token + W], total[r][1]);
      }
    }
  }
}

// 2^x like `exp2_v`; relative error below 3e-6, a tenth of the error of rounding a weight to 16 bits.
INLINE vf exp2_weight(vf x) {
  x = max(x, set_f(-126.0f));
  const vf n = round(x), f = sub(x, n);
  vf p = set_f(9.58285e-3f);
  p = fma(p, f, set_f(5.590647e-2f));
  p = fma(p, f, set_f(2.4024099e-1f));
  p = fma(p, f, set_f(6.9312419e-1f));
  p = fma(p, f, set_f(1.0f));
  return scale2(p, n);
}

// Chunk tokens visible to a row, within [from, to): tokens [begin, end); vectors in [full_begin, full_end) need no mask.
struct Seen {
  int from, to, begin, end, full_begin, full_end;
  Seen(int from, int to, int begin, int end)
      : from(from), to(to), begin(begin > from ? begin : from), end(end < to ? end : to),
        full_begin((this->begin + W - 1) / W * W), full_end(this->end / W * W) {
    if (full_end < full_begin) full_end = full_begin = to;
  }
  vmask lanes(int vector) const { return lanes_between(begin - vector, end - vector); }
};

// The best score and the largest value scale among the tokens visible to a row.
struct Peaks {
  vf score = set_f(kNoScore), value_scale = zero_f();
};

template <KvKind KV, bool FULL>
INLINE void find_peaks(const float* scores, const float* value_scales, const Seen& seen, int from, int to, Peaks& peaks) {
  for (int j = from; j < to; j += W) {
    vf score = load_f(scores + j), value_scale = KV == KvKind::kInt8 ? load_f(value_scales + j) : zero_f();
    if constexpr (!FULL) {
      score = select(seen.lanes(j), score, set_f(kNoScore));
      value_scale = select(seen.lanes(j), value_scale, zero_f());
    }
    peaks.score = max(peaks.score, score);
    if (KV == KvKind::kInt8) peaks.value_scale = max(peaks.value_scale, value_scale);
  }
}

// Computes weights exp2(score - shift), for an int8 cache times the scale of the value in fixed point. Returns `total`
// plus their sum.
template <KvKind KV, bool FULL>
INLINE vf weigh(const float* scores, const float* value_scales, const Seen& seen, int from, int to, vf shift,
                vf fixed_point, int16_t* weights, vf total) {
  for (int j = from; j < to; j += W) {
    vf p = exp2_weight(sub(load_f(scores + j), shift));
    if constexpr (!FULL) p = select(seen.lanes(j), p, zero_f());
    total = add(total, p);
    if constexpr (KV == KvKind::kInt8) {
      vf scaled = mul(p, mul(load_f(value_scales + j), fixed_point));
      if constexpr (!FULL) scaled = select(seen.lanes(j), scaled, zero_f());
      store_s16(weights + j, round_i(scaled));
    } else {
      store_bf16_inputs(weights + j * kBf16Parts, p);
    }
  }
  return total;
}

// Turns the scores of chunk tokens of one row into weights.
template <KvKind KV, int ROWS>
INLINE void weigh_row(AttentionState<ROWS>& s, int r, const Seen& seen) {
  Peaks peaks;
  find_peaks<KV, false>(s.scores[r], s.value_scales, seen, seen.from, seen.full_begin, peaks);
  find_peaks<KV, true>(s.scores[r], s.value_scales, seen, seen.full_begin, seen.full_end, peaks);
  find_peaks<KV, false>(s.scores[r], s.value_scales, seen, seen.full_end, seen.to, peaks);
  const float before = s.largest[r], chunk_peak = max_of(peaks.score), now = before > chunk_peak ? before : chunk_peak;
  s.correction[r] = exp2_one(before - now);
  s.largest[r] = now;
  const float value_scale = max_of(peaks.value_scale);
  const vf fixed_point = set_f(value_scale > 0 ? 32767.0f / value_scale : 0.0f), shift = set_f(now);
  s.unit[r] = value_scale / 32767.0f;
  vf total = zero_f();
  const float *scores = s.scores[r], *scales = s.value_scales;
  int16_t* weights = s.weights[r];
  total = weigh<KV, false>(scores, scales, seen, seen.from, seen.full_begin, shift, fixed_point, weights, total);
  total = weigh<KV, true>(scores, scales, seen, seen.full_begin, seen.full_end, shift, fixed_point, weights, total);
  total = weigh<KV, false>(scores, scales, seen, seen.full_end, seen.to, shift, fixed_point, weights, total);
  s.sum[r] = s.sum[r] * s.correction[r] + sum(total);
}

// The values of a piece: their first byte, the numbers between token pairs, and the numbers of a value.
struct Values {
  size_t offset;
  int pitch, count;
};

template <KvKind KV>
INLINE Values values_of(const Heads& heads) {
  if (heads.values_in_keys) return {0, heads.shared_key(), heads.value_dim};
  return {static_cast<size_t>(heads.dim) * kBlockTokens * (KV == KvKind::kInt8 ? 1 : 2), heads.dim, heads.dim};
}

// Adds the products of a pair of tokens, or of the number OF_PAIR of it: VECTORS vectors of values from `values` on, times
// the weights at `at` of each row.
template <KvKind KV, int OF_PAIR, class Sum, int ROWS, int VECTORS, int COUNT>
INLINE void add_products(const int8_t* values, const int16_t (&weights)[ROWS][COUNT], int at, Sum (&sums)[ROWS][VECTORS]) {
  vi x[VECTORS];
  UNROLL for (int v = 0; v < VECTORS; v++) {
    if constexpr (KV == KvKind::kInt8) x[v] = load_s8_as_s16(values + v * 2 * W);
    else x[v] = bf16_part(load_i(values + v * 4 * W), OF_PAIR);
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    const vi weight = bcast4(weights[r] + at);
    UNROLL for (int v = 0; v < VECTORS; v++) {
      if constexpr (KV == KvKind::kInt8) sums[r][v] = dot_s16(sums[r][v], x[v], weight);
      else sums[r][v] = dot_bf16(sums[r][v], x[v], weight);
    }
  }
}

// Adds weights times values of chunk tokens [from, to) to VECTORS vectors of the output, from dimension `dim` on.
template <KvKind KV, int ROWS, int VECTORS>
INLINE void add_values(const Context& context, int chunk_begin, int from, int to, Values shape, int dim,
                       AttentionState<ROWS>& s) {
  constexpr bool kInt = KV == KvKind::kInt8;
  constexpr int kParts = kInt ? 1 : kBf16Parts;
  vi part[ROWS][VECTORS];
  vf total[ROWS][VECTORS];
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) {
    if (kInt) part[r][v] = zero_i();
    else total[r][v] = mul(load_f(&s.out[r][dim + v * W]), set_f(s.correction[r]));
  }
  for (int token = from; token < to; token += kBlockTokens) {
    const uint8_t* values = context.piece((chunk_begin + token) / kBlockTokens) + shape.offset;
    for (int pair = 0; pair < kBlockTokens / 2; pair++) {
      const int8_t* first = reinterpret_cast<const int8_t*>(values) + static_cast<size_t>(pair * shape.pitch + dim) * (kInt ? 2 : 4);
      const int weights = (token + pair * 2) * kParts;
      if constexpr (kInt) add_products<KV, 0>(first, s.weights, weights, part);
      else add_products<KV, 0>(first, s.weights, weights, total);
      if constexpr (kParts == 2) add_products<KV, 1>(first, s.weights, weights + 2, total);
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) {
    float* out = &s.out[r][dim + v * W];
    if (kInt) store_f(out, fma(to_f(part[r][v]), set_f(s.unit[r]), mul(load_f(out), set_f(s.correction[r]))));
    else store_f(out, total[r][v]);
  }
}

template <KvKind KV, int ROWS>
INLINE void add_all_values(const Context& context, int chunk_begin, int from, int to, Values shape, AttentionState<ROWS>& s) {
  int dim = 0;
  if constexpr (ROWS <= kWideAttentionRows) {
    for (; dim + 4 * W <= shape.count; dim += 4 * W) add_values<KV, ROWS, 4>(context, chunk_begin, from, to, shape, dim, s);
  }
  for (; dim + 2 * W <= shape.count; dim += 2 * W) add_values<KV, ROWS, 2>(context, chunk_begin, from, to, shape, dim, s);
  for (; dim < shape.count; dim += W) add_values<KV, ROWS, 1>(context, chunk_begin, from, to, shape, dim, s);
}

INLINE void cap_scores(float* scores, int from, int to, float cap) {
  for (int i = from; i < to; i += W) store_f(scores + i, softcap(load_f(scores + i), cap));
}

// Adds `slope` times the distance of each key to the query; the first score is that of the key at `distance`.
INLINE void add_distances(float* scores, int from, int to, float slope, int distance) {
  for (int i = from; i < to; i += W) {
    float distances[W];
    for (int lane = 0; lane < W; lane++) distances[lane] = static_cast<float>(distance + i + lane);
    store_f(scores + i, fma(load_f(distances), set_f(slope), load_f(scores + i)));
  }
}
