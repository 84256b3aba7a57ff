// LoRA adapters: y += expand * (shrink * x), for rows of several adapters in one step.
//
// Steps with many adapters wait for memory, so factors are int8 whatever the format of the base weights; inputs are the
// int8 ones of the base product (bf16: two terms of int8), inner values int16. A row reads nothing but its own inputs
// and its adapter, in a fixed order: its bits do not depend on the other rows.

// Reads bf16 inputs of a row that lie together.
INLINE void load_slab(const int8_t* values, float* out) {
  if (kBf16Parts == 2) {
    __builtin_memcpy(out, values, kSlab * sizeof(float));
    return;
  }
  uint16_t numbers[kSlab];
  uint32_t bits[kSlab];
  __builtin_memcpy(numbers, values, sizeof numbers);
  for (int i = 0; i < kSlab; i++) bits[i] = static_cast<uint32_t>(numbers[i]) << 16;
  __builtin_memcpy(out, bits, sizeof bits);
}

// Quantizes a row of bf16 inputs to two terms, for products with int8 factors.
INLINE void quantize_bf16(const Activations& inputs, int row, int k, const Activations& out, int out_row) {
  const int8_t* values = row_values(inputs, static_cast<size_t>(row));
  for (int i = 0; i < k; i += kDepth) {
    alignas(64) float floats[kDepth];
    for (int j = 0; j < kDepth; j += kSlab, values += slab_bytes(inputs)) load_slab(values, floats + j);
    quantize_row(WeightKind::kW8, floats, kDepth, out, out_row, i);
  }
}

// The scales of the 4 W inputs from `first` on, of which `depth` share one.
INLINE vf lane_scales(const float* scales, int first, int depth) {
  const float* own = scales + first / depth;
  if (depth >= 4 * W) return set_f(own[0]);
  return select(lanes_between(0, depth / 4), set_f(own[0]), set_f(own[1]));
}

constexpr float kInnerSteps = 32767;

// Computes kRankBlock inner values, and their scale. A block is too short for the prefetcher of the hardware: the one that
// is computed after it, at `next`, is prefetched meanwhile.
INLINE void shrink_block(const uint8_t* weights, const uint8_t* next, const float* rank_scales, const InputRow& x, int k,
                         int16_t* out, float* out_scale) {
  prefetch(rank_scales);
  alignas(64) uint8_t zeros[64];
  __builtin_memset(zeros, 128, sizeof zeros);
  const w8_t zero = load_w8(zeros);  // dot_w8 may add an offset to all weights
  vf total[kRankBlock], offset = zero_f();
  UNROLL for (int r = 0; r < kRankBlock; r++) total[r] = zero_f();
  const float* scales = x.inputs->scales + static_cast<size_t>(x.row) * x.inputs->groups_pitch;
  const int8_t* values = row_values(*x.inputs, static_cast<size_t>(x.row));
  for (int first = 0; first < k; first += kDepth, values += slab_bytes(*x.inputs), weights += kRankBlock * kDepth) {
    for (int i = 0; i < kRankBlock * kDepth; i += 64, next += 64) prefetch(next);
    for (int term = 0; term < x.inputs->terms; term++) {
      UNROLL for (int i = 0; i < kDepth; i += 4 * W) {
        const vi b = load_i(values + term * kDepth + i);
        const vf own = lane_scales(scales, first + i, x.depth), scale = term ? mul(own, set_f(1 / kTermRatio)) : own;
        offset = fma(to_f(dot_w8(zero_i(), zero, b)), scale, offset);
        UNROLL for (int r = 0; r < kRankBlock; r++) {
          total[r] = fma(to_f(dot_w8(zero_i(), load_w8(weights + r * kDepth + i), b)), scale, total[r]);
        }
      }
    }
  }
  float numbers[kRankBlock], peak = 0;
  for (int r = 0; r < kRankBlock; r++) {
    numbers[r] = sum(sub(total[r], offset)) * rank_scales[r];
    const float magnitude = numbers[r] < 0 ? -numbers[r] : numbers[r];
    if (magnitude > peak) peak = magnitude;
  }
  const float inverse = peak > 1e-30f ? kInnerSteps / peak : 0.0f;
  for (int r = 0; r < kRankBlock; r++) out[r] = static_cast<int16_t>(__builtin_lrintf(numbers[r] * inverse));
  *out_scale = peak / kInnerSteps;
}

// Adds the products of one row's inner values with a panel to its outputs. `parts`: of both halves of the panel.
INLINE void expand_panel(const LowRank& matrix, const uint8_t* parts, int panel, const InnerRow& inner, float* out) {
  const size_t bytes = expand_panel_bytes(matrix.rank);
  const int8_t* weights = matrix.expand + static_cast<size_t>(panel) * bytes;
  const auto* output_scales = reinterpret_cast<const uint16_t*>(weights + static_cast<size_t>(matrix.rank) * kPanel);
  for (size_t i = 0; i < bytes; i += 64) prefetch(weights + bytes + i);
  for (int lane = 0; lane < kPanel; lane += W) {
    const int first = parts[lane / (kPanel / 2)] * matrix.rank;
    const int8_t* pairs = weights + lane * 2;
    vf total = zero_f();
    for (int block = first; block < first + matrix.rank; block += kRankBlock) {
      vi sums = zero_i();
      UNROLL for (int r = block; r < block + kRankBlock; r += 2, pairs += 2 * kPanel) {
        sums = dot_s16(sums, load_s8_as_s16(pairs), bcast4(inner.values + r));
      }
      total = fma(to_f(sums), set_f(inner.scales[block / kRankBlock]), total);
    }
    store_f(out + lane, fma(total, load_f16(output_scales + lane), load_f(out + lane)));
  }
}

const LowRank* StepRun::low_rank(const Adapted& adapted, int row) const {
  const int slot = work.row_adapter[adapted.token + row];
  if (slot < 0) return nullptr;
  const AdapterTable& table = m.adapters;
  const LowRank* matrix =
      table.matrices + (static_cast<size_t>(slot) * table.num_layers + adapted.layer) * kNumAdapted + adapted.matrix;
  return matrix->rank > 0 ? matrix : nullptr;
}

InputRow StepRun::int8_inputs(WeightKind kind, const Activations& inputs, int row, int k) const {
  if (kind != WeightKind::kBf16) return {&inputs, row, group_of(kind)};
  quantize_bf16(inputs, row, k, work.adapter_inputs, thread);
  return {&work.adapter_inputs, thread, kDepth};
}

// Computes the inner values of rows whose inputs begin at row `first_input`; of a step that is split by columns only
// this thread's share.
void StepRun::shrink_rows(const Adapted& adapted, const Matrix& base, const Activations& inputs, int first_input,
                          int num_rows, bool is_shared) const {
  const auto blocks_of = [&](const LowRank* matrix) { return matrix ? matrix->num_ranks / kRankBlock : 0; };
  int total = 0;
  for (int i = 0; i < num_rows; i++) total += blocks_of(low_rank(adapted, i));
  const Share mine = is_shared ? share_of(total, thread, num_threads) : Share{0, total};
  for (int i = 0, before = 0; i < num_rows && before < mine.end; i++) {
    const LowRank* matrix = low_rank(adapted, i);
    const int count = blocks_of(matrix), end = mine.end - before < count ? mine.end - before : count;
    int block = mine.begin > before ? mine.begin - before : 0;
    before += count;
    if (block >= end) continue;
    const InputRow x = int8_inputs(base.kind, inputs, first_input + i, base.k);
    const InnerRow row = inner(adapted.scratch + i);
    const LowRank* following = i + 1 < num_rows ? low_rank(adapted, i + 1) : nullptr;
    for (; block < end; block++) {
      const int rank = block * kRankBlock;
      const uint8_t* here = matrix->shrink + static_cast<size_t>(rank) * base.k;
      const uint8_t* next = following ? following->shrink : here;
      if (block + 1 < end) next = here + static_cast<size_t>(kRankBlock) * base.k;
      shrink_block(here, next, matrix->rank_scales + rank, x, base.k, row.values + rank, row.scales + block);
    }
  }
}

// Adds to a tile of `count` rows from `row` on, at outputs `column` to `column + kPanel`.
void StepRun::expand_rows(const Adapted& adapted, int row, int count, int column, float* tile) const {
  const uint8_t* parts = m.adapters.parts[adapted.layer * kNumAdapted + adapted.matrix] + column / (kPanel / 2);
  for (int r = row; r < row + count; r++, tile += kPanel) {
    const LowRank* matrix = low_rank(adapted, r);
    if (matrix) expand_panel(*matrix, parts, column / kPanel, inner(adapted.scratch + r), tile);
  }
}
