#include "floe/nn/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <utility>

#include "floe/core/error.h"

namespace floe::nn {
namespace {

thread_local int recompute_depth = 0;

using Listeners = std::vector<std::pair<const void*, std::function<void()>>>;

Listeners& listeners() {
  static Listeners instance;
  return instance;
}

at::Tensor state_of(const at::Generator& generator) {
  std::lock_guard lock(const_cast<at::Generator&>(generator).mutex());
  return generator.get_state();
}
void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// The random numbers that a forward would draw on a device: of the CPU, and of the device itself.
class RandomState {
 public:
  static RandomState capture(at::Device device) {
    RandomState state;
    state.device_ = device;
    state.cpu_ = state_of(at::detail::getDefaultCPUGenerator());
    if (!device.is_cpu())
      state.accelerator_ = state_of(at::globalContext().defaultGenerator(device));
    return state;
  }
  void restore() const {
    set_state(at::detail::getDefaultCPUGenerator(), cpu_);
    if (accelerator_.defined())
      set_state(at::globalContext().defaultGenerator(device_), accelerator_);
  }

 private:
  at::Device device_ = at::kCPU;
  at::Tensor cpu_, accelerator_;
};

struct Autocast {
  bool enabled = false;
  at::ScalarType dtype = at::kFloat;
  bool caches = true;

  static Autocast current(at::DeviceType type) {
    return {at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type),
            at::autocast::is_autocast_cache_enabled()};
  }
  void apply(at::DeviceType type) const {
    at::autocast::set_autocast_enabled(type, enabled);
    at::autocast::set_autocast_dtype(type, dtype);
    at::autocast::set_autocast_cache_enabled(caches);
  }
};

}  // namespace

struct Checkpoint::State {
  at::Device device = at::kCPU;
  RandomState random;
  Autocast autocast;
  std::vector<torch::autograd::SavedVariable> inputs;
  std::vector<bool> needs_grad;
  torch::autograd::edge_list edges;
  Rerun rerun;
};

namespace {

// Restores what a recomputation changes on this thread.
class RecomputeScope {
 public:
  RecomputeScope(at::Device device, const RandomState& random, const Autocast& autocast)
      : device_(device),
        random_before_(RandomState::capture(device)),
        autocast_before_(Autocast::current(device.type())) {
    random.restore();
    autocast.apply(device.type());
    ++recompute_depth;
  }
  // Back to the settings outside, before the scope ends.
  void leave_autocast() { autocast_before_.apply(device_.type()); }
  ~RecomputeScope() {
    --recompute_depth;
    autocast_before_.apply(device_.type());
    random_before_.restore();
  }

 private:
  at::Device device_;
  RandomState random_before_;
  Autocast autocast_before_;
};

template <class State>
class RecomputeNode final : public torch::autograd::Node {
 public:
  explicit RecomputeNode(std::shared_ptr<State> state) : state_(std::move(state)) {
    set_next_edges(std::move(state_->edges));
  }
  std::string name() const override { return "floe::Recompute"; }
  void release_variables() override {
    std::lock_guard lock(mutex_);
    state_.reset();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    require<Error>(!at::GradMode::is_enabled(),
                   "a checkpointed forward has no second derivative: differentiate without "
                   "create_graph, or without checkpointing");
    std::shared_ptr<State> state;
    {
      std::lock_guard lock(mutex_);
      state = state_;
    }
    require<Error>(
        state != nullptr,
        "a checkpointed forward was differentiated twice, but its inputs are gone after the "
        "first backward: run the forward again");
    if (recompute_depth == 0)
      for (const auto& [owner, listener] : listeners()) listener();
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    {
      RecomputeScope scope(state->device, state->random, state->autocast);
      at::AutoGradMode grad_on(true);
      for (std::size_t i = 0; i < state->inputs.size(); ++i) {
        at::Tensor input = state->inputs[i].unpack().detach();
        if (state->needs_grad[i]) input.requires_grad_();
        inputs.push_back(std::move(input));
      }
      outputs = state->rerun(inputs);
      std::vector<at::Tensor> roots, seeds;
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i].requires_grad() && grads[i].defined()) {
          roots.push_back(outputs[i]);
          seeds.push_back(grads[i]);
        }
      scope.leave_autocast();  // backward runs as it would without checkpointing
      if (!roots.empty()) torch::autograd::backward(roots, seeds);
    }
    torch::autograd::variable_list result;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (state->needs_grad[i]) result.push_back(inputs[i].grad());
    return result;
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace

Checkpoint::Checkpoint(TensorRefs& inputs) : state_(std::make_shared<State>()) {
  // The accelerator among the inputs' devices, if there is one: lengths and ids may lie on the CPU.
  at::Device device(at::kCPU);
  for (const at::Tensor* input : inputs)
    if (!input->is_cpu()) device = input->device();
  state_->device = device;
  state_->random = RandomState::capture(device);
  state_->autocast = Autocast::current(device.type());
  state_->autocast.caches = false;
  for (const at::Tensor* input : inputs) {
    const bool needs_grad = input->requires_grad();
    state_->inputs.emplace_back(*input, /*is_output=*/false);
    state_->needs_grad.push_back(needs_grad);
    if (needs_grad) state_->edges.push_back(torch::autograd::impl::gradient_edge(*input));
  }
}

void Checkpoint::attach(TensorRefs& outputs, Rerun rerun) {
  state_->rerun = std::move(rerun);
  auto node = std::make_shared<RecomputeNode<State>>(state_);
  for (at::Tensor* output : outputs) {
    *output = output->detach();
    if (at::isFloatingType(output->scalar_type()))
      torch::autograd::set_history(*output, node);
    else
      node->add_input_metadata(torch::autograd::Node::undefined_input());
  }
}

FirstRun::FirstRun() : cache_before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}
FirstRun::~FirstRun() { at::autocast::set_autocast_cache_enabled(cache_before_); }

bool recomputing() { return recompute_depth > 0; }

void add_recompute_listener(const void* owner, std::function<void()> listener) {
  listeners().emplace_back(owner, std::move(listener));
}

void remove_recompute_listener(const void* owner) {
  std::erase_if(listeners(), [owner](const auto& item) { return item.first == owner; });
}

}  // namespace floe::nn
