// LoRA adapters: y += expand * (shrink * x), for rows of several adapters in one step.
//
// Both products take bf16, whatever the format of the base weights. A row reads nothing but its own inputs and its
// adapter, in a fixed order: its bits do not depend on the other rows.

// Dequantizes a row of int8 inputs of one or two terms, with `depth` inputs a scale.
INLINE void dequantize_row(const Activations& inputs, int row, int k, int depth, uint16_t* out) {
  const float* scales = inputs.scales + static_cast<size_t>(row) * inputs.groups_pitch;
  for (int i = 0; i < k; i += kSlab) {
    const int8_t* values = row_values(inputs, static_cast<size_t>(i / kDepth) * inputs.num_rows + row) + i % kDepth;
    const float scale = scales[i / depth];
    alignas(64) float numbers[kSlab];
    for (int j = 0; j < kSlab; j++) numbers[j] = static_cast<float>(values[j]);
    if (inputs.terms == 2) {
      for (int j = 0; j < kSlab; j++) numbers[j] += static_cast<float>(values[kDepth + j]) * (1 / kTermRatio);
    }
    for (int j = 0; j < kSlab; j++) numbers[j] *= scale;
    for (int j = 0; j < kSlab; j += W) store_bf16(out + i + j, load_f(numbers + j));
  }
}

constexpr int kShrinkAhead = 4096;  // numbers: a block of ranks is too short for the prefetcher of the hardware

// Computes kRankBlock inner values.
INLINE void shrink_block(const uint16_t* weights, Slabs x, int k, uint16_t* out) {
  vf total[kRankBlock];
  UNROLL for (int r = 0; r < kRankBlock; r++) total[r] = zero_f();
  for (int slab = 0; slab < k / kSlab; slab++, weights += kRankBlock * kSlab) {
    for (int i = 0; i < kRankBlock * kSlab; i += 32) prefetch(weights + kShrinkAhead + i);
    const uint8_t* input = x.first + slab * x.pitch;
    UNROLL for (int i = 0; i < kSlab; i += 2 * W) {
      const vi b = load_i(input + i * 2);
      UNROLL for (int r = 0; r < kRankBlock; r++) total[r] = dot_bf16(total[r], load_i(weights + r * kSlab + i), b);
    }
  }
  alignas(64) float sums[16] = {};
  alignas(64) uint16_t rounded[16];
  for (int r = 0; r < kRankBlock; r++) sums[r] = sum(total[r]);
  for (int r = 0; r < kRankBlock; r += W) store_bf16(rounded + r, load_f(sums + r));
  __builtin_memcpy(out, rounded, kRankBlock * sizeof(uint16_t));
}

// Adds the products of one row's inner values with a panel to its outputs. `parts`: of both halves of the panel.
INLINE void expand_panel(const LowRank& matrix, const uint8_t* parts, int panel, const uint16_t* inner, float* out) {
  const uint16_t* weights = matrix.expand + static_cast<size_t>(panel) * matrix.rank * kPanel;
  for (int half = 0; half < 2; half++) {
    const uint16_t* values = inner + parts[half] * matrix.rank;
    for (int lane = half * kPanel / 2; lane < (half + 1) * kPanel / 2; lane += W) {
      vf total = zero_f();
      const uint16_t* pairs = weights + lane * 2;
      for (int r = 0; r < matrix.rank; r += 2, pairs += 2 * kPanel) {
        if (lane == 0 || lane == kPanel / 2) prefetch(pairs + static_cast<size_t>(matrix.rank) * kPanel);
        total = dot_bf16(total, load_i(pairs), bcast4(values + r));
      }
      store_f(out + lane, add(load_f(out + lane), total));
    }
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

Slabs StepRun::bf16_inputs(WeightKind kind, const Activations& inputs, int row, int k) const {
  if (kind == WeightKind::kBf16) {
    return {reinterpret_cast<const uint8_t*>(row_values(inputs, static_cast<size_t>(row))), slab_bytes(inputs)};
  }
  uint16_t* buffer = work.adapter_inputs + static_cast<size_t>(thread) * work.adapter_inputs_pitch;
  dequantize_row(inputs, row, k, group_of(kind), buffer);
  return {reinterpret_cast<const uint8_t*>(buffer), kSlab * sizeof(uint16_t)};
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
    const Slabs x = bf16_inputs(base.kind, inputs, first_input + i, base.k);
    for (; block < end; block++) {
      shrink_block(matrix->shrink + static_cast<size_t>(block) * kRankBlock * base.k, x, base.k,
                   inner(adapted.scratch + i) + block * kRankBlock);
    }
  }
}

// Adds to a tile of `count` rows from `row` on, at outputs `column` to `column + kPanel`.
void StepRun::expand_rows(const Adapted& adapted, int row, int count, int column, float* tile) const {
  const uint8_t* parts = m.adapters.parts[adapted.matrix] + column / (kPanel / 2);
  for (int r = row; r < row + count; r++, tile += kPanel) {
    const LowRank* matrix = low_rank(adapted, r);
    if (matrix) expand_panel(*matrix, parts, column / kPanel, inner(adapted.scratch + r), tile);
  }
}
