// Operations on single rows: embedding, norms, activations, quantization of matrix inputs.

// 2^x for x >= -126 (smaller x gives 2^-126); relative error below 1e-6.
INLINE vf exp2_v(vf x) {
  x = max(x, set_f(-126.0f));
  const vf n = round(x), f = sub(x, n);
  vf p = set_f(1.5403530e-4f);
  p = fma(p, f, set_f(1.3333558e-3f));
  p = fma(p, f, set_f(9.6181291e-3f));
  p = fma(p, f, set_f(5.5504109e-2f));
  p = fma(p, f, set_f(2.4022651e-1f));
  p = fma(p, f, set_f(6.9314718e-1f));
  p = fma(p, f, set_f(1.0f));
  return scale2(p, n);
}

INLINE float exp2_one(float x) {
  float lanes[W];
  store_f(lanes, exp2_v(set_f(x)));
  return lanes[0];
}

constexpr float kLog2E = 1.44269504f;

INLINE vf sigmoid_times(vf x, vf argument) {  // x * sigmoid(argument)
  const vf e = exp2_v(min(mul(argument, set_f(-kLog2E)), set_f(126.0f)));
  return div(x, add(e, set_f(1.0f)));
}
INLINE vf silu(vf x) { return sigmoid_times(x, x); }
// 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
INLINE vf gelu_tanh(vf x) {
  const vf cube = mul(mul(x, x), x);
  return sigmoid_times(x, mul(set_f(2 * 0.7978845608f), fma(cube, set_f(0.044715f), x)));
}
// 0.5 x (1 + erf(x / sqrt(2))); absolute error of erf below 2e-7 (Abramowitz & Stegun 7.1.26).
INLINE vf gelu_erf(vf x) {
  const vf u = mul(abs(x), set_f(0.70710678f)), t = div(set_f(1.0f), fma(u, set_f(0.3275911f), set_f(1.0f)));
  vf p = set_f(1.061405429f);
  p = fma(p, t, set_f(-1.453152027f));
  p = fma(p, t, set_f(1.421413741f));
  p = fma(p, t, set_f(-0.284496736f));
  p = fma(p, t, set_f(0.254829592f));
  // Half of 1 - erf(u), which is the share that a negative x keeps.
  const vf tail = mul(mul(mul(p, t), exp2_v(mul(mul(u, u), set_f(-kLog2E)))), set_f(0.5f));
  return mul(x, select(greater(x, zero_f()), sub(set_f(1.0f), tail), tail));
}
INLINE vf relu(vf x) { return max(zero_f(), x); }  // in this order NaN stays NaN

// log(1 + e^x). With e = e^-|x| the logarithm of 1 + e is 2 atanh(s) of s = e / (2 + e), which is at most 1/3.
INLINE vf softplus_v(vf x) {
  const vf e = exp2_v(mul(abs(x), set_f(-kLog2E))), s = div(e, add(e, set_f(2.0f))), square = mul(s, s);
  vf p = set_f(2.0f / 13);
  UNROLL for (int n = 11; n > 0; n -= 2) p = fma(p, square, set_f(2.0f / static_cast<float>(n)));
  return fma(p, s, max(zero_f(), x));  // in this order NaN stays NaN
}

INLINE float softplus_one(float x) {
  const float size = __builtin_fabsf(x);
  return (x > 0 ? x : 0.0f) + __builtin_log1pf(exp2_one(-size * kLog2E));
}

// cap * tanh(x / cap); NaN where x is not finite, so that it is noticed.
INLINE vf softcap(vf x, float cap) {
  const vf e = exp2_v(min(mul(x, set_f(2 * kLog2E / cap)), set_f(126.0f)));
  const vf capped = mul(set_f(cap), sub(set_f(1.0f), div(set_f(2.0f), add(e, set_f(1.0f)))));
  return fma(x, zero_f(), capped);
}

// (up + 1) * gate * sigmoid(1.702 gate), both clamped to `limit`, up also from below; NaN stays NaN.
INLINE vf clamped_swiglu(vf gate, vf up, float limit) {
  gate = min(set_f(limit), gate);
  up = max(set_f(-limit), min(set_f(limit), up));
  return mul(add(up, set_f(1.0f)), sigmoid_times(gate, mul(gate, set_f(1.702f))));
}

// `numbers` are p, n and l: p x^2 + l x where x is positive, else (n + l) (e^x - 1 - x) + l x; NaN stays NaN.
INLINE vf xielu(vf x, const float* numbers) {
  const vf linear = mul(x, set_f(numbers[2])), power = exp2_v(mul(min(x, zero_f()), set_f(kLog2E)));
  const vf above = mul(mul(x, x), set_f(numbers[0]));
  const vf below = mul(sub(sub(power, set_f(1.0f)), x), set_f(numbers[1] + numbers[2]));
  return add(linear, select(greater(x, zero_f()), above, below));
}

// Applies `function` to the gates of `rows` rows of a tile and its up; without gates, to all of it and 1.
template <class Function>
INLINE void activate_rows(const float* tile, const float* bias, bool has_gate, int rows, float* out,
                          const Function& function) {
  const int width = has_gate ? kPanel / 2 : kPanel;
  for (int r = 0; r < rows; r++, tile += kPanel, out += kDepth) {
    for (int i = 0; i < width; i += W) {
      vf value = load_f(tile + i);
      if (bias) value = add(value, load_f(bias + i));
      vf up = set_f(1.0f);
      if (has_gate) {
        up = load_f(tile + width + i);
        if (bias) up = add(up, load_f(bias + width + i));
      }
      store_f(out + i, function(value, up));
    }
  }
}

// Writes the inputs of `down` that a tile gives; rows of `out` are kDepth apart. `numbers` are those of xIELU.
NOINLINE void activate_tile(const Model& m, const float* numbers, const float* tile, const float* bias, bool has_gate,
                            int rows, float* out) {
  const auto combine = [&](const auto& function) { activate_rows(tile, bias, has_gate, rows, out, function); };
  const auto apply = [&](const auto& function) { combine([&](vf x, vf up) { return mul(function(x), up); }); };
  switch (m.activation) {
    case Activation::kSilu: return apply([](vf x) { return silu(x); });
    case Activation::kGeluTanh: return apply([](vf x) { return gelu_tanh(x); });
    case Activation::kGeluErf: return apply([](vf x) { return gelu_erf(x); });
    case Activation::kRelu: return apply([](vf x) { return relu(x); });
    case Activation::kRelu2: return apply([](vf x) { return mul(relu(x), relu(x)); });
    case Activation::kClampedSwiglu:
      return combine([&](vf gate, vf up) { return clamped_swiglu(gate, up, m.swiglu_limit); });
    case Activation::kXielu: return apply([&](vf x) { return xielu(x, numbers); });
  }
}

// 1 / root mean square of the first `size` of `padded` numbers (the others are zero).
INLINE float inverse_rms(const float* x, int padded, int size, float eps) {
  vf even = zero_f(), odd = zero_f();
  int i = 0;
  for (; i + 2 * W <= padded; i += 2 * W) {
    const vf a = load_f(x + i), b = load_f(x + i + W);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < padded; i += W) even = fma(load_f(x + i), load_f(x + i), even);
  return 1.0f / __builtin_sqrtf(sum(add(even, odd)) / static_cast<float>(size) + eps);
}

INLINE void rms_norm(const float* x, const float* weight, int padded, int size, float eps, float* out) {
  const vf factor = set_f(inverse_rms(x, padded, size, eps));
  for (int i = 0; i < padded; i += W) store_f(out + i, mul(mul(load_f(x + i), factor), load_f(weight + i)));
}

// Applies the layer norm to the first `size` of `padded` numbers (the others, and their weights, are zero).
INLINE void layer_norm(const float* x, const Norm& norm, int padded, int size, float* out) {
  vf total = zero_f(), squares = zero_f();
  for (int i = 0; i < padded; i += W) total = add(total, load_f(x + i));
  const vf mean = set_f(sum(total) / static_cast<float>(size));
  int i = 0;
  for (; i + W <= size; i += W) {
    const vf deviation = sub(load_f(x + i), mean);
    squares = fma(deviation, deviation, squares);
  }
  if (i < size) {
    const vf deviation = select(lanes_between(0, size - i), sub(load_f(x + i), mean), zero_f());
    squares = fma(deviation, deviation, squares);
  }
  const vf factor = set_f(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(size) + norm.eps));
  for (int j = 0; j < padded; j += W) {
    const vf normed = mul(mul(sub(load_f(x + j), mean), factor), load_f(norm.weight + j));
    store_f(out + j, norm.bias ? add(normed, load_f(norm.bias + j)) : normed);
  }
}

// Applies a norm of the model to a row of the residual stream, or to what is added to it.
INLINE void norm_row(const Model& m, const float* x, const Norm& norm, int padded, float* out) {
  if (m.norm == NormKind::kRms) rms_norm(x, norm.weight, padded, m.hidden, norm.eps, out);
  else layer_norm(x, norm, padded, m.hidden, out);
}

// Quantizes `count` (a multiple of W) numbers to TERMS signed bytes, kDepth bytes apart; returns the scale, and the sum of
// the bytes of each term in `totals`.
template <int TERMS>
INLINE float quantize_terms(const float* x, int count, int8_t* out, int32_t* totals) {
  vf largest = zero_f();
  for (int i = 0; i < count; i += W) largest = max(largest, abs(load_f(x + i)));
  const float peak = max_of(largest), scale = peak > 1e-30f ? peak / 127.0f : 0.0f;
  const vf inverse = set_f(peak > 1e-30f ? 127.0f / peak : 0.0f);
  vi lanes[TERMS];
  for (int term = 0; term < TERMS; term++) lanes[term] = zero_i();
  for (int i = 0; i < count; i += W) {
    const vf steps = mul(load_f(x + i), inverse);
    const vi q = round_i(steps);
    store_s8(out + i, q);
    lanes[0] = add_i(lanes[0], q);
    if constexpr (TERMS == 2) {
      const vi rest = round_i(mul(sub(steps, to_f(q)), set_f(kTermRatio)));
      store_s8(out + kDepth + i, rest);
      lanes[1] = add_i(lanes[1], rest);
    }
  }
  for (int term = 0; term < TERMS; term++) totals[term] = sum_i(lanes[term]);
  return scale;
}

INLINE float quantize_s8(const float* x, int count, int8_t* out, int32_t* total) {
  return quantize_terms<1>(x, count, out, total);
}

// The bias of dot_w8 for a sum of bytes; it wraps, as the sum of a row with a NaN is any number.
INLINE int32_t w8_bias(int32_t total) {
  return static_cast<int32_t>(static_cast<uint32_t>(kW8Bias) * static_cast<uint32_t>(total));
}

// Number of inputs that share a scale (bf16: that are stored together).
INLINE int group_of(WeightKind kind) { return kind == WeightKind::kW8 ? kDepth : kW4Group; }

// The sums of both halves of a group of kW4Group bytes, given that of all: two numbers of 16 bits.
INLINE int32_t sums_of_halves(const int8_t* values, int32_t total) {
  uint32_t first = 0;
  for (int i = 0; i < kLowGroup; i++) first += static_cast<uint32_t>(values[i]);
  return static_cast<int32_t>((first & 0xffff) | (static_cast<uint32_t>(total) - first) << 16);
}

template <int TERMS>
INLINE void quantize_groups(WeightKind kind, const float* x, int count, const Activations& inputs, int row, int first) {
  const size_t slab = slab_bytes(inputs), groups = static_cast<size_t>(row) * inputs.groups_pitch;
  int8_t* out = row_values(inputs, static_cast<size_t>(row));
  int32_t totals[TERMS];
  if (kind == WeightKind::kW8) {
    for (int g = first / kDepth; g < (first + count) / kDepth; g++, x += kDepth) {
      inputs.scales[groups + g] = quantize_terms<TERMS>(x, kDepth, out + g * slab, totals);
      for (int term = 0; term < TERMS; term++) {
        inputs.biases[groups * TERMS + term * inputs.groups_pitch + g] = w8_bias(totals[term]);
      }
    }
    return;
  }
  for (int g = first / kW4Group; g < (first + count) / kW4Group; g++, x += kW4Group) {
    int8_t* values = out + g / 2 * slab + g % 2 * kW4Group;
    const float scale = quantize_terms<TERMS>(x, kW4Group, values, totals);
    float sum = static_cast<float>(totals[0]);
    if constexpr (TERMS == 2) sum += static_cast<float>(totals[1]) / kTermRatio;
    inputs.scales[groups + g] = scale;
    inputs.sums[groups + g] = scale * sum;
    for (int term = 0; has_low_bits(kind) && term < TERMS; term++) {
      inputs.biases[groups * TERMS + term * inputs.groups_pitch + g] = sums_of_halves(values + term * kDepth, totals[term]);
    }
  }
}

// Quantizes `count` fp32 numbers of a row from number `first` on (both multiples of the group) for a matrix of `kind`.
INLINE void quantize_row(WeightKind kind, const float* x, int count, const Activations& inputs, int row,
                         int first = 0) {
  const size_t slab = slab_bytes(inputs);
  int8_t* out = row_values(inputs, static_cast<size_t>(row));
  if (kind == WeightKind::kBf16) {
    out += first / kSlab * slab;
    for (int i = 0; i < count; i += kSlab, out += slab) {
      for (int j = 0; j < kSlab; j += W) store_bf16_inputs(out + j * kBf16Bytes, load_f(x + i + j));
    }
    return;
  }
  if (inputs.terms == 1) quantize_groups<1>(kind, x, count, inputs, row, first);
  else quantize_groups<2>(kind, x, count, inputs, row, first);
}

// Copies a row of the embedding, times `factor`; the padding of the matrix sets that of `out` to zero.
INLINE void embed_row(const Matrix& matrix, int32_t token, float factor, float* out) {
  const uint8_t* panel = matrix.panels + static_cast<size_t>(token / kPanel) * matrix.panel_bytes;
  const int lane = token % kPanel;
  if (matrix.kind == WeightKind::kBf16) {
    for (int i = 0; i < matrix.k; i += 2) {
      uint32_t pair;
      __builtin_memcpy(&pair, panel + i * 2 * kPanel + lane * 4, 4);
      const uint32_t bits[2] = {pair << 16, pair & 0xffff0000u};
      float values[2];
      __builtin_memcpy(values, bits, 8);
      out[i] = values[0] * factor;
      out[i + 1] = values[1] * factor;
    }
    return;
  }
  float output_scale;
  __builtin_memcpy(&output_scale, panel + matrix.k / kDepth * kW8GroupBytes + lane * sizeof(float), 4);
  for (int first = 0; first < matrix.k; first += kDepth, panel += kW8GroupBytes, out += kDepth) {
    float scales[kPanel];
    for (int i = 0; i < kPanel; i += W) {
      store_f(scales + i, load_f16(reinterpret_cast<const uint16_t*>(panel + kW8Bytes) + i));
    }
    const float scale = scales[lane] * output_scale;
    for (int i = 0; i < kDepth; i++) {
      out[i] = static_cast<float>(panel[i / 4 * 4 * kPanel + lane * 4 + i % 4] - 128) * scale * factor;
    }
  }
}
