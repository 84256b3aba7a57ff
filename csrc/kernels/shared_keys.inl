// Keys that hold their values (latent attention): the first numbers of a key are also its value, so a piece has the layout of
// values, [token pairs][D][2], and a product with a query separates the two tokens of a pair.
//
// In int8 both parts of a key, and of a query, have a scale of their own: the latent is normed, the part that turns is not.

// Writes a key, whose two parts are padded with zeros, into a slot of a piece.
INLINE void store_shared_key(KvKind kind, uint8_t* piece, int slot, const Heads& heads, const float* key) {
  const int d = heads.shared_key(), first = heads.first_part();
  const int at = slot / 2 * 2 * d + slot % 2;
  if (kind == KvKind::kBf16) {
    alignas(64) uint16_t k[kMaxHeadDim];
    for (int i = 0; i < d; i += W) store_bf16(k + i, load_f(key + i));
    uint16_t* keys = reinterpret_cast<uint16_t*>(piece) + at;
    for (int i = 0; i < d; i++) keys[2 * i] = k[i];
    return;
  }
  alignas(64) int8_t k[kMaxHeadDim];
  int32_t unused;
  auto* scales = reinterpret_cast<float*>(piece + kBlockTokens * d);
  scales[slot] = quantize_s8(key, first, k, &unused);
  scales[kBlockTokens + slot] = quantize_s8(key + first, d - first, k + first, &unused);
  int8_t* keys = reinterpret_cast<int8_t*>(piece) + at;
  for (int i = 0; i < d; i++) keys[2 * i] = k[i];
}

// Stores a query in the format of such keys.
INLINE void quantize_shared_query(AttentionTile& tile, int r, KvKind kind, const Heads& heads, const float* query, float scale) {
  const int d = heads.shared_key(), first = heads.first_part();
  alignas(64) float padded[kMaxHeadDim] = {};
  __builtin_memcpy(padded, query, static_cast<size_t>(heads.value_dim) * sizeof(float));
  __builtin_memcpy(padded + first, query + heads.value_dim, static_cast<size_t>(heads.dim - heads.value_dim) * sizeof(float));
  if (kind == KvKind::kBf16) {
    const vf factor = set_f(scale * kLog2E);
    for (int i = 0; i < d; i += W) {
      store_bf16(reinterpret_cast<uint16_t*>(tile.queries[r]) + i, mul(load_f(padded + i), factor));
    }
    return;
  }
  quantize_query(tile, r, kind, padded, first, scale);
  int32_t total;
  tile.rest_scales[r] = quantize_s8(padded + first, d - first, tile.queries[r] + first, &total) * (scale * kLog2E);
  tile.rest_biases[r] = w8_bias(total);
}

// Adds the products of both numbers of pairs of bf16.
INLINE vf dot_pairs(vf acc, vi w, vi b) {
  acc = dot_bf16(acc, bf16_part(w, 0), bf16_part(b, 0));
  return kBf16Parts == 2 ? dot_bf16(acc, bf16_part(w, 1), bf16_part(b, 1)) : acc;
}

constexpr int kGroupPairs = W / 2;  // token pairs whose scores are a vector

// Multiplies numbers [from, to) of the keys of kGroupPairs pairs by the queries. The halves of a vector of `sums` belong to
// the two tokens of a pair.
template <KvKind KV, int ROWS>
INLINE void multiply_pairs(const AttentionTile& tile, const uint8_t* keys, const uint8_t* ahead, int d, int from, int to,
                           vf (&sums)[ROWS][kGroupPairs]) {
  constexpr bool kInt = KV == KvKind::kInt8;
  constexpr int kBytes = kInt ? 1 : 2, kNumbers = 2 * W / kBytes;  // of a token in a vector
  constexpr int kPairs = ROWS <= kWideAttentionRows && kGroupPairs > 4 ? 4 : 2;
  for (int first = 0; first < kGroupPairs; first += kPairs) {
    vi part[ROWS][kPairs];
    vf total[ROWS][kPairs];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int p = 0; p < kPairs; p++) {
      if (kInt) part[r][p] = zero_i();
      else total[r][p] = zero_f();
    }
    for (int i = from; i < to; i += kNumbers) {
      vi key[kPairs];
      UNROLL for (int p = 0; p < kPairs; p++) {
        const size_t at = static_cast<size_t>((first + p) * d + i) * 2 * kBytes;
        prefetch_l2(ahead + at);  // whatever the rows: decoding has as many as heads
        key[p] = kInt ? split_bytes(load_i(keys + at)) : split_words(load_i(keys + at));
      }
      UNROLL for (int r = 0; r < ROWS; r++) {
        const vi q = load_twice(tile.queries[r] + i * kBytes);
        UNROLL for (int p = 0; p < kPairs; p++) {
          if constexpr (kInt) part[r][p] = dot_w8(part[r][p], signed_w8(key[p]), q);
          else total[r][p] = dot_pairs(total[r][p], key[p], q);
        }
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int p = 0; p < kPairs; p++) {
      sums[r][first + p] = kInt ? to_f(part[r][p]) : total[r][p];
    }
  }
}

// Computes the scores of a block, as `score_block` does.
template <KvKind KV, int ROWS>
INLINE void score_shared_keys(const AttentionTile& tile, const uint8_t* piece, const uint8_t* ahead, const Heads& heads, int at,
                              AttentionState<ROWS>& s) {
  constexpr bool kInt = KV == KvKind::kInt8;
  const int d = heads.shared_key(), first = heads.first_part();
  const size_t token_bytes = static_cast<size_t>(d) * (kInt ? 1 : 2), scales_at = token_bytes * kBlockTokens;
  vf sums[ROWS][kGroupPairs];
  for (int token = 0; token < kBlockTokens; token += W) {
    const uint8_t *keys = piece + token * token_bytes, *next = ahead + token * token_bytes;
    float* scores = &s.scores[0][at + token];
    multiply_pairs<KV, ROWS>(tile, keys, next, d, 0, kInt ? first : d, sums);
    if constexpr (!kInt) {
      for (int r = 0; r < ROWS; r++) store_f(scores + r * kChunkTokens, half_sums(sums[r]));
      continue;
    }
    prefetch_pair<4 * W>(ahead + scales_at + token * 4, 4 * kBlockTokens);
    const float* scales = reinterpret_cast<const float*>(piece + scales_at) + token;
    const vf s0 = load_f(scales), s1 = load_f(scales + kBlockTokens);
    store_f(&s.value_scales[at + token], s0);
    for (int r = 0; r < ROWS; r++) {
      const vf products = add(half_sums(sums[r]), set_f(static_cast<float>(tile.biases[r])));
      store_f(scores + r * kChunkTokens, mul(products, mul(set_f(tile.scales[r]), s0)));
    }
    multiply_pairs<KV, ROWS>(tile, keys, next, d, first, d, sums);
    for (int r = 0; r < ROWS; r++) {
      const vf products = add(half_sums(sums[r]), set_f(static_cast<float>(tile.rest_biases[r])));
      float* score = scores + r * kChunkTokens;
      store_f(score, fma(products, mul(set_f(tile.rest_scales[r]), s1), load_f(score)));
    }
  }
}
