// Rows of any bytes, in every encoding, are packed into matrices of every format, or refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "pack.h"
#include "pack_w4.h"

using namespace headrace;

namespace {

constexpr int kMaxPanels = 3, kMaxBlocks = 3;
constexpr Encoding kEncodings[] = {Encoding::kF32,  Encoding::kF16, Encoding::kBf16, Encoding::kQ8_0,
                                   Encoding::kQ4_0, Encoding::kQ4_1, Encoding::kI8,   Encoding::kFp4,
                                   Encoding::kTernary, Encoding::kQ2K, Encoding::kQ3K};

Slot make_slot(FuzzedDataProvider& input) {
  const auto kind = static_cast<WeightKind>(input.ConsumeIntegralInRange(0, 7));
  const int32_t block = has_low_bits(kind) ? low_block(kind) : kDepth;
  const int32_t panels = input.ConsumeIntegralInRange(1, kMaxPanels);
  const int32_t columns = block * input.ConsumeIntegralInRange(1, kMaxBlocks);
  return {"slot", input.ConsumeBool(), kind, panels * kPanel, columns, 0, panels * panel_bytes(kind, columns)};
}

int32_t usual_or_any(FuzzedDataProvider& input, int32_t usual) {
  return input.ConsumeProbability<float>() < 0.9f ? input.ConsumeIntegralInRange(0, usual) : input.ConsumeIntegral<int32_t>();
}

// A matrix of floats rounded to 4 bits, as `quantize_int4` does for a checkpoint.
void quantize(const std::vector<uint8_t>& bytes) {
  const auto rows = static_cast<int64_t>(bytes.size() / (2 * kW4Group * sizeof(float)));
  const int64_t columns = 2 * kW4Group;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  if (rows > 0) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  std::vector<uint8_t> nibbles(values.size()), zeros(values.size() / kW4Group);
  std::vector<uint16_t> scales(zeros.size());
  quantize_int4_rows(values.data(), nullptr, rows % 2, rows, columns, nibbles.data(), scales.data(), zeros.data(), 1);
  for (const uint8_t nibble : nibbles)
    if (nibble > 15) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const Slot slot = make_slot(input);
  PackSource source{};
  source.encoding = input.PickValueInArray(kEncodings);
  const int32_t block = input.ConsumeBool() ? encoded_block(source.encoding) : 1;
  source.num_columns = usual_or_any(input, slot.num_columns) / block * block;
  source.num_rows = usual_or_any(input, slot.num_rows);
  source.first_row = usual_or_any(input, slot.num_rows);
  source.interleaved = input.ConsumeBool();
  const bool has_all_bytes = input.ConsumeProbability<float>() < 0.95f, is_quantized = input.ConsumeBool();
  std::vector<uint8_t> bytes = input.ConsumeRemainingBytes<uint8_t>();
  if (is_quantized) quantize(bytes);
  const size_t expected = static_cast<size_t>(source.num_rows) * encoded_row_bytes(source.encoding, source.num_columns);
  if (has_all_bytes && !bytes.empty() && expected < (1 << 20)) {  // repeat the input
    const size_t given = bytes.size();
    bytes.resize(expected);
    for (size_t i = given; i < expected; i++) bytes[i] = bytes[i - given];
  }
  source.data = bytes.data();
  auto panels = std::make_unique<uint8_t[]>(slot.num_bytes);
  try {
    check_source(slot, source, bytes.size(), slot.num_bytes);
    std::vector<float> decoded(static_cast<size_t>(source.num_columns));
    decode_row(source.encoding, source.data, source.num_columns, decoded.data());
    pack_rows(slot, panels.get(), source, 1);
  } catch (const std::invalid_argument&) {
    return -1;
  }
  return 0;
}
