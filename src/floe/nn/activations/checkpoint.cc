#include "floe/nn/activations/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "floe/core/error.h"
#include "floe/nn/activations/kept_products.h"
#include "floe/nn/autograd_node.h"

namespace floe::nn {
namespace {

thread_local int recompute_depth = 0;

// Of NothingRandom. Backward runs on autograd's own threads, so this is no thread's own.
std::atomic<int> promises{0};

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
    if (!device.is_cpu() && promises.load() == 0)
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
    if (type == at::kMeta) return {};  // a rehearsal, which has none
    return {at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type),
            at::autocast::is_autocast_cache_enabled()};
  }
  void apply(at::DeviceType type) const {
    if (type == at::kMeta) return;
    at::autocast::set_autocast_enabled(type, enabled);
    at::autocast::set_autocast_dtype(type, dtype);
    at::autocast::set_autocast_cache_enabled(caches);
  }
};

}  // namespace

struct Checkpoint::State {
  explicit State(const KeptActivations& how) : kept(how), products(how) {}

  void settle() {
    for (const KeptTensorPtr& input : inputs) input->settle();
    products.settle();
  }
  void come_back() {
    for (const KeptTensorPtr& input : inputs) input->come_back();
    products.come_back();
  }

  KeptActivations kept;
  at::Device device = at::kCPU;
  RandomState random;
  Autocast autocast;
  std::vector<KeptTensorPtr> inputs;
  KeptProducts products;
  std::vector<bool> needs_grad;
  torch::autograd::edge_list edges;
  Rerun rerun;
  std::weak_ptr<State> before;  // whose tensors leave too, and whose backward comes next
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
    state->come_back();
    if (const auto before = state->before.lock()) before->come_back();
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    {
      RecomputeScope scope(state->device, state->random, state->autocast);
      at::AutoGradMode grad_on(true);
      for (std::size_t i = 0; i < state->inputs.size(); ++i) {
        require<Error>(!state->inputs[i]->changed(), "input ", i,
                       " of a checkpointed module was changed in place between its forward and its "
                       "backward, which reads it again: change a copy");
        at::Tensor input = state->inputs[i]->get();
        if (state->needs_grad[i]) input.requires_grad_();
        inputs.push_back(std::move(input));
      }
      {
        const bool last_time = !torch::autograd::get_current_graph_task_keep_graph();
        const KeptProducts::Drain takes_products(state->products, last_time);
        outputs = state->rerun(inputs);
      }
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

Checkpoint::Checkpoint(TensorRefs& inputs, const KeptActivations& kept)
    : state_(std::make_shared<State>(kept)) {
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
    state_->inputs.push_back(kept.in_host ? keep_shared(*input)
                                          : std::make_shared<KeptTensor>(*input));
    if (kept.in_host) state_->inputs.back()->leave(kept.in_host_from);
    state_->needs_grad.push_back(needs_grad);
    if (needs_grad) state_->edges.push_back(torch::autograd::impl::gradient_edge(*input));
  }
}

void Checkpoint::attach(TensorRefs& outputs, Rerun rerun) {
  state_->rerun = std::move(rerun);
  state_->products.finish(outputs);
  if (state_->kept.in_host) {
    thread_local std::weak_ptr<State> newest;
    if (const auto before = newest.lock()) before->settle();
    state_->before = std::exchange(newest, state_);
  }
  auto node = make_node<RecomputeNode<State>>(state_);
  for (at::Tensor* output : outputs) {
    *output = output->detach();
    if (at::isFloatingType(output->scalar_type()))
      torch::autograd::set_history(*output, node);
    else
      node->add_input_metadata(torch::autograd::Node::undefined_input());
  }
}

struct FirstRun::Settings {
  Settings() { at::autocast::set_autocast_cache_enabled(false); }
  ~Settings() { at::autocast::set_autocast_cache_enabled(cache_before); }

  at::AutoGradMode grad_off{false};
  bool cache_before = at::autocast::is_autocast_cache_enabled();
  std::optional<KeptProducts::Fill> keeps_products;
};

FirstRun::FirstRun(Checkpoint& checkpoint, const BoundarySlot& module)
    : settings_(std::make_unique<Settings>()) {
  if (checkpoint.state_->kept.products)
    settings_->keeps_products.emplace(checkpoint.state_->products, module);
}
FirstRun::~FirstRun() = default;

const at::Tensor& no_tensor() {
  static const at::Tensor none = at::empty({0});
  return none;
}

NothingRandom::NothingRandom() { promises.fetch_add(1); }
NothingRandom::~NothingRandom() { promises.fetch_sub(1); }

bool recomputing() { return recompute_depth > 0; }

void add_recompute_listener(const void* owner, std::function<void()> listener) {
  listeners().emplace_back(owner, std::move(listener));
}

void remove_recompute_listener(const void* owner) {
  std::erase_if(listeners(), [owner](const auto& item) { return item.first == owner; });
}

}  // namespace floe::nn
