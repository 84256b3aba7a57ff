// State layers: the convolution over the last tokens of a sequence, and its state in a slot.
//
// The outputs of `mix_in` of a token are a row of `qkv`. A thread computes some channels of a sequence, all of its tokens
// in order, so the bits of a state depend neither on the other sequences nor on chunks, threads or slots.

// Norms the rows that gates are computed of, which `norm_inputs` only keeps quantized.
void StepRun::keep_normed(const Layer& layer, Rows rows) const {
  for (int i = 0; layer.state.num_gates > 0 && i < rows.count; i++) {
    norm_row(m, x(rows.token + i), layer.attn_norm, m.hidden_padded, normed(rows.input + i));
  }
}

// Computes gates of a scan, in float32.
void StepRun::project_gates(const Layer& layer, Rows rows, Share gates) const {
  score_all_rows(layer.state.small, nullptr, m.hidden_padded, gates, normed(rows.input), rows.count, gates_of(rows.token),
                 m.gates_pitch);
}

StateRows StepRun::state_rows_of(int sequence) const {
  const StateStep& states = step.states;
  const Snapshot *snapshot = states.snapshots, *end = snapshot + states.num_snapshots;
  while (snapshot < end && snapshot->sequence < sequence) snapshot++;
  const Snapshot* stop = snapshot;
  while (stop < end && stop->sequence == sequence) stop++;
  return {step.query_starts[sequence], tokens_of(sequence), states.certain[sequence], states.replayed[sequence],
          state_cache.slot(states.read[sequence]), state_cache.slot(states.write[sequence]), snapshot, stop};
}

// Stores the inputs of the convolution that later steps need, of channels [begin, end): those before the end of the
// certain tokens and before each snapshot, and those of draft tokens. A slot that is written in place is read in time:
// its rows move towards its beginning.
void StepRun::store_conv_inputs(const StateLayer& state, const StateRows& rows, Share channels) const {
  const size_t bytes = static_cast<size_t>(channels.end - channels.begin) * sizeof(float);
  const auto copy = [&](float* slot, int row, int token) {
    float* to = slot + state.rows + static_cast<size_t>(row) * state.channels + channels.begin;
    __builtin_memmove(to, conv_input(state, rows, token) + channels.begin, bytes);
  };
  const auto store = [&](float* slot, int after) {
    for (int row = 0; row < state.taps - 1; row++) copy(slot, row, after - (state.taps - 1) + row);
  };
  for (const Snapshot* at = rows.snapshots; at < rows.snapshots_end; at++) {
    store(state_cache.slot(at->slot), at->tokens - rows.replayed);
  }
  store(rows.to, rows.certain);
  for (int token = rows.certain; token < rows.count; token++) copy(rows.to, state.taps - 1 + token - rows.certain, token);
}

// Convolves channels [begin, end) at a token, summed from the oldest tap on, and gives each vector to `visit`.
template <class Visit>
void StepRun::convolve(const StateLayer& state, const StateRows& rows, int token, Share channels, const Visit& visit) const {
  const float* inputs[kMaxTaps];
  for (int tap = 0; tap < state.taps; tap++) inputs[tap] = conv_input(state, rows, token - (state.taps - 1) + tap);
  for (int c = channels.begin; c < channels.end; c += W) {
    vf total = mul(load_f(state.filter + c), load_f(inputs[0] + c));
    for (int tap = 1; tap < state.taps; tap++) {
      total = fma(load_f(state.filter + static_cast<size_t>(tap) * state.channels + c), load_f(inputs[tap] + c), total);
    }
    visit(c, state.filter_bias ? add(total, load_f(state.filter_bias + c)) : total);
  }
}

// Returns the gates of a token; those of replayed tokens are in the slot.
const float* StepRun::scan_gates(const StateLayer& state, const StateRows& rows, int token) const {
  if (token >= 0) return gates_of(rows.first + token);
  return rows.from + state.gates + static_cast<size_t>(token + rows.replayed) * state.num_gates;
}

// Stores gates of the draft tokens for their replay.
void StepRun::store_gates(const StateLayer& state, const StateRows& rows, Share gates) const {
  for (int token = rows.certain; token < rows.count; token++) {
    float* to = rows.to + state.gates + static_cast<size_t>(token - rows.certain) * state.num_gates;
    for (int i = gates.begin; i < gates.end; i++) to[i] = gates_of(rows.first + token)[i];
  }
}

// C * conv(B * x), in place: the product takes the place of x, and the result that of B. In a step of few rows the result
// is quantized for `o` at once, which saves a barrier.
void StepRun::run_short_conv(const Layer& layer, const StateRows& rows, Share channels) const {
  const StateLayer& state = layer.state;
  const int width = channels.end - channels.begin;
  for (int token = 0; token < rows.count; token++) {
    float* before = qkv(rows.first + token);
    float *after = before + state.channels, *x = before + state.conv_inputs;
    for (int c = channels.begin; c < channels.end; c += W) store_f(x + c, mul(load_f(before + c), load_f(x + c)));
    convolve(state, rows, token, channels, [&](int c, vf value) { store_f(before + c, mul(load_f(after + c), value)); });
    if (!has_few_rows()) continue;
    quantize_row(layer.o.kind, before + channels.begin, width, work.inputs, rows.first + token, channels.begin);
  }
  store_conv_inputs(state, rows, channels);
}

// Computes this thread's share of the mixer of a state layer, for all tokens of the step.
void StepRun::run_state_share(const Layer& layer) const {
  const StateLayer& state = layer.state;
  constexpr int64_t kFixedCost = 8;  // of the state of a sequence, in tokens
  const auto cost_of = [&](int s) { return tokens_of(s) + step.states.replayed[s] + kFixedCost; };
  int64_t total = 0, before = 0;
  for (int s = 0; s < step.num_sequences; s++) total += cost_of(s) * state.num_units;
  const int64_t begin = total * thread / num_threads, end = total * (thread + 1) / num_threads;
  for (int s = 0; s < step.num_sequences; s++) {
    const int64_t cost = cost_of(s);
    const auto unit_at = [&](int64_t bound) {
      const int64_t unit = bound <= before ? 0 : (bound - before + cost - 1) / cost;
      return static_cast<int>(unit < state.num_units ? unit : state.num_units);
    };
    const Share units = {unit_at(begin), unit_at(end)};
    if (units.begin < units.end) run_state_units(layer, state_rows_of(s), units);
    before += cost * state.num_units;
  }
}

void StepRun::run_state_units(const Layer& layer, const StateRows& rows, Share units) const {
  const StateLayer& state = layer.state;
  if (state.mixer == Mixer::kDelta) return run_delta(state, rows, units);
  if (state.mixer == Mixer::kSsd) return run_ssd(state, rows, units);
  const int width = state.channels / state.num_units;
  run_short_conv(layer, rows, {units.begin * width, units.end * width});
}

// Quantizes the outputs of a state layer as the inputs of `o`.
void StepRun::quantize_mixed(const Layer& layer, Rows rows) const {
  const Matrix& output = state_output(layer);
  for (int i = 0; i < rows.count; i++) {
    if (layer.state.ssd.norm) norm_ssd(layer.state.ssd, qkv(rows.token + i) + layer.state.outputs);
    quantize_row(output.kind, qkv(rows.token + i) + layer.state.outputs, output.k, work.inputs, rows.scratch + i);
  }
}
