// The inputs that layers take beside the residual stream: for each layer `size` numbers of a token, half from a table
// whose rows the step brings along, half a projection of the token's embedding (Gemma 4 E2B).

// Computes the projections of embeddings, which norms follow.
void StepRun::project_layer_inputs(Rows rows, Share panels) const {
  gemm(m.layer_proj, work.inputs, rows.input, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, const float* tile) {
         for (int r = 0; r < count; r++) {
           float* out = layer_products(rows.scratch + row + r) + column;
           for (int i = 0; i < kPanel; i += W) store_f(out + i, load_f(tile + r * kPanel + i));
         }
       });
}

// Adds the norms of the projections to the rows of the table. The projection lacks a factor hidden^-0.5, which only the
// epsilon of the norm could tell.
void StepRun::add_layer_projections(Rows rows) const {
  const int size = m.layer_input_size;
  const float eps = m.norm_eps * static_cast<float>(m.hidden);
  for (int i = 0; i < rows.count; i++) {
    float *own = layer_input(rows.token + i, 0), *product = layer_products(rows.scratch + i);
    for (int layer = 0; layer < m.num_layers; layer++, own += size, product += size) {
      rms_norm(product, m.layer_proj_norm, size, size, eps, product);
      for (int j = 0; j < size; j += W) store_f(own + j, add(load_f(own + j), load_f(product + j)));
    }
  }
}

// Computes groups of kDepth inputs of `input_out`: the activated gates of the stream times the input of the layer.
void StepRun::project_input_gate(int index, Rows rows, Share groups) const {
  const Layer& layer = m.layers[index];
  for (int group = groups.begin; group < groups.end; group++) {
    const int panel = group * kDepth / kPanel;
    gemm(layer.input_gate, work.inputs, rows.input, rows.count, panel, panel + kDepth / kPanel,
         [&](int row, int count, int column, float* tile) {
           float* out = gated(row) + column - group * kDepth;
           activate_tile(m, nullptr, tile, nullptr, false, count, out);
           const bool is_padding = column >= m.layer_input_size;
           for (int r = 0; r < count; r++, out += kDepth) {
             const float* own = layer_input(rows.token + row + r, index) + column;
             for (int i = 0; i < kPanel; i += W) store_f(out + i, is_padding ? zero_f() : mul(load_f(out + i), load_f(own + i)));
           }
         });
    for (int i = 0; i < rows.count; i++) {
      quantize_row(layer.input_out.kind, gated(i), kDepth, work.gated_inputs, rows.scratch + i, group * kDepth);
    }
  }
}

// Many rows: one thread adds what a layer makes of its input to its block of rows.
void StepRun::add_layer_input(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  if (layer.input_gate.num_panels == 0) return;
  norm_inputs({}, layer.input_gate.kind, rows);
  project_input_gate(index, rows, {0, num_input_groups(layer)});
  project_residual(layer.input_out, work.gated_inputs, nullptr, Target::kProjected, rows, all(layer.input_out), {});
  add_projected(layer.input_norm, rows, layer.scale);
  watch.end(Phase::kDown);
}

// Many rows: one thread computes the inputs of all layers for its block of rows.
void StepRun::begin_layer_inputs(Rows rows) const {
  if (m.layer_input_size == 0) return;
  norm_inputs({}, m.layer_proj.kind, rows);
  project_layer_inputs(rows, all(m.layer_proj));
  add_layer_projections(rows);
  watch.end(Phase::kEmbed);
}
