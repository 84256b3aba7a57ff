// Attention of a tile of rows: the loop over chunks of a context.

// `SHARED`: the keys hold their values.
template <KvKind KV, bool SHARED, int ROWS>
NOINLINE void attend_rows(const AttentionTile& tile, const Context& context, const Context& following, const Heads& heads) {
  const Values values = values_of<KV>(heads);
  AttentionState<ROWS> s;
  int first = tile.begin[0], last = tile.end[0];
  for (int r = 0; r < ROWS; r++) {
    first = tile.begin[r] < first ? tile.begin[r] : first;
    last = tile.end[r] > last ? tile.end[r] : last;
    s.largest[r] = tile.sinks[r];
    s.sum[r] = tile.sinks[r] > kNoScore ? 1.0f : 0.0f;
    for (int i = 0; i < values.count; i += W) store_f(&s.out[r][i], zero_f());
  }
  for (int chunk = first / kChunkTokens * kChunkTokens; chunk < last; chunk += kChunkTokens) {
    const int from = first > chunk ? (first - chunk) / kBlockTokens * kBlockTokens : 0;
    const int rest = static_cast<int>(round_up(last - chunk, kBlockTokens));
    const int to = rest < kChunkTokens ? rest : kChunkTokens;
    for (int token = from; token < to; token += kBlockTokens) {
      const int block = (chunk + token) / kBlockTokens;
      const uint8_t *piece = context.piece(block), *ahead = piece_ahead(context, following, block);
      if constexpr (SHARED) score_shared_keys<KV, ROWS>(tile, piece, ahead, heads, token, s);
      else score_block<KV, ROWS>(tile, piece, ahead, heads.dim, token, s);
    }
    for (int r = 0; r < ROWS; r++) {
      if (tile.softcap > 0) cap_scores(s.scores[r], from, to, tile.softcap);
      if (tile.has_slopes) add_distances(s.scores[r], from, to, tile.slopes[r], chunk - tile.positions[r]);
      weigh_row<KV, ROWS>(s, r, Seen(from, to, tile.begin[r] - chunk, tile.end[r] - chunk));
    }
    add_all_values<KV, ROWS>(context, chunk, from, to, values, s);
  }
  for (int r = 0; r < ROWS; r++) {
    const vf inverse = set_f(1.0f / s.sum[r]);
    for (int i = 0; i < values.count; i += W) store_f(tile.out[r] + i, mul(load_f(&s.out[r][i]), inverse));
  }
}

// Kernels are instantiated for some row counts only: returns the row count for a tile of `count` rows.
INLINE int padded_rows(int count) {
  if (count <= 4) return count;
  return count <= 6 ? 6 : count <= 8 ? 8 : kRowsAttention;
}

template <KvKind KV, bool SHARED>
INLINE void attend_kind(const AttentionTile& tile, const Context& context, const Context& following,
                        const Heads& heads) {
  switch (padded_rows(tile.num_rows)) {
    case 1: return attend_rows<KV, SHARED, 1>(tile, context, following, heads);
    case 2: return attend_rows<KV, SHARED, 2>(tile, context, following, heads);
    case 3: return attend_rows<KV, SHARED, 3>(tile, context, following, heads);
    case 4: return attend_rows<KV, SHARED, 4>(tile, context, following, heads);
    default:
      if constexpr (kRowsAttention > 4) {
        if (tile.num_rows <= 6) return attend_rows<KV, SHARED, 6>(tile, context, following, heads);
        if (tile.num_rows <= 8) return attend_rows<KV, SHARED, 8>(tile, context, following, heads);
        return attend_rows<KV, SHARED, 12>(tile, context, following, heads);
      }
  }
}

template <bool SHARED>
INLINE void attend(KvKind kind, const AttentionTile& tile, const Context& context, const Context& following,
                   const Heads& heads) {
  if (kind == KvKind::kInt8) attend_kind<KvKind::kInt8, SHARED>(tile, context, following, heads);
  else attend_kind<KvKind::kBf16, SHARED>(tile, context, following, heads);
}

// Pads a tile to a row count that a kernel is instantiated for.
INLINE void repeat_last_row(AttentionTile& tile, int d) {
  const int last = tile.num_rows - 1;
  for (int r = tile.num_rows; r < padded_rows(tile.num_rows); r++) {
    __builtin_memcpy(tile.queries[r], tile.queries[last], static_cast<size_t>(d) * kBf16Bytes);
    tile.scales[r] = tile.scales[last], tile.biases[r] = tile.biases[last], tile.sinks[r] = tile.sinks[last];
    tile.rest_scales[r] = tile.rest_scales[last], tile.rest_biases[r] = tile.rest_biases[last];
    tile.slopes[r] = tile.slopes[last], tile.positions[r] = tile.positions[last];
    tile.begin[r] = tile.begin[last], tile.end[r] = tile.end[last], tile.out[r] = tile.out[last];
  }
}
