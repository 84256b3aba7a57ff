// The products of a layer, with the operations that are fused with them.

void StepRun::project_qkv(const Layer& layer, const Matrix& matrix, int first_column, Rows rows, Share panels) const {
  const Adapted adapted = adapted_of(layer, kAdaptedQkv, rows);
  gemm(matrix, work.inputs, rows.input, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, float* tile) {
         column += first_column;
         if (adapted.any) expand_rows(adapted, row, count, column, tile);
         for (int r = 0; r < count; r++) {
           float* out = qkv(rows.token + row + r) + column;
           for (int i = 0; i < kPanel; i += W) {
             const vf value = load_f(tile + r * kPanel + i);
             store_f(out + i, layer.qkv_bias ? add(value, load_f(layer.qkv_bias + column + i)) : value);
           }
         }
       });
}

// Applies the norms over more than the numbers of a head, or with weights of their own for each head, and the clipping.
void StepRun::finish_qkv(const Layer& layer, Rows rows) const {
  const int d = layer.heads.dim, queries = layer.heads.queries(), keys = layer.heads.keys();
  const vf clip = set_f(m.qkv_clip), negative = set_f(-m.qkv_clip);
  for (int token = rows.token; token < rows.token + rows.count; token++) {
    float* heads = qkv(token);
    if (layer.q_norms) {
      norm_heads(layer.q_norms, d, queries, heads);
      if (keys > 0) norm_heads(layer.k_norms, d, keys, heads + queries);
    }
    if (m.qkv_clip == 0) continue;
    for (int i = 0; i < queries + keys + layer.heads.values(); i += W) store_f(heads + i, max(min(load_f(heads + i), clip), negative));
  }
}

void StepRun::norm_heads(const float* weights, int d, int count, float* heads) const {
  if (!m.norms_by_head) return rms_norm(heads, weights, count, count, m.norm_eps, heads);
  for (int i = 0; i < count; i += d) layer_norm(heads + i, {weights + i, nullptr, m.norm_eps}, d, d, heads + i);
}

// Computes gate and up for groups of kDepth inputs of `down`, and quantizes these while they are in the cache.
void StepRun::project_gate_up(const GateUp& product, Share groups) const {
  const int outputs_per_input = m.has_gate ? 2 : 1;
  for (int group = groups.begin; group < groups.end; group++) {
    const int panel = group * group_panels();
    gemm(*product.matrix, *product.inputs, product.first_input, product.num_rows, panel, panel + group_panels(),
         [&](int row, int count, int column, float* tile) {
           if (product.adapted.any) expand_rows(product.adapted, row, count, column, tile);
           const float* bias = product.bias ? product.bias + column : nullptr;
           float* out = gated(row) + column / outputs_per_input - group * kDepth;
           activate_tile(m, product.xielu, tile, bias, m.has_gate, count, out);
         });
    for (int i = 0; i < product.num_rows; i++) {
      quantize_row(product.kind, gated(i), kDepth, *product.outputs, product.first_output + i, group * kDepth);
    }
  }
}

void StepRun::project_residual(const Matrix& matrix, const Activations& inputs, const float* bias, Target target,
                               Rows rows, Share panels, const Adapted& adapted) const {
  gemm(matrix, inputs, rows.scratch, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, float* tile) {
         if (adapted.any) expand_rows(adapted, row, count, column, tile);
         for (int r = 0; r < count; r++) {
           float *stream = x(rows.token + row + r) + column, *kept = projected(rows.scratch + row + r) + column;
           for (int i = 0; i < kPanel; i += W) {
             vf value = load_f(tile + r * kPanel + i);
             if (bias) value = add(value, load_f(bias + column + i));
             if (target == Target::kBoth) value = add(value, load_f(kept + i));
             if (target == Target::kProjected) store_f(kept + i, value);
             else store_f(stream + i, add(load_f(stream + i), value));
           }
         }
       });
}

// Adds the norm of what was projected to the residual stream, and multiplies the sum by `scale`.
void StepRun::add_projected(const Norm& norm, Rows rows, float scale) const {
  if (m.norms_stream) {
    for (int i = 0; i < rows.count; i++) norm_row(m, x(rows.token + i), norm, m.hidden_padded, x(rows.token + i));
    return;
  }
  const int padded = static_cast<int>(round_up(m.hidden, kPanel));
  for (int i = 0; i < rows.count; i++) {
    float* residual = x(rows.token + i);
    norm_row(m, projected(rows.scratch + i), norm, padded, row_buffer());
    for (int j = 0; j < padded; j += W) {
      store_f(residual + j, mul(add(load_f(residual + j), load_f(row_buffer() + j)), set_f(scale)));
    }
  }
}
