// Writing keys and values into a bf16 or int8 KV cache, and the norm and the rotation that keys and queries share.

struct HeadShape {
  const Layer* layer;
  float eps;
  bool norms_rotated;  // the norm follows the rotation
  bool norms_values;   // values are divided by their root mean square
};

// Applies the norm (if the model has one) and the rotation to a query or key head, in the order of the model.
INLINE void rotate_head(const HeadShape& shape, const float* head, const float* norm, int position, float* out) {
  const int d = shape.layer->heads.dim, half = d / 2;
  alignas(64) float normed[kMaxHeadDim];
  if (norm && !shape.norms_rotated) {
    rms_norm(head, norm, d, d, shape.eps, normed);
    head = normed;
  }
  const float* cosines = shape.layer->rope + static_cast<size_t>(position) * d;
  const float* sines = cosines + half;
  for (int i = 0; i < half; i++) {
    out[i] = head[i] * cosines[i] - head[i + half] * sines[i];
    out[i + half] = head[i + half] * cosines[i] + head[i] * sines[i];
  }
  if (norm && shape.norms_rotated) rms_norm(out, norm, d, d, shape.eps, out);
}

// Makes NaN and infinity finite: a masked value is multiplied by zero and must give zero.
INLINE void make_finite(float* x, int count) {
  for (int i = 0; i < count; i += W) {
    store_f(x + i, min(max(load_f(x + i), set_f(-1e30f)), set_f(1e30f)));
  }
}

INLINE void store_kv_bf16(uint8_t* piece, int slot, int d, const float* key, const float* value) {
  alignas(64) uint16_t k[kMaxHeadDim], v[kMaxHeadDim];
  for (int i = 0; i < d; i += W) {
    store_bf16(k + i, load_f(key + i));
    store_bf16(v + i, load_f(value + i));
  }
  auto* keys = reinterpret_cast<uint16_t*>(piece);
  for (int i = 0; i < d; i += 2) __builtin_memcpy(keys + i * kBlockTokens + slot * 2, k + i, 4);
  uint16_t* values = keys + d * kBlockTokens + slot / 2 * 2 * d + slot % 2;
  for (int i = 0; i < d; i++) values[2 * i] = v[i];
}

INLINE void store_kv_int8(uint8_t* piece, int slot, int d, const float* key, const float* value) {
  alignas(64) int8_t k[kMaxHeadDim], v[kMaxHeadDim];
  int32_t unused;
  auto* scales = reinterpret_cast<float*>(piece + 2 * kBlockTokens * d);
  scales[slot] = quantize_s8(key, d, k, &unused);
  scales[kBlockTokens + slot] = quantize_s8(value, d, v, &unused);
  for (int i = 0; i < d; i += 4) {
    uint32_t four;
    __builtin_memcpy(&four, k + i, 4);
    four ^= 0x80808080u;  // k + 128
    __builtin_memcpy(piece + i * kBlockTokens + slot * 4, &four, 4);
  }
  auto* values = reinterpret_cast<int8_t*>(piece + kBlockTokens * d) + slot / 2 * 2 * d + slot % 2;
  for (int i = 0; i < d; i++) values[2 * i] = v[i];
}

// Prefetches the cache lines that `store_kv` will write for the slot of `position`: they are scattered over the piece.
INLINE void prefetch_slot(KvKind kind, const uint8_t* piece, int position, int d) {
  const int slot = position % kBlockTokens, bytes = kind == KvKind::kInt8 ? 1 : 2;
  for (int i = 0; i < d * bytes; i += 4) prefetch_l2(piece + i * kBlockTokens + slot * 4);
  const uint8_t* values = piece + (kBlockTokens + slot / 2 * 2) * d * bytes;
  for (int i = 0; i < 2 * d * bytes; i += 64) prefetch_l2(values + i);
  if (kind == KvKind::kInt8) {
    prefetch_l2(piece + 2 * kBlockTokens * d + slot * sizeof(float));
    prefetch_l2(piece + 2 * kBlockTokens * d + (kBlockTokens + slot) * sizeof(float));
  }
}

// Writes key and value of one row and KV head into the cache.
INLINE void store_kv(const HeadShape& shape, KvKind kind, uint8_t* piece, int position, const float* key_in,
                     const float* value_in) {
  const int d = shape.layer->heads.dim, slot = position % kBlockTokens;
  alignas(64) float key[kMaxHeadDim], value[kMaxHeadDim];
  rotate_head(shape, key_in, shape.layer->k_norm, position, key);
  const vf factor = set_f(shape.norms_values ? inverse_rms(value_in, d, d, shape.eps) : 1.0f);
  for (int i = 0; i < d; i += W) store_f(value + i, mul(load_f(value_in + i), factor));
  make_finite(key, d);
  make_finite(value, d);
  if (kind == KvKind::kBf16) store_kv_bf16(piece, slot, d, key, value);
  else store_kv_int8(piece, slot, d, key, value);
}
