// The gated delta rule: the state of a value head is a matrix of keys and values, in blocks of kPanel value columns, each
// [key_dim][kPanel]. A block depends on no other one, so threads may share a head by columns.
//
// With u = S^T k and r = S^T q of the state S before a token, the token changes it by d = beta (v - decay u), its output
// is decay r + (q k) d, and the state becomes decay S + k d^T. So a pass over the keys reads for one token and stores the
// change of the one before it: tokens cost one pass each, and one more at the end. Sums are in the order of the keys,
// whatever the number of tokens in a step, so that chunks of a prompt and the width of vectors do not change them.
//
// Where each channel, a number of the keys and a row of S, has its own decay, u and r are products with k and q times
// the decays, and the change leaves them as they are: the decay of all channels is then 1.

constexpr int kDeltaVectors = kPanel / W;

// The changes of a block's columns by a token.
struct DeltaChange {
  vf columns[kDeltaVectors];
};

// Changes the state by the token `before` (if UPDATE), from one place to another, and reads it for the token `now` (if
// READ).
template <bool BY_CHANNEL, bool UPDATE, bool READ>
INLINE void delta_pass(const float* from, float* to, int key_dim, const DeltaRow* before, const DeltaChange& change,
                       const DeltaRow* now, DeltaChange& u, DeltaChange& r) {
  const vf decay_of_all = set_f(UPDATE ? before->decay : 1.0f);
  UNROLL for (int i = 0; READ && i < kDeltaVectors; i++) u.columns[i] = r.columns[i] = zero_f();
  for (int key = 0; key < key_dim; key++, from += kPanel, to += kPanel) {
    const vf decay = BY_CHANNEL && UPDATE ? set_f(before->decays[key]) : decay_of_all;
    UNROLL for (int i = 0; i < kDeltaVectors; i++) {
      vf state = load_f(from + i * W);
      if constexpr (UPDATE) {
        state = fma(set_f(before->k[key]), change.columns[i], mul(decay, state));
        store_f(to + i * W, state);
      }
      if constexpr (READ) {
        u.columns[i] = fma(set_f(now->read_k[key]), state, u.columns[i]);
        r.columns[i] = fma(set_f(now->read_q[key]), state, r.columns[i]);
      }
    }
  }
}

// Writes the outputs of a token at the columns from `column` on, and returns the change of the state by it.
INLINE DeltaChange delta_change(const DeltaRow& row, int column, const DeltaChange& u, const DeltaChange& r) {
  DeltaChange change;
  const vf decay = set_f(row.decay);
  UNROLL for (int i = 0; i < kDeltaVectors; i++) {
    const vf rest = sub(load_f(row.v + column + i * W), mul(decay, u.columns[i]));
    change.columns[i] = mul(set_f(row.beta), rest);
    store_f(row.out + column + i * W, fma(set_f(row.dot), change.columns[i], mul(decay, r.columns[i])));
  }
  return change;
}

// Runs `count` tokens through a block of the state, from one place to another, which may be the same.
template <bool BY_CHANNEL>
NOINLINE void scan_delta(const DeltaRow* rows, int count, int column, int key_dim, const float* from, float* to) {
  DeltaChange change{}, u, r;
  delta_pass<BY_CHANNEL, false, true>(from, to, key_dim, nullptr, change, rows, u, r);
  for (int i = 1; i < count; i++, from = to) {
    change = delta_change(rows[i - 1], column, u, r);
    delta_pass<BY_CHANNEL, true, true>(from, to, key_dim, rows + i - 1, change, rows + i, u, r);
  }
  change = delta_change(rows[count - 1], column, u, r);
  delta_pass<BY_CHANNEL, true, false>(from, to, key_dim, rows + count - 1, change, nullptr, u, r);
}

// Scales a head to the length `length`; the floor is that of the reference networks, whatever the epsilon of their norms.
INLINE void scale_to(float* head, int size, float length) {
  vf squares = zero_f();
  for (int i = 0; i < size; i += W) squares = fma(load_f(head + i), load_f(head + i), squares);
  const vf factor = set_f(length / __builtin_sqrtf(sum(squares) + 1e-6f));
  for (int i = 0; i < size; i += W) store_f(head + i, mul(load_f(head + i), factor));
}

constexpr int kLatentRows = 4, kLatentVectors = 2;  // of a tile of products with latents

// Columns of the products of ROWS latents [rank] with a matrix [rank][size], each summed from the first number on.
template <int ROWS, int VECTORS>
INLINE void expand_columns(const float* matrix, int rank, int size, const float* const* latents, float* const* out, int column) {
  vf sums[ROWS][VECTORS];
  UNROLL for (int r = 0; r < ROWS; r++) {
    UNROLL for (int j = 0; j < VECTORS; j++) sums[r][j] = zero_f();
  }
  for (int i = 0; i < rank; i++) {
    const float* weights = matrix + static_cast<size_t>(i) * size + column;
    UNROLL for (int j = 0; j < VECTORS; j++) {
      const vf weight = load_f(weights + j * W);
      UNROLL for (int r = 0; r < ROWS; r++) sums[r][j] = fma(set_f(latents[r][i]), weight, sums[r][j]);
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    UNROLL for (int j = 0; j < VECTORS; j++) store_f(out[r] + column + j * W, sums[r][j]);
  }
}

template <int ROWS>
INLINE void expand_rows_of(const float* matrix, int rank, int size, const float* const* latents, float* const* out) {
  int column = 0;
  for (; column + kLatentVectors * W <= size; column += kLatentVectors * W) {
    expand_columns<ROWS, kLatentVectors>(matrix, rank, size, latents, out, column);
  }
  for (; column < size; column += W) expand_columns<ROWS, 1>(matrix, rank, size, latents, out, column);
}

NOINLINE void expand_latents(const float* matrix, int rank, int size, const float* const* latents, int count, float* const* out) {
  int i = 0;
  for (; i + kLatentRows <= count; i += kLatentRows) expand_rows_of<kLatentRows>(matrix, rank, size, latents + i, out + i);
  for (; i < count; i++) expand_rows_of<1>(matrix, rank, size, latents + i, out + i);
}

// Returns the latent of the decays of a token, before that of its gates; that of replayed tokens is in the slot.
const float* StepRun::decay_latent(const StateLayer& state, const StateRows& rows, int token) const {
  if (token >= 0) return qkv(rows.first + token) + state.first_latent;
  return rows.from + state.latents + static_cast<size_t>(token + rows.replayed) * state.num_latents;
}

// Computes the decays of each channel, and the gates z of tokens that are not replayed.
void StepRun::load_channels(const StateLayer& state, const StateRows& rows, int head, int first, int count, DeltaRow* loaded) const {
  const Delta& delta = state.delta;
  const int keys = delta.key_dim, begin = first < 0 ? -first : 0;
  const float *latents[kScanTokens], *bias = delta.dt_bias + static_cast<size_t>(head) * keys;
  float *decays[kScanTokens], *z[kScanTokens];
  for (int i = 0; i < count; i++) {
    latents[i] = decay_latent(state, rows, first + i);
    decays[i] = loaded[i].out + delta.value_padded();
  }
  expand_latents(delta.dt_b + static_cast<size_t>(head) * keys * keys, keys, keys, latents, count, decays);
  const vf rate = set_f(kLog2E * delta.decay[head]);
  for (int i = 0; i < count; i++) {
    float *read_q = decays[i] + keys, *read_k = read_q + keys;
    for (int j = 0; j < keys; j += W) {
      const vf decay = exp2_v(mul(rate, softplus_v(add(load_f(decays[i] + j), load_f(bias + j)))));
      store_f(decays[i] + j, decay);
      store_f(read_q + j, mul(load_f(loaded[i].q + j), decay));
      store_f(read_k + j, mul(load_f(loaded[i].k + j), decay));
    }
    loaded[i].read_q = read_q, loaded[i].read_k = read_k, loaded[i].decays = decays[i];
  }
  for (int i = begin; i < count; i++) {
    latents[i] += state.num_latents;
    z[i] = qkv(rows.first + first + i) + state.outputs + head * delta.value_dim;
  }
  expand_latents(delta.z_b + static_cast<size_t>(head) * keys * delta.value_dim, keys, delta.value_dim, latents + begin,
                 count - begin, z + begin);
}

// Prepares the inputs of `count` tokens from `first` on: convolution, SiLU and the gates. They lie behind the state of the
// draft tokens in the memory of the thread.
void StepRun::load_delta_rows(const StateLayer& state, const StateRows& rows, int head, int first, int count,
                              DeltaRow* loaded) const {
  const Delta& delta = state.delta;
  const int keys = delta.key_dim, values = delta.value_dim, padded = delta.value_padded();
  const int key_head = delta.key_head_of(head), first_value = 2 * delta.key_heads * keys + head * values;
  float* place = scan_scratch() + delta.head_size();
  for (int i = 0; i < count; i++, place += delta.row_size()) {
    float *q = place, *k = q + keys, *v = k + keys;
    const auto load = [&](int channel, int size, float* out) {
      convolve(state, rows, first + i, {channel, channel + size},
               [&](int c, vf value) { store_f(out + c - channel, silu(value)); });
    };
    load(key_head * keys, keys, q);
    load((delta.key_heads + key_head) * keys, keys, k);
    load(first_value, values, v);
    for (int j = values; j < padded; j++) v[j] = 0.0f;
    scale_to(q, keys, 1.0f / __builtin_sqrtf(static_cast<float>(keys)));
    scale_to(k, keys, 1.0f);
    vf dot = zero_f();
    for (int j = 0; j < keys; j += W) dot = fma(load_f(q + j), load_f(k + j), dot);
    const float* gates = scan_gates(state, rows, first + i);
    const auto decay = [&] {
      return exp2_one(kLog2E * delta.decay[head] * softplus_one(gates[delta.value_heads + head] + delta.dt_bias[head]));
    };
    loaded[i] = {q, k, q, k, v, v + padded, nullptr, delta.by_channel ? 1.0f : decay(),
                 delta.beta_scale * sigmoid_one(gates[head]), sum(dot)};
  }
  if (delta.by_channel) load_channels(state, rows, head, first, count, loaded);
}

// Norms the outputs of tokens and gates them, in place of the gates z; replayed tokens have none.
void StepRun::finish_delta_rows(const StateLayer& state, const StateRows& rows, int head, int first, int count,
                                const DeltaRow* loaded) const {
  const Delta& delta = state.delta;
  for (int i = first < 0 ? -first : 0; i < count; i++) {
    float* z = qkv(rows.first + first + i) + state.outputs + head * delta.value_dim;
    rms_norm(loaded[i].out, delta.norm, delta.value_dim, delta.value_dim, delta.norm_eps, loaded[i].out);
    const auto gate = [&](const auto& activated) {
      for (int j = 0; j < delta.value_dim; j += W) store_f(z + j, activated(load_f(loaded[i].out + j), load_f(z + j)));
    };
    if (delta.by_channel) gate([](vf x, vf own) { return sigmoid_times(x, own); });
    else gate([](vf x, vf own) { return mul(x, silu(own)); });
  }
}

// Runs all tokens of a sequence through a value head. The state after the certain tokens and after each snapshot is stored;
// draft tokens change a copy.
void StepRun::run_delta_head(const StateLayer& state, const StateRows& rows, int head) const {
  const Delta& delta = state.delta;
  const int size = delta.head_size(), block = delta.key_dim * kPanel;
  const auto place_in = [&](float* slot) { return slot + state.scan + static_cast<size_t>(head) * size; };
  const float* from = rows.from + state.scan + static_cast<size_t>(head) * size;
  const Snapshot* snapshot = rows.snapshots;
  const auto scan = delta.by_channel ? scan_delta<true> : scan_delta<false>;
  DeltaRow loaded[kScanTokens];
  for (int token = -rows.replayed; token < rows.count;) {
    int stop = token < rows.certain ? rows.certain : rows.count;
    if (snapshot < rows.snapshots_end) stop = snapshot->tokens - rows.replayed;
    const int count = stop - token < kScanTokens ? stop - token : kScanTokens;
    float* to = token < rows.certain ? place_in(rows.to) : scan_scratch();
    load_delta_rows(state, rows, head, token, count, loaded);
    for (int i = 0; i < size / block; i++) {
      scan(loaded, count, i * kPanel, delta.key_dim, from + i * block, to + i * block);
    }
    finish_delta_rows(state, rows, head, token, count, loaded);
    from = to, token += count;
    if (snapshot < rows.snapshots_end && token == snapshot->tokens - rows.replayed) {
      __builtin_memcpy(place_in(state_cache.slot(snapshot->slot)), to, static_cast<size_t>(size) * sizeof(float));
      snapshot++;
    }
  }
}

// Runs key heads [begin, end) with their value heads: no other thread reads or writes their channels, states and gates.
// What the slot keeps of the inputs is stored last, since it may take the place of what was read.
void StepRun::run_delta(const StateLayer& state, const StateRows& rows, Share key_heads) const {
  const Delta& delta = state.delta;
  const auto visit_heads = [&](const auto& visit) {
    for (int head = 0; head < delta.value_heads; head++) {
      const int key_head = delta.key_head_of(head);
      if (key_head >= key_heads.begin && key_head < key_heads.end) visit(head);
    }
  };
  visit_heads([&](int head) { run_delta_head(state, rows, head); });
  const int keys = delta.key_heads * delta.key_dim;
  for (int first : {0, keys}) {
    store_conv_inputs(state, rows, {first + key_heads.begin * delta.key_dim, first + key_heads.end * delta.key_dim});
  }
  visit_heads([&](int head) {
    const int first = 2 * keys + head * delta.value_dim;
    store_conv_inputs(state, rows, {first, first + delta.value_dim});
    store_gates(state, rows, {head, head + 1});
    if (!delta.by_channel) store_gates(state, rows, {delta.value_heads + head, delta.value_heads + head + 1});
  });
}

// Stores the latents of the draft tokens, which all heads read, for their replay.
void StepRun::store_decay_latents(const StateLayer& state, const StateRows& rows) const {
  const size_t bytes = static_cast<size_t>(state.num_latents) * sizeof(float);
  for (int token = rows.certain; token < rows.count; token++) {
    float* to = rows.to + state.latents + static_cast<size_t>(token - rows.certain) * state.num_latents;
    __builtin_memcpy(to, decay_latent(state, rows, token), bytes);
  }
}
