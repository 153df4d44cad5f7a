#include "floe/plan/rehearsal/meta_device.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "floe/core/bytes.h"
#include "floe/kernels/rehearsal.h"

namespace floe::plan {
namespace {

constexpr std::int64_t kAlignment = 512;  // of addresses

// Of one allocation; the memory may outlive the device.
struct Allocation {
  std::shared_ptr<DeviceMemory> memory;
  std::int64_t bytes = 0;
  int owner = DeviceMemory::kNobody;
  bool in_host = false;
};

void forget_allocation(void* context) {
  auto* allocation = static_cast<Allocation*>(context);
  allocation->memory->add(-allocation->bytes, allocation->owner, allocation->in_host);
  delete allocation;
}

// Addresses that nothing lies at: all different, aligned, never read.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator(std::shared_ptr<DeviceMemory> memory, std::int64_t block)
      : memory_(std::move(memory)), block_(block) {}

  c10::DataPtr allocate(std::size_t size) override {
    const auto bytes = ceil_div(static_cast<std::int64_t>(size), block_) * block_;
    if (bytes == 0) return {nullptr, c10::Device(c10::kMeta)};
    const bool in_host = kernels::RehearsedHostMemory::on();
    auto* allocation = new Allocation{memory_, bytes, memory_->owner(), in_host};
    memory_->add(bytes, allocation->owner, in_host);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that is compared, not a place
    void* const place = reinterpret_cast<void*>(next_);
    next_ += static_cast<std::uintptr_t>(ceil_div(bytes, kAlignment) * kAlignment);
    return {place, allocation, &forget_allocation, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  std::shared_ptr<DeviceMemory> memory_;
  std::int64_t block_;
  std::uintptr_t next_ = std::uintptr_t{1} << 44;
};

c10::Device the_device() { return {c10::kMeta, 0}; }

// Streams by number; events are the numbers that the listener gives.
class CountingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit CountingGuard(DeviceListener& listener) : listener_(listener) {}

  int current() const { return current_; }

  c10::DeviceType type() const override { return c10::kMeta; }
  c10::Device exchangeDevice(c10::Device) const override { return the_device(); }
  c10::Device getDevice() const override { return the_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(current_); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(++streams_);
  }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(++streams_); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = stream(current_);
    current_ = static_cast<int>(next.id());
    return before;
  }

  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void record(void** event, const c10::Stream& on, c10::DeviceIndex,
              c10::EventFlag) const override {
    const auto number = static_cast<std::uintptr_t>(listener_.record(static_cast<int>(on.id())));
    *event = reinterpret_cast<void*>(number + 1);  // NOLINT(performance-no-int-to-ptr)
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event)
      listener_.block(static_cast<int>(on.id()),
                      static_cast<int>(reinterpret_cast<std::uintptr_t>(event)) - 1);
  }
  // Nothing is over before it is waited for.
  bool queryEvent(void*) const override { return false; }
  void synchronizeEvent(void* event) const override { block(event, stream(0)); }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static c10::Stream stream(int number) {
    return c10::Stream(c10::Stream::UNSAFE, the_device(), number);
  }

  DeviceListener& listener_;
  mutable int current_ = 0, streams_ = 0;
};

const CountingGuard* installed = nullptr;

auto& guard_of_meta() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kMeta)];
}

}  // namespace

void DeviceMemory::add(std::int64_t bytes, int owner, bool in_host) {
  num_allocations_ += bytes > 0;
  if (in_host) {
    host_live_ += bytes;
    host_peak_ = std::max(host_peak_, host_live_);
    return;
  }
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  const auto place = static_cast<std::size_t>(owner - kPool);
  if (owned_.size() <= place) owned_.resize(place + 1, 0);
  owned_[place] += bytes;
}

std::vector<std::int64_t> DeviceMemory::by_owner(int count) const {
  std::vector<std::int64_t> bytes;
  const auto of = [&](int owner) {
    const auto place = static_cast<std::size_t>(owner - kPool);
    return place < owned_.size() ? owned_[place] : 0;
  };
  for (int owner = 0; owner < count; ++owner) bytes.push_back(of(owner));
  bytes.push_back(of(kNobody));
  return bytes;
}

struct MetaDevice::State {
  State(DeviceListener& listener, std::int64_t block) : guard(listener), allocator(memory, block) {}

  std::shared_ptr<DeviceMemory> memory = std::make_shared<DeviceMemory>();
  CountingGuard guard;
  CountingAllocator allocator;
  c10::Allocator* allocator_before = nullptr;
  const c10::impl::DeviceGuardImplInterface* guard_before = nullptr;
};

MetaDevice::MetaDevice(DeviceListener& listener, std::int64_t block_bytes)
    : state_(std::make_unique<State>(listener, block_bytes)) {
  state_->allocator_before = c10::GetAllocator(c10::kMeta);
  c10::SetAllocator(c10::kMeta, &state_->allocator);
  state_->guard_before = guard_of_meta().load();
  guard_of_meta().store(&state_->guard);
  installed = &state_->guard;
}

MetaDevice::~MetaDevice() {
  installed = nullptr;
  guard_of_meta().store(state_->guard_before);
  c10::SetAllocator(c10::kMeta, state_->allocator_before);
}

DeviceMemory& MetaDevice::memory() { return *state_->memory; }

int MetaDevice::current_stream() { return installed ? installed->current() : 0; }

bool MetaDevice::is_host(const void* context) {
  return context && static_cast<const Allocation*>(context)->in_host;
}

}  // namespace floe::plan
