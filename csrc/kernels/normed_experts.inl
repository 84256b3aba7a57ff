// Experts beside a dense MLP, where both read the residual stream after a norm of their own, and so does the router; the
// outputs of both have a norm each before they are added (Gemma 4).

// Norms rows for the router, and quantizes them for the experts and for the MLP beside them.
void StepRun::norm_beside(const Layer& layer, Rows rows) const {
  for (int i = 0; i < rows.count; i++) {
    const float* stream = x(rows.token + i);
    norm_row(m, stream, layer.router_norm, m.hidden_padded, normed(rows.scratch + i));
    norm_row(m, stream, layer.expert_norm, m.hidden_padded, row_buffer());
    quantize_for_experts(layer, row_buffer(), rows.token + i);
    norm_row(m, stream, layer.mlp_norm, m.hidden_padded, row_buffer());
    quantize_row(layer.shared_gate_up.kind, row_buffer(), m.hidden_padded, work.inputs, rows.scratch + i);
  }
}

// Keeps the norm of the MLP's output until the experts of the rows have been computed.
void StepRun::keep_beside(const Layer& layer, Rows rows) const {
  for (int i = 0; i < rows.count; i++) {
    norm_row(m, projected(rows.scratch + i), layer.shared_post_norm, m.hidden_padded, beside(rows.token + i));
  }
}

// Adds the outputs of the MLP and of the experts to the residual stream.
void StepRun::add_beside(const Layer& layer, Rows rows) const {
  for (int i = 0; i < rows.count; i++) {
    float *total = row_buffer(), *own = beside(rows.token + i), *stream = x(rows.token + i);
    const int padded = static_cast<int>(round_up(m.hidden, kPanel));
    for (int j = padded; j < m.hidden_padded; j += W) store_f(total + j, zero_f());
    sum_experts(m.experts, work.experts, rows.token + i, padded, [&](int at, vf sum) { store_f(total + at, sum); });
    norm_row(m, total, layer.expert_post_norm, m.hidden_padded, total);
    for (int j = 0; j < m.hidden_padded; j += W) store_f(own + j, add(load_f(own + j), load_f(total + j)));
    norm_row(m, own, layer.post_mlp_norm, m.hidden_padded, own);
    for (int j = 0; j < m.hidden_padded; j += W) {
      store_f(stream + j, mul(add(load_f(stream + j), load_f(own + j)), set_f(layer.scale)));
    }
  }
}

// Few rows: all threads compute the MLP beside the experts.
void StepRun::run_beside_columns(const Layer& layer, Rows every, Rows split) {
  const auto barrier_after = [&](Phase phase) {
    watch.end(phase);
    team.barrier(thread);
    watch.end(Phase::kWait);
  };
  const int num_groups = layer.shared_gate_up.num_panels / group_panels();
  project_gate_up(shared_gate_up_of(layer, every), share_of(num_groups, thread, num_threads));
  barrier_after(Phase::kGateUp);
  project_residual(layer.shared_down, work.gated_inputs, nullptr, Target::kProjected, every, panels(layer.shared_down), {});
  barrier_after(Phase::kDown);
  keep_beside(layer, split);
}
