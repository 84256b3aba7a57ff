// Keys and attention of a range of rows: which tokens a row sees, and its share of the work.

void StepRun::store_keys(int index, const Layer& layer, int token, int kv_head) const {
  const int sequence = work.row_sequence[token], position = work.row_position[token];
  const int32_t* table = step.block_tables + static_cast<size_t>(sequence) * step.table_width;
  const Heads& heads = layer.heads;
  const float* key = qkv(token) + (heads.count + kv_head) * heads.dim;
  const float* value = heads.keys_as_values ? key : key + heads.keys();
  store_kv({&layer, m.norm_eps, m.norms_rotated, m.norms_values}, kv.kind, kv.piece(index, table[position / kBlockTokens], kv_head), position,
           key, value);
}

void StepRun::prefetch_keys(int index, int token, int kv_head) const {
  const int position = work.row_position[token];
  const int32_t* table = step.block_tables + static_cast<size_t>(work.row_sequence[token]) * step.table_width;
  prefetch_slot(kv.kind, kv.piece(index, table[position / kBlockTokens], kv_head), position, m.layers[index].heads.dim);
}

// Stores the keys of this thread's share of rows and KV heads; with `whole_heads` those that it attends to itself.
void StepRun::store_keys_share(int index, bool whole_heads) const {
  const Layer& layer = m.layers[index];
  if (whole_heads) {
    visit_share(layer.heads, true, [&](HeadRows part) { prefetch_keys(index, step.query_starts[part.sequence], part.kv_head); });
    visit_share(layer.heads, true, [&](HeadRows part) { store_keys(index, layer, step.query_starts[part.sequence], part.kv_head); });
    return;
  }
  const int num_kv = layer.heads.num_kv;
  const Share keys = share_of(step.num_tokens * num_kv, thread, num_threads);
  for (int i = keys.begin; i < keys.end; i++) store_keys(index, layer, i / num_kv, i % num_kv);
}

// Returns the positions that a token sees.
Share StepRun::seen_by(int index, int token) const {
  const int position = work.row_position[token], window = m.layers[index].window, after = position + 1;
  const int begin = window && after > window ? after - window : 0;
  if (m.causal) return {begin, after};
  const int total = tokens_of(work.row_sequence[token]);
  return {begin, window && position + window < total ? position + window : total};
}

Context StepRun::context_of(int index, HeadRows rows) const {
  const int start = step.query_starts[rows.sequence], group = m.layers[index].heads.group;
  return context_between(index, rows.kv_head, start + rows.begin / group, start + (rows.end - 1) / group);
}

// The blocks that tokens of a sequence, from the first to the last, see.
Context StepRun::context_between(int index, int kv_head, int first_token, int last_token) const {
  const Share first = seen_by(index, first_token), last = seen_by(index, last_token);
  return {kv.first_piece(index, kv_head), kv.block_bytes,
          step.block_tables + static_cast<size_t>(work.row_sequence[first_token]) * step.table_width,
          first.begin / kBlockTokens, (last.end - 1) / kBlockTokens};
}

// Sets everything of a row of a tile but its query.
void StepRun::set_row(AttentionTile& tile, int r, int index, int token, int head, float* out) const {
  const Share seen = seen_by(index, token);
  const float* sinks = m.layers[index].sinks;
  tile.begin[r] = seen.begin;
  tile.end[r] = seen.end;
  tile.out[r] = out;
  tile.slopes[r] = tile.has_slopes ? m.distance_slopes[head] * kLog2E : 0.0f;
  tile.positions[r] = work.row_position[token];
  tile.sinks[r] = sinks ? sinks[head] * kLog2E : kNoScore;
}

// Multiplies the output of a head by its gates, which follow q, k and v.
void StepRun::gate_head(const Heads& heads, int token, int head, float* out) const {
  const int d = heads.dim;
  const float* gates = qkv(token) + heads.queries() + heads.keys() + heads.values();
  float own[kMaxHeadDim];
  for (int i = 0; i < d; i++) own[i] = heads.num_gates == heads.count ? gates[head] : gates[head * d + i];
  for (int i = 0; m.has_softplus_gates && i < d; i++) out[i] *= softplus_one(own[i]);
  for (int i = 0; !m.has_softplus_gates && i < d; i += W) store_f(out + i, sigmoid_times(load_f(out + i), load_f(own + i)));
}

// Attention of a range of rows. The output of token t goes to row t + scratch_offset of `wide` (t counted from the
// first token of the step) and, quantized, to the input row of the same number.
void StepRun::attend_range(int index, HeadRows rows, int scratch_offset, const Context& following) const {
  const Layer& layer = m.layers[index];
  const int d = layer.heads.dim, group = layer.heads.group;
  const HeadShape shape = {&layer, m.norm_eps, m.norms_rotated, m.norms_values};
  const Context context = context_of(index, rows);
  const auto token_of = [&](int row) { return step.query_starts[rows.sequence] + row / group; };
  const auto head_of = [&](int row) { return rows.kv_head * group + row % group; };
  AttentionTile tile;
  tile.softcap = m.attention_softcap * kLog2E;
  tile.has_slopes = m.distance_slopes != nullptr;
  for (int first = rows.begin; first < rows.end; first += kRowsAttention) {
    tile.num_rows = rows.end - first < kRowsAttention ? rows.end - first : kRowsAttention;
    for (int r = 0; r < tile.num_rows; r++) {
      const int token = token_of(first + r), head = head_of(first + r), position = work.row_position[token];
      load_query(tile, r, kv.kind, shape, qkv(token) + head * d, position);
      set_row(tile, r, index, token, head, wide(token + scratch_offset) + head * d);
    }
    repeat_last_row(tile, d);
    attend<false>(kv.kind, tile, context, following, layer.heads);
    for (int r = 0; layer.heads.num_gates > 0 && r < tile.num_rows; r++) gate_head(layer.heads, token_of(first + r), head_of(first + r), tile.out[r]);
    if (!quantizes_heads(layer)) continue;
    for (int r = 0; r < tile.num_rows; r++) {
      const int row = token_of(first + r) + scratch_offset;
      quantize_row(layer.o.kind, tile.out[r], d, work.inputs, row, head_of(first + r) * d);
    }
  }
}

// Calls `visit` with this thread's share of the attention of the step, balanced by context length. With `whole_heads` a
// KV head of a sequence is not split.
template <class Visit>
void StepRun::visit_share(const Heads& heads, bool whole_heads, const Visit& visit) const {
  constexpr int64_t kFixedCost = 64;  // per row, in tokens of context
  int64_t total = 0;
  const auto cost_of = [&](int s) { return step.context_lens[s] + tokens_of(s) + kFixedCost; };
  for (int s = 0; s < step.num_sequences; s++) total += cost_of(s) * tokens_of(s) * heads.count;
  const int64_t begin = total * thread / num_threads, end = total * (thread + 1) / num_threads;
  int64_t before = 0;
  for (int s = 0; s < step.num_sequences; s++) {
    const int64_t cost = cost_of(s), per_head = int64_t{tokens_of(s)} * heads.group, units = per_head * heads.num_kv;
    const auto unit_at = [&](int64_t bound) {
      int64_t unit = bound <= before ? 0 : (bound - before + cost - 1) / cost;
      if (whole_heads) unit = (unit + per_head - 1) / per_head * per_head;
      return unit < units ? unit : units;
    };
    for (int64_t unit = unit_at(begin), stop = unit_at(end); unit < stop;) {
      const int64_t head = unit / per_head, head_stop = (head + 1) * per_head < stop ? (head + 1) * per_head : stop;
      visit(HeadRows{s, static_cast<int>(head), static_cast<int>(unit - head * per_head),
                     static_cast<int>(head_stop - head * per_head)});
      unit = head_stop;
    }
    before += cost * units;
  }
}

void StepRun::attend_share(int index, bool whole_heads) const {
  HeadRows current = {-1, 0, 0, 0};
  visit_share(m.layers[index].heads, whole_heads, [&](HeadRows next) {
    if (current.sequence >= 0) attend_range(index, current, 0, context_of(index, next));
    current = next;
  });
  if (current.sequence >= 0) attend_range(index, current, 0, context_of(index, current));
}

void StepRun::attend_rows_of(int index, Rows rows) const {
  const Heads& heads = m.layers[index].heads;
  const int end = rows.token + rows.count;
  for (int token = rows.token; token < end;) {
    const int s = work.row_sequence[token], start = step.query_starts[s];
    const int stop = step.query_starts[s + 1] < end ? step.query_starts[s + 1] : end;
    for (int head = 0; head < heads.num_kv; head++) {
      const HeadRows part = {s, head, (token - start) * heads.group, (stop - start) * heads.group};
      HeadRows following = part;
      if (head + 1 < heads.num_kv) {
        following.kv_head++;
      } else if (stop < end) {
        following = {work.row_sequence[stop], 0, 0, 1};
      }
      attend_range(index, part, rows.scratch - rows.token, context_of(index, following));
    }
    token = stop;
  }
}
