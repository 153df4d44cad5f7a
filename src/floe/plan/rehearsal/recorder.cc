#include "floe/plan/rehearsal/recorder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>

namespace floe::plan {
namespace {

thread_local Recorder* recording_here = nullptr;

constexpr int kGathersOfGloo = 1, kWorkerOfGloo = 2;  // streams

constexpr auto kAllocations = std::to_array<std::string_view>(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
     "aten::new_empty_strided", "aten::set_", "aten::resize_", "aten::record_stream",
     "aten::result_type", "aten::is_same_size", "aten::requires_grad_"});

bool is_allocation(std::string_view name) {
  return std::find(kAllocations.begin(), kAllocations.end(), name) != kAllocations.end();
}

// The engine's pools, and nobody else in a step, ask for plain bytes.
bool is_buffer(const at::RecordFunction& function) {
  if (std::string_view(function.name()) != "aten::empty") return false;
  const auto inputs = function.inputs();
  return inputs.size() > 1 && inputs[1].isInt() &&
         inputs[1].toInt() == static_cast<std::int64_t>(at::kByte);
}

bool is_attention(std::string_view name) { return name.starts_with("aten::_flash_attention"); }

// Which argument is the first matrix of a product; -1: none is.
int first_matrix(std::string_view name) {
  if (name == "aten::mm" || name == "aten::bmm") return 0;
  if (name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm" ||
      name == "aten::baddbmm_")
    return 1;
  return -1;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  // What is expanded lies in memory once.
  return static_cast<std::int64_t>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
}

template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) f(tensor);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) f(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor && tensor->defined()) f(*tensor);
  }
}

// Names live as long as the program: operators have a fixed number of them.
const char* lasting(std::string_view name) {
  static std::map<std::string, bool, std::less<>> names;
  const auto found = names.find(name);
  return (found != names.end() ? found : names.emplace(std::string(name), true).first)
      ->first.c_str();
}

}  // namespace

struct Recorder::Frame {
  std::string_view name;
  bool composite = false;  // others did its work
  bool of_pool = false;    // a buffer of the engine's
  bool on_device = false, touches_host = false;
  std::int64_t read = 0, last_read = 0;
  std::int64_t allocations = 0;  // that there were before it
  c10::SmallVector<const c10::StorageImpl*, 8> storages;
  TraceStep step;
};

Recorder::Recorder(bool of_cpu) : of_cpu_(of_cpu) {
  recording_here = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&operator_begins, &operator_ends)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

Recorder::~Recorder() {
  at::removeCallback(handle_);
  recording_here = nullptr;
}

comm::FakeListener Recorder::collectives() {
  return [this](const comm::FakeCollective& collective) -> comm::Work {
    if (collective.size < 2) return {};
    TraceStep step;
    step.kind = TraceStep::Kind::collective;
    step.collective = collective;
    step.bytes = static_cast<double>(collective.bytes);
    step.what = "collective";
    if (of_cpu_) return add_to_gloo(std::move(step));
    add(std::move(step));
    return {};
  };
}

// Gloo's threads carry a collective while the caller goes on, from when it is issued until somebody
// waits: a stream of gathers, whose transfers all are under way at once, and one of what the
// group's worker does in order.
comm::Work Recorder::add_to_gloo(TraceStep step) {
  const comm::FakeCollective collective = step.collective;
  const bool gathers = collective.kind == comm::FakeCollective::Kind::all_gather;
  if (gathers && !collective.in_place) {
    TraceStep own;
    own.kind = TraceStep::Kind::host_copy;
    own.what = "own slice";
    own.bytes = static_cast<double>(collective.bytes / collective.size);
    add(std::move(own));
  }
  const std::int64_t working = comm::gloo_working_bytes(collective);
  at::Tensor windows;
  if (working > 0)
    windows = at::empty({working}, at::TensorOptions().dtype(at::kByte).device(c10::kMeta));
  if (recording_) {
    const int stream = gathers ? kGathersOfGloo : kWorkerOfGloo;
    block(stream, record(0));
    step.unit = inside_.empty() ? -1 : inside_.back();
    step.backward = backward_;
    step.stream = stream;
    steps_.push_back(std::move(step));
    const int done = record(stream);
    return comm::Work([this, done, windows] { block(0, done); });
  }
  return comm::Work([windows] {});
}

void Recorder::set_units(const shard::ShardPlan& plan) {
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    units_[plan.units[u].label()] = static_cast<int>(u);
}

void Recorder::begin() {
  steps_.clear();
  recording_ = true;
}

std::vector<TraceStep> Recorder::take() {
  recording_ = false;
  return std::exchange(steps_, {});
}

void Recorder::add(TraceStep step) {
  if (!recording_) return;
  step.stream = MetaDevice::current_stream();
  step.unit = inside_.empty() ? -1 : inside_.back();
  step.backward = backward_;
  steps_.push_back(std::move(step));
}

// ---- what is told ----

int Recorder::record(int stream) {
  if (recording_) {
    TraceStep step;
    step.kind = TraceStep::Kind::record;
    step.event = events_;
    step.stream = stream;
    steps_.push_back(std::move(step));
  }
  return events_++;
}

void Recorder::block(int stream, int event) {
  if (!recording_) return;
  TraceStep step;
  step.kind = TraceStep::Kind::block;
  step.event = event;
  step.stream = stream;
  steps_.push_back(std::move(step));
}

void Recorder::pass(const char* what, std::int64_t bytes) {
  TraceStep step;
  step.what = what;
  step.bytes = static_cast<double>(bytes);
  add(std::move(step));
}

void Recorder::coded_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  TraceStep step;
  step.kind = TraceStep::Kind::product;
  step.what = "fp8 product";
  step.bits = 8;
  step.m = m, step.n = n, step.k = k;
  step.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  step.bytes = static_cast<double>(m * k + n * k + 2 * m * n);
  add(std::move(step));
}

void Recorder::attention(const kernels::AttentionWork& work) {
  if (work.spans < 1) return;
  const bool known =
      work.spans == spans_.spans && work.queries == spans_.tokens && work.keys == spans_.tokens;
  double pairs = known ? spans_.pairs
                       : static_cast<double>(work.queries) * static_cast<double>(work.keys) /
                             static_cast<double>(work.spans);
  if (work.causal) pairs /= 2;
  TraceStep step;
  step.kind = TraceStep::Kind::attention;
  step.what = work.flash ? "flash attention" : "attention";
  step.flash = work.flash;
  step.k = work.longest_key;
  // Two products forward, five backward.
  step.flops = (work.backward ? 10.0 : 4.0) * pairs * static_cast<double>(work.heads * work.dim);
  step.bytes = static_cast<double>(work.bytes);
  add(std::move(step));
}

void Recorder::enter(std::string_view unit) {
  const auto found = units_.find(unit);
  inside_.push_back(found == units_.end() ? -1 : found->second);
  if (memory_) memory_->set_owner(inside_.back());
}

void Recorder::leave() {
  if (!inside_.empty()) inside_.pop_back();
  if (memory_) memory_->set_owner(owner());
}

int Recorder::owner() const { return inside_.empty() ? DeviceMemory::kNobody : inside_.back(); }

void Recorder::on(const shard::Event& event) {
  using Kind = shard::Event::Kind;
  backward_ = event.phase == shard::PassPhase::backward;
  if (event.kind == Kind::begin_forward || event.kind == Kind::begin_backward) enter(event.unit);
  if (event.kind == Kind::end_forward || event.kind == Kind::end_backward) leave();
}

// ---- operators of torch ----

std::unique_ptr<at::ObserverContext> Recorder::operator_begins(const at::RecordFunction& function) {
  if (recording_here) recording_here->begins(function);
  return nullptr;
}

void Recorder::operator_ends(const at::RecordFunction& function, at::ObserverContext*) {
  if (recording_here) recording_here->ends(function);
}

void Recorder::begins(const at::RecordFunction& function) {
  Frame frame;
  frame.name = function.name();
  if (!frames_.empty() && !is_allocation(frame.name)) frames_.back().composite = true;
  if (recording_ && memory_ && is_buffer(function)) {
    frame.of_pool = true;
    memory_->set_owner(DeviceMemory::kPool);
  }
  if (recording_) {
    int index = 0;
    const int matrix = first_matrix(frame.name);
    for (const c10::IValue& value : function.inputs()) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (!tensor.is_meta() || !tensor.has_storage()) return;
        frame.on_device = true;
        frame.storages.push_back(tensor.storage().unsafeGetStorageImpl());
        frame.touches_host =
            frame.touches_host || MetaDevice::is_host(tensor.storage().data_ptr().get_context());
        frame.last_read = bytes_of(tensor);
        frame.read += frame.last_read;
        if (matrix >= 0 && index == matrix) {
          frame.step.batch = tensor.dim() == 3 ? tensor.size(0) : 1;
          frame.step.m = tensor.size(-2), frame.step.k = tensor.size(-1);
          frame.step.bits = static_cast<std::uint8_t>(8 * tensor.element_size());
        }
        if (matrix >= 0 && index == matrix + 1) frame.step.n = tensor.size(-1);
        if (frame.name == "aten::convolution" && index == 1) {
          frame.step.n = tensor.size(0), frame.step.k = tensor.numel() / tensor.size(0);
          frame.step.bits = static_cast<std::uint8_t>(8 * tensor.element_size());
        }
      });
      ++index;
    }
  }
  if (memory_) frame.allocations = memory_->num_allocations();
  frames_.push_back(std::move(frame));
}

void Recorder::ends(const at::RecordFunction& function) {
  if (frames_.empty()) return;
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  if (frame.of_pool) memory_->set_owner(owner());
  if (!recording_ || frame.composite || !frame.name.starts_with("aten::") ||
      is_allocation(frame.name) || is_attention(frame.name))
    return;
  std::int64_t written = 0, numel_bytes = 0, rows = 0;
  bool is_view = false;
  for (const c10::IValue& value : function.outputs())
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.is_meta() || !tensor.has_storage()) return;
      frame.on_device = true;
      frame.touches_host =
          frame.touches_host || MetaDevice::is_host(tensor.storage().data_ptr().get_context());
      written += bytes_of(tensor);
      numel_bytes += static_cast<std::int64_t>(tensor.nbytes());
      if (tensor.dim() > 1) rows = tensor.numel() / tensor.size(1);
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      is_view = is_view || std::find(frame.storages.begin(), frame.storages.end(), storage) !=
                               frame.storages.end();
    });
  if (!frame.on_device) return;
  TraceStep& step = frame.step;
  step.what = lasting(frame.name);
  step.bytes = static_cast<double>(frame.read + written);
  if (frame.name == "aten::convolution") step.m = rows;
  if (step.n > 0) {
    // A product that was kept from the first run (nn/activations/kept_products.h) comes without
    // memory of its own, or as one number for all.
    if (memory_ && !is_view &&
        (memory_->num_allocations() == frame.allocations || written < numel_bytes))
      return;
    step.kind = TraceStep::Kind::product;
    step.flops = 2.0 * static_cast<double>(step.batch) * static_cast<double>(step.m) *
                 static_cast<double>(step.n) * static_cast<double>(step.k);
    return add(std::move(step));
  }
  const bool in_place = frame.name.ends_with("_");
  if (is_view && !in_place) return;
  if ((frame.touches_host || of_cpu_) && frame.name == "aten::copy_") {
    step.kind = TraceStep::Kind::host_copy;
    step.bytes = static_cast<double>(written);
  } else if (frame.name == "aten::index_select" || frame.name == "aten::embedding") {
    step.bytes = 2.0 * static_cast<double>(written);
  } else if (frame.name == "aten::copy_" || frame.name == "aten::zero_" ||
             frame.name == "aten::fill_") {
    step.bytes = static_cast<double>(frame.read);  // of what is written, none is read
  } else if (frame.name == "aten::index_copy_" || frame.name == "aten::index_fill_") {
    step.bytes = 2.0 * static_cast<double>(frame.last_read);  // some places of many
  }
  add(std::move(step));
}

}  // namespace floe::plan
