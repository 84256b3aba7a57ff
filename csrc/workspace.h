// The working memory of a runtime: how much it takes, and how it is divided.
#pragma once

#include <vector>

#include "config.h"
#include "memory.h"
#include "step.h"

namespace headrace {

// Bytes of all working memory of a runtime, including rotary tables and sampler scratch. Throws std::invalid_argument for
// invalid limits.
size_t workspace_bytes(const ModelConfig& config, const Limits& limits, int num_threads);

Workspace carve_workspace(const ModelConfig& config, const Model& model, const Limits& limits, int num_threads, Carver& carver);

// Returns an empty table of cosines and sines for each rope.
std::vector<float*> carve_ropes(const ModelConfig& config, const Limits& limits, Carver& carver);

}  // namespace headrace
