// The state space model of Mamba2: the state of a head is a matrix [state_size][head_dim], of which a token scales all of it
// and adds outer(B, dt x); its output is the product with C. The columns of a head depend on no others, and the sum of
// each is in the order of the rows, so that chunks of a prompt, threads and the width of vectors do not change them.

// The inputs and the output of a token in one head.
struct SsdRow {
  const float *b, *c;  // [state_size]
  const float* x;      // [head_dim]
  float* out;          // [head_dim]
  float decay, dt, skip;
};

constexpr int kSsdVectors = 4;  // vectors of columns that a pass computes, whose sums are independent of each other

// Runs `count` tokens through VECTORS vectors of columns from `column` on, whose state goes from one place to another.
template <int VECTORS>
INLINE void scan_columns(const Ssd& ssd, const SsdRow* rows, int count, int column, const float* from, float* to) {
  for (int token = 0; token < count; token++, from = to) {
    const SsdRow& row = rows[token];
    vf change[VECTORS], sums[VECTORS];
    UNROLL for (int i = 0; i < VECTORS; i++) {
      change[i] = mul(set_f(row.dt), load_f(row.x + column + i * W));
      sums[i] = zero_f();
    }
    const vf decay = set_f(row.decay);
    for (int n = 0; n < ssd.state_size; n++) {
      const size_t at = static_cast<size_t>(n) * ssd.head_dim + column;
      const vf b = set_f(row.b[n]), c = set_f(row.c[n]);
      UNROLL for (int i = 0; i < VECTORS; i++) {
        const vf state = fma(b, change[i], mul(decay, load_f(from + at + i * W)));
        store_f(to + at + i * W, state);
        sums[i] = fma(c, state, sums[i]);
      }
    }
    UNROLL for (int i = 0; i < VECTORS; i++) {
      store_f(row.out + column + i * W, fma(set_f(row.skip), load_f(row.x + column + i * W), sums[i]));
    }
  }
}

NOINLINE void scan_ssd(const Ssd& ssd, const SsdRow* rows, int count, const float* from, float* to) {
  int column = 0;
  for (; column + kSsdVectors * W <= ssd.head_dim; column += kSsdVectors * W) {
    scan_columns<kSsdVectors>(ssd, rows, count, column, from, to);
  }
  for (; column < ssd.head_dim; column += W) scan_columns<1>(ssd, rows, count, column, from, to);
}

// The memory of a thread: a copy of the state of a head for draft tokens, and the inputs of kScanTokens tokens.
float* StepRun::ssd_vectors(const Ssd& ssd, int token) const {
  return scan_scratch() + ssd.head_size() + static_cast<size_t>(token) * 2 * (ssd.state_size + ssd.head_dim);
}

// Convolves B and C of a group at `count` tokens from `first` on, for all of its heads.
void StepRun::load_ssd_group(const StateLayer& state, const StateRows& rows, int group, int first, int count) const {
  const Ssd& ssd = state.ssd;
  const int size = ssd.state_size;
  for (int i = 0; i < count; i++) {
    float* place = ssd_vectors(ssd, i);
    for (const int channel : {ssd.num_values() + group * size, ssd.num_values() + (ssd.groups + group) * size}) {
      convolve(state, rows, first + i, {channel, channel + size},
               [&](int c, vf value) { store_f(place + c - channel, silu(value)); });
      place += size;
    }
  }
}

// Runs tokens whose B and C are prepared through a head, and writes the gated outputs in place of the gates z; replayed
// tokens have none.
void StepRun::run_ssd_tokens(const StateLayer& state, const StateRows& rows, int head, int first, int count,
                             const float* from, float* to) const {
  const Ssd& ssd = state.ssd;
  const int size = ssd.head_dim, channel = head * size;
  SsdRow loaded[kScanTokens];
  for (int i = 0; i < count; i++) {
    float *b = ssd_vectors(ssd, i), *c = b + ssd.state_size, *x = c + ssd.state_size;
    convolve(state, rows, first + i, {channel, channel + size},
             [&](int at, vf value) { store_f(x + at - channel, silu(value)); });
    const float dt = softplus_one(scan_gates(state, rows, first + i)[head] + ssd.dt_bias[head]);
    loaded[i] = {b, c, x, x + size, exp2_one(kLog2E * ssd.decay[head] * dt), dt, ssd.skip[head]};
  }
  scan_ssd(ssd, loaded, count, from, to);
  for (int i = first < 0 ? -first : 0; i < count; i++) {
    float* z = qkv(rows.first + first + i) + state.outputs + channel;
    for (int j = 0; j < size; j += W) store_f(z + j, mul(load_f(loaded[i].out + j), silu(load_f(z + j))));
  }
}

// Runs all tokens of a sequence through some heads of a group. The state after the certain tokens and after each snapshot
// is stored; draft tokens change a copy.
void StepRun::run_ssd_heads(const StateLayer& state, const StateRows& rows, int group, Share heads) const {
  const Ssd& ssd = state.ssd;
  const size_t bytes = static_cast<size_t>(ssd.head_size()) * sizeof(float);
  const auto offset_of = [&](int head) { return state.scan + static_cast<size_t>(head) * ssd.head_size(); };
  const float* from = rows.from;
  const Snapshot* snapshot = rows.snapshots;
  for (int token = -rows.replayed; token < rows.certain; from = rows.to) {
    const int stop = snapshot < rows.snapshots_end ? snapshot->tokens - rows.replayed : rows.certain;
    const int count = stop - token < kScanTokens ? stop - token : kScanTokens;
    load_ssd_group(state, rows, group, token, count);
    for (int head = heads.begin; head < heads.end; head++) {
      run_ssd_tokens(state, rows, head, token, count, from + offset_of(head), rows.to + offset_of(head));
    }
    token += count;
    if (token != stop || snapshot == rows.snapshots_end) continue;
    for (int head = heads.begin; head < heads.end; head++) {
      __builtin_memcpy(state_cache.slot(snapshot->slot) + offset_of(head), rows.to + offset_of(head), bytes);
    }
    snapshot++;
  }
  for (int head = heads.begin; head < heads.end; head++) {
    from = rows.to + offset_of(head);
    for (int token = rows.certain; token < rows.count; token += kScanTokens, from = scan_scratch()) {
      const int count = rows.count - token < kScanTokens ? rows.count - token : kScanTokens;
      load_ssd_group(state, rows, group, token, count);
      run_ssd_tokens(state, rows, head, token, count, from, scan_scratch());
    }
  }
}

// Runs heads [begin, end): no other thread reads or writes their channels of x, states and gates. What the slot keeps of
// these is stored last, since it may take the place of what was read; B and C, which other threads read, come later.
void StepRun::run_ssd(const StateLayer& state, const StateRows& rows, Share heads) const {
  const Ssd& ssd = state.ssd;
  const int per_group = ssd.heads / ssd.groups;
  for (int head = heads.begin; head < heads.end;) {
    const int group = head / per_group, end = (group + 1) * per_group, stop = end < heads.end ? end : heads.end;
    run_ssd_heads(state, rows, group, {head, stop});
    head = stop;
  }
  store_conv_inputs(state, rows, {heads.begin * ssd.head_dim, heads.end * ssd.head_dim});
  store_gates(state, rows, heads);
}

// Stores what later steps need of inputs that several heads read, of this thread's share of the sequences, once all
// threads have read them: B and C of a state space model, latents of the delta rule.
void StepRun::store_shared_inputs(const Layer& layer) const {
  const StateLayer& state = layer.state;
  if (state.mixer != Mixer::kSsd && state.num_latents == 0) return;
  const Share sequences = share_of(step.num_sequences, thread, num_threads);
  for (int s = sequences.begin; s < sequences.end; s++) {
    if (state.num_latents > 0) store_decay_latents(state, state_rows_of(s));
    else store_conv_inputs(state, state_rows_of(s), {state.ssd.num_values(), state.channels});
  }
}

// Norms the gated outputs of a row over each group.
void StepRun::norm_ssd(const Ssd& ssd, float* row) const {
  const int size = ssd.num_values() / ssd.groups;
  for (int first = 0; first < ssd.num_values(); first += size) {
    rms_norm(row + first, ssd.norm + first, size, size, ssd.norm_eps, row + first);
  }
}
