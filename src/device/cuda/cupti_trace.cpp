// GPU activities through CUPTI's activity interface. The library is loaded when a trace is asked for, so that the
// program runs where CUPTI is not installed. What is read of a record lies at the same place in CUPTI 12 and 13.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/shared_library.h"
#include "device/cuda/cuda_device.h"
#include "device/gpu_trace.h"

namespace so {
namespace {

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetStreamIdEx) stream_id = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

  std::string describe(CUptiResult result) const {
    const char* text = nullptr;
    if (result_string(result, &text) != CUPTI_SUCCESS || text == nullptr)
      return fmt::format("error {}", static_cast<int>(result));
    return text;
  }
};

constexpr const char* without = "the trace has no GPU activities: ";

// Loaded once and kept. Null, with the reason, if it cannot be.
const Cupti* load_cupti(std::string& reason) {
  static Cupti cupti;
  static bool loaded = false;
  if (loaded) return &cupti;
  std::vector<std::string> files = nvidia_files("libcupti.so.13", "cu13", "/usr/local/cuda/lib64/libcupti.so");
  files.emplace_back("libcupti.so.12");
  files.emplace_back("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so");
  const SharedLibrary library = load_library(files);
  if (library.handle == nullptr) {
    reason = fmt::format(
        "{}CUPTI, a part of the CUDA toolkit, cannot be loaded ({}); install it or add its directory "
        "to LD_LIBRARY_PATH",
        without, library.reason);
    return nullptr;
  }
  SymbolFinder find(library);
  find(cupti.register_callbacks, "cuptiActivityRegisterCallbacks");
  find(cupti.enable, "cuptiActivityEnable");
  find(cupti.disable, "cuptiActivityDisable");
  find(cupti.flush_all, "cuptiActivityFlushAll");
  find(cupti.next_record, "cuptiActivityGetNextRecord");
  find(cupti.dropped_records, "cuptiActivityGetNumDroppedRecords");
  find(cupti.timestamp, "cuptiGetTimestamp");
  find(cupti.stream_id, "cuptiGetStreamIdEx");
  find(cupti.result_string, "cuptiGetResultString");
  if (find.missing() != nullptr) {
    reason = fmt::format("{}this CUPTI has no {}", without, find.missing());
    return nullptr;
  }
  loaded = true;
  return &cupti;
}

struct Record {
  std::uint32_t stream = 0;
  TraceActivity activity;  // times as CUPTI gives them
};

// CUPTI's callbacks, which know no object, put their records here.
struct Collected {
  std::mutex mutex;
  const Cupti* cupti = nullptr;
  std::vector<Record> records;
  std::uint64_t dropped = 0;
};
Collected& collected() {
  static auto* const instance = new Collected;  // CUPTI's thread may outlive static objects
  return *instance;
}

// "void so::kernel<4>(float*, int)" -> "so::kernel<4>"; names of C stay as they are.
std::string readable(const char* name) {
  if (name == nullptr) return "kernel";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                              &std::free);
  if (status != 0 || !demangled) return name;
  std::string text = demangled.get();
  if (text.starts_with("void ")) text.erase(0, 5);
  // The parameter list opens at the last parenthesis that nothing encloses; "(anonymous namespace)" comes earlier.
  int depth = 0;
  for (std::size_t i = text.size(); i-- > 0;) {
    if (text[i] == ')') ++depth;
    if (text[i] == '(' && --depth == 0) {
      if (i > 0) text.erase(i);
      break;
    }
  }
  return text;
}

CopyDirection direction_of(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return CopyDirection::host_to_device;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return CopyDirection::device_to_host;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return CopyDirection::device_to_device;
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH:
      return CopyDirection::host_to_host;
    default:
      return CopyDirection::none;
  }
}

// The three record types name these members alike.
template <class R>
void fill(Record& record, const R& from, TraceKind kind, std::string name) {
  record.stream = from.streamId;
  record.activity.kind = kind;
  record.activity.name = std::move(name);
  record.activity.begin = static_cast<std::int64_t>(from.start);
  record.activity.end = static_cast<std::int64_t>(from.end);
}

bool convert(const CUpti_Activity& activity, Record& record) {
  switch (activity.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(activity);
      fill(record, kernel, TraceKind::work, readable(kernel.name));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy5&>(activity);
      fill(record, copy, TraceKind::copy, "copy");
      record.activity.bytes = copy.bytes;
      record.activity.direction = direction_of(copy.copyKind);
      if (record.activity.direction != CopyDirection::none)
        record.activity.name = fmt::format("copy {}", name_of(record.activity.direction));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& set = reinterpret_cast<const CUpti_ActivityMemset4&>(activity);
      fill(record, set, TraceKind::fill, "zero");
      record.activity.bytes = set.bytes;
      break;
    }
    default:
      return false;
  }
  return record.activity.end > record.activity.begin;  // zeros: it had not run when the buffer was handed in
}

constexpr std::size_t buffer_bytes = std::size_t{4} << 20;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, buffer_bytes));  // null: CUPTI drops records
  *size = *buffer == nullptr ? 0 : buffer_bytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                          std::size_t valid) {
  Collected& c = collected();
  const std::lock_guard lock(c.mutex);
  try {
    CUpti_Activity* activity = nullptr;
    while (c.cupti->next_record(buffer, valid, &activity) == CUPTI_SUCCESS)
      if (Record record; convert(*activity, record)) c.records.push_back(std::move(record));
    std::size_t dropped = 0;
    if (c.cupti->dropped_records(context, stream, &dropped) == CUPTI_SUCCESS) c.dropped += dropped;
  } catch (const std::bad_alloc&) {
    ++c.dropped;
  }
  std::free(buffer);
}

constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET};

// One moment on both clocks.
struct Moment {
  std::int64_t gpu = 0, ours = 0;
};

class CuptiTrace final : public GpuTrace {
 public:
  explicit CuptiTrace(const Cupti& cupti) : cupti_(cupti), start_(moment()) { name_streams(); }
  ~CuptiTrace() override {
    for (const CUpti_ActivityKind kind : kinds) cupti_.disable(kind);
  }

  void stop(const Add& add, std::vector<std::string>& remarks) override {
    cudaDeviceSynchronize();
    const Moment end = moment();
    name_streams();
    for (const CUpti_ActivityKind kind : kinds) cupti_.disable(kind);
    if (const CUptiResult result = cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); result != CUPTI_SUCCESS)
      remarks.push_back(fmt::format("CUPTI could not hand over its records: {}", cupti_.describe(result)));
    Collected& c = collected();
    const std::lock_guard lock(c.mutex);
    const auto gpu_span = static_cast<double>(std::max<std::int64_t>(1, end.gpu - start_.gpu));
    const auto drift = static_cast<double>((end.ours - end.gpu) - (start_.ours - start_.gpu)) / gpu_span;
    const auto ours = [&](std::int64_t t) {
      return t + (start_.ours - start_.gpu) + static_cast<std::int64_t>(drift * static_cast<double>(t - start_.gpu));
    };
    for (Record& record : c.records) {
      const auto name = names_.find(record.stream);
      record.activity.begin = ours(record.activity.begin);
      record.activity.end = ours(record.activity.end);
      add(name == names_.end() ? fmt::format("stream {}", record.stream) : name->second, std::move(record.activity));
    }
    if (c.records.empty()) remarks.push_back(std::string(without) + "CUPTI recorded none");
    if (c.dropped > 0) remarks.push_back(fmt::format("CUPTI dropped {} records", c.dropped));
    c.records.clear();
    c.dropped = 0;
  }

 private:
  // The readings lie as close together as a few tries can bring them.
  Moment moment() const {
    Moment best;
    std::int64_t least = -1;
    for (int i = 0; i < 5; ++i) {
      const std::int64_t before = trace_now();
      std::uint64_t gpu = 0;
      cupti_.timestamp(&gpu);
      const std::int64_t after = trace_now();
      if (least >= 0 && after - before >= least) continue;
      least = after - before;
      best = {static_cast<std::int64_t>(gpu), before + (after - before) / 2};
    }
    return best;
  }
  void name_streams() {
    for (const auto& [stream, name] : cuda_streams()) {
      std::uint32_t id = 0;
      if (cupti_.stream_id(nullptr, stream, 0, &id) == CUPTI_SUCCESS) names_[id] = name;
    }
  }

  const Cupti& cupti_;
  const Moment start_;
  std::map<std::uint32_t, std::string> names_;
};

}  // namespace

std::unique_ptr<GpuTrace> start_gpu_trace(std::string& remark) {
  const Cupti* cupti = load_cupti(remark);
  if (cupti == nullptr) return nullptr;
  {
    Collected& c = collected();
    const std::lock_guard lock(c.mutex);
    c.cupti = cupti;
    c.records.clear();
    c.dropped = 0;
  }
  const auto refused = [&](CUptiResult result, const char* call) {
    if (result == CUPTI_SUCCESS) return false;
    for (const CUpti_ActivityKind kind : kinds) cupti->disable(kind);
    const char* hint = "";
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) hint = "; another profiler is attached";
    if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) hint = "; the driver lets only root profile on this machine";
    remark = fmt::format("{}{} of {}{}", without, cupti->describe(result), call, hint);
    return true;
  };
  if (refused(cupti->register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks")) return nullptr;
  for (const CUpti_ActivityKind kind : kinds)
    if (refused(cupti->enable(kind), "cuptiActivityEnable")) return nullptr;
  return std::make_unique<CuptiTrace>(*cupti);
}

}  // namespace so
