// A loaded model: weights, KV cache, workspace and threads. Validates a step before the kernels run it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "adapters.h"
#include "layout.h"
#include "memory.h"
#include "states.h"
#include "step.h"
#include "team.h"
#include "workspace.h"

namespace headrace {

// Bytes of the whole KV cache.
size_t kv_cache_bytes(const ModelConfig& config, const Limits& limits);

class Runtime {
 public:
  // `weights` are the packed weights (see make_layout), which must not change any more.
  // Throws std::invalid_argument for an unsupported model, limits or ISA, std::bad_alloc if memory is short.
  Runtime(const ModelConfig& config, const Limits& limits, std::shared_ptr<const Arena> weights, int num_threads, const std::string& isa);

  // Runs a step whose arrays have the sizes given in `step`. Throws std::invalid_argument for an invalid step, without
  // side effects.
  void execute(const Step& step);

  // Slots of adapters. A slot may be written while steps run that do not use it.
  AdapterSlots& adapters() { return adapters_; }

  // Starts (or restarts) adding up the time of steps by phase.
  void start_profile() { profile_.assign(team_->size(), PhaseTimes{}); }
  const std::vector<PhaseTimes>& profile() const { return profile_; }

  const ModelConfig& config() const { return config_; }
  const Limits& limits() const { return limits_; }
  const Kernels& kernels() const { return kernels_; }
  int num_threads() const { return team_->size(); }
  int num_active_threads() const { return team_->num_active(); }  // of the newest step
  int num_barrier_rounds() const { return team_->num_rounds(); }       // likewise
  size_t weights_bytes() const { return weights_->size(); }
  size_t workspace_bytes() const { return workspace_bytes_; }
  size_t kv_bytes() const { return kv_memory_.size(); }
  size_t state_bytes() const { return states_.bytes(); }
  // [block][kv_block_bytes]. Blocks that no step uses may be written while steps run.
  uint8_t* kv_data() const { return kv_memory_.data(); }
  const StateSlots& states() const { return states_; }

 private:
  void connect_weights();
  void connect_layer(const Layout& layout, int index);
  const float* vector_at(const Layout& layout, const std::string& name) const;
  Norm norm_at(const Layout& layout, const std::string& name) const;
  void fill_rope(float* table, const std::vector<double>& frequencies, double factor) const;
  void check(const Step& step) const;
  void check_sequence(const Step& step, int sequence) const;
  void locate_rows(const Step& step);
  void run_layers(const Step& step, int32_t first_layer, int32_t end_layer);

  ModelConfig config_;
  Limits limits_;
  const Kernels& kernels_;
  std::shared_ptr<const Arena> weights_;
  Arena kv_memory_, workspace_memory_;
  AdapterSlots adapters_;
  StateSlots states_;
  StateCache state_cache_;
  Model model_;
  std::vector<Layer> layers_;
  KvLayout kv_layout_;
  KvCache kv_;
  Workspace work_;
  std::vector<float*> ropes_;
  size_t workspace_bytes_ = 0;
  std::vector<std::unique_ptr<SampleScratch>> scratch_;
  std::vector<SampleScratch*> scratch_pointers_;
  std::vector<PhaseTimes> profile_;  // one per thread, or none
  std::unique_ptr<Team> team_;
};

}  // namespace headrace
