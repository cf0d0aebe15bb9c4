#include "oscar/bench/run_bench.h"

#include <algorithm>
#include <limits>
#include <set>

#include "oscar/bench/capacity.h"
#include "oscar/bench/whole_model.h"
#include "oscar/core/error.h"
#include "oscar/core/version.h"

namespace oscar {
namespace {

bool Explicit(const BenchOptions& o) { return o.q_heads > 0 || o.kv_heads > 0 || o.head_dim > 0; }

std::vector<ModelShape> ShapesOf(const BenchOptions& o) {
  std::vector<ModelShape> shapes;
  if (Explicit(o)) {
    ModelShape shape;
    shape.name = std::to_string(o.q_heads) + "/" + std::to_string(o.kv_heads) + " heads of " +
                 std::to_string(o.head_dim);
    shape.layers = 1;
    shape.q_heads = o.q_heads;
    shape.kv_heads = o.kv_heads;
    shape.head_dim = o.head_dim;
    return {shape};
  }
  for (const std::string& name : o.models) shapes.push_back(ModelShapeOf(name));
  return shapes;
}

Windows WindowsOf(const BenchOptions& o) { return o.use_windows ? o.windows : Windows{0, 0}; }

DecodeShape AttentionOf(const BenchOptions& o, const ModelShape& model) {
  return model.Attention(o.group_size == 0 ? 1 : model.head_dim / o.group_size, o.scale_type);
}

std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(const std::string& value) { return value; }

template <typename T>
void CheckList(const char* option, const std::vector<T>& values) {
  std::set<T> seen;
  for (const T& value : values) {
    if (!seen.insert(value).second) {
      throw Error(ErrorCode::kUsage, std::string(option) + " names " + Text(value) + " twice");
    }
  }
  if (values.empty()) throw Error(ErrorCode::kUsage, std::string(option) + " is empty");
}

Value Describe(const Spread& t, int64_t bytes, double read_bandwidth) {
  const auto moved = static_cast<double>(bytes);
  return Value::Object{{"us", t.median},
                       {"us_low", t.low},
                       {"us_high", t.high},
                       {"bytes", bytes},
                       {"gb_s", 1e-3 * moved / t.median},
                       {"of_read", moved / t.median / read_bandwidth}};
}

// One cell of the grid: INT2, BF16 and what PyTorch has.
class Cell {
 public:
  Cell(const BenchOptions& options, BenchDevice& device, double read_bandwidth)
      : options_(options), device_(device), read_bandwidth_(read_bandwidth) {}

  Value Measure(const DecodeCase& int2) const {
    DecodeCase bf16 = int2;
    bf16.format = CacheFormat::kBFloat16;
    Value row = Value::Object{{"batch", int2.batch},
                              {"context", int2.context},
                              {"order", int2.shuffled ? "random" : "sequential"}};
    const Spread fast = device_.Decode(int2), base = device_.Decode(bf16);
    row["int2"] = Describe(fast, int2.Bytes(), read_bandwidth_);
    row["bf16"] = Describe(base, bf16.Bytes(), read_bandwidth_);
    row["plan_us"] = device_.Plan(int2);
    double best = base.median;
    if (options_.sdpa) {
      best = std::min(best, Sdpa(bf16, SdpaKernel::kFlash, "sdpa_flash", row));
      best = std::min(best, Sdpa(bf16, SdpaKernel::kCudnn, "sdpa_cudnn", row));
    }
    row["speedup"] = base.median / fast.median;
    row["speedup_over_best_bf16"] = best / fast.median;
    row["byte_ratio"] = static_cast<double>(bf16.Bytes()) / static_cast<double>(int2.Bytes());
    return row;
  }

 private:
  double Sdpa(const DecodeCase& c, SdpaKernel kernel, const char* key, Value& row) const {
    const std::optional<Spread> time = device_.Sdpa(c, kernel);
    if (!time.has_value()) return std::numeric_limits<double>::infinity();
    row[key] = Describe(*time, c.Bytes(), read_bandwidth_);
    return time->median;
  }

  const BenchOptions& options_;
  BenchDevice& device_;
  double read_bandwidth_;
};

// Bytes that both formats' pools of a case take on the device.
int64_t PoolBytes(DecodeCase c, int64_t l2_bytes) {
  int64_t bytes = 0;
  for (const CacheFormat format : {CacheFormat::kInt2, CacheFormat::kBFloat16}) {
    c.format = format;
    bytes += std::max(c.Bytes(), 8 * l2_bytes + c.Bytes());
  }
  return bytes;
}

Value MemoryPerToken(const ModelShape& model, const CacheShape& shape) {
  return Value::Object{{"int2_bytes", shape.QuantisedTokenBytes()},
                       {"bf16_bytes", shape.RowTokenBytes()},
                       {"int2_bytes_all_layers", model.layers * shape.QuantisedTokenBytes()},
                       {"bf16_bytes_all_layers", model.layers * shape.RowTokenBytes()}};
}

std::vector<DecodeCase> GridOf(const BenchOptions& o, const ModelShape& model) {
  std::vector<DecodeCase> grid;
  for (const int64_t batch : o.batches) {
    for (const int64_t context : o.contexts) {
      for (const std::string& order : o.orders) {
        grid.push_back({AttentionOf(o, model), CacheFormat::kInt2, batch, context, WindowsOf(o),
                        order == "random"});
      }
    }
  }
  return grid;
}

Value::Array MeasureGrid(const BenchOptions& o, const ModelShape& model, BenchDevice& device,
                         const DeviceInfo& info, const RunContext& context, Value::Array& notes) {
  const std::vector<DecodeCase> grid = GridOf(o, model);
  // Largest first: the memory of a large case serves the smaller ones.
  std::vector<size_t> order(grid.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return grid[a].batch * grid[a].context > grid[b].batch * grid[b].context;
  });
  std::vector<Value> rows(grid.size());
  const Cell cell(o, device, device.ReadBandwidth());
  const auto usable =
      static_cast<int64_t>(static_cast<double>(info.memory_bytes) * o.memory_fraction);
  context.progress->Begin("decode attention, " + model.name, static_cast<int64_t>(grid.size()),
                          "cases");
  for (const size_t i : order) {
    context.cancel->ThrowIfCancelled("");
    if (PoolBytes(grid[i], info.l2_bytes) <= usable) {
      rows[i] = cell.Measure(grid[i]);
    } else if (grid[i].shuffled || o.orders.size() == 1) {
      notes.push_back(model.name + ": " + std::to_string(grid[i].batch) + " requests of " +
                      std::to_string(grid[i].context) +
                      " tokens were left out: their BF16 cache does not fit the device");
    }
    context.progress->Advance(1);
  }
  context.progress->End();
  std::erase_if(rows, [](const Value& row) { return row.is_null(); });
  return {rows.begin(), rows.end()};
}

// Writes of a prefill chunk and of a decode step of each batch.
Value::Array MeasureWrites(const BenchOptions& o, const ModelShape& model, BenchDevice& device,
                           const RunContext& context) {
  std::vector<WriteCase> cases = {{AttentionOf(o, model), o.write_tokens, false}};
  for (const int64_t batch : o.batches) cases.push_back({AttentionOf(o, model), batch, true});
  const double read = device.ReadBandwidth();
  Value::Array rows;
  for (const WriteCase& c : cases) {
    context.cancel->ThrowIfCancelled("");
    Value row = Describe(device.Write(c), c.Bytes(), read);
    row["kind"] = c.decode_step ? "decode step" : "prefill";
    row["tokens"] = c.tokens;
    rows.push_back(std::move(row));
  }
  return rows;
}

Value DescribeOptions(const BenchOptions& o) {
  const Windows windows = WindowsOf(o);
  return Value::Object{{"windows", o.use_windows},
                       {"sink", windows.sink},
                       {"recent", windows.recent},
                       {"group_size", o.group_size},
                       {"scale_dtype", std::string(DTypeName(o.scale_type))},
                       {"memory_fraction", o.memory_fraction}};
}

}  // namespace

void CheckBenchOptions(const BenchOptions& o) {
  CheckList("--batch", o.batches);
  CheckList("--context", o.contexts);
  CheckList("--step-context", o.step_contexts);
  CheckList("--order", o.orders);
  if (!o.models.empty()) CheckList("--shape", o.models);
  for (const std::string& order : o.orders) {
    if (order != "random" && order != "sequential") {
      throw Error(ErrorCode::kUsage,
                  "--order: expected random or sequential, found '" + order + "'");
    }
  }
  if (Explicit(o) && !o.models.empty()) {
    throw Error(ErrorCode::kUsage,
                "--shape: expected no name beside --q-heads, --kv-heads and --head-dim, found '" +
                    o.models.front() + "'",
                "leave out --shape, or the heads");
  }
  if (Explicit(o) && (o.q_heads <= 0 || o.kv_heads <= 0 || o.head_dim <= 0)) {
    throw Error(ErrorCode::kUsage, "an explicit shape needs --q-heads, --kv-heads and --head-dim");
  }
  if (Explicit(o) && o.whole_model) {
    throw Error(ErrorCode::kUsage, "--whole-model needs a model's name, not heads alone");
  }
  if (!o.grid && !o.whole_model) {
    throw Error(ErrorCode::kUsage, "nothing to measure: --no-grid without --whole-model");
  }
  for (const ModelShape& model : ShapesOf(o)) {
    if (o.group_size > 0 && model.head_dim % o.group_size != 0) {
      throw Error(ErrorCode::kUsage, "group size " + std::to_string(o.group_size) +
                                         " does not divide the head dim " +
                                         std::to_string(model.head_dim));
    }
    CheckDecodeShape(AttentionOf(o, model));
  }
}

Value RunBench(const BenchOptions& options, BenchDevice& device, const RunContext& context) {
  CheckBenchOptions(options);
  if (options.whole_model && !device.HasTorch()) {
    throw Error(ErrorCode::kUnsupported,
                "--whole-model needs the CUDA part of LibTorch, which this build lacks",
                "build with -DOSCAR_TORCH_CUDA=ON against a CUDA build of LibTorch");
  }
  const DeviceInfo info = device.Info();
  Value record;
  Value::Array notes;
  record["schema"] = "oscar.bench/1";
  record["tool"] = Value::Object{{"version", Version()}, {"git_revision", GitRevision()}};
  record["settings"] = DescribeOptions(options);
  const double read = device.ReadBandwidth();
  record["device"] = Value::Object{{"name", info.name},
                                   {"memory_bytes", info.memory_bytes},
                                   {"l2_bytes", info.l2_bytes},
                                   {"multiprocessors", info.multiprocessors},
                                   {"driver", info.driver_version},
                                   {"read_gb_s", 1e-3 * read}};
  if (options.sdpa && !device.HasTorch()) {
    notes.push_back(
        "PyTorch's attention was not measured: this build has no CUDA part of "
        "LibTorch (-DOSCAR_TORCH_CUDA=ON)");
  }
  Value::Array models;
  for (const ModelShape& model : ShapesOf(options)) {
    const DecodeShape shape = AttentionOf(options, model);
    Value entry = Value::Object{{"name", model.name},
                                {"layers", model.layers},
                                {"q_heads", model.q_heads},
                                {"kv_heads", model.kv_heads},
                                {"head_dim", model.head_dim}};
    entry["per_token"] = MemoryPerToken(model, shape.cache);
    if (model.whole()) {
      entry["weight_bytes"] = 2 * model.Parameters();
      entry["capacity"] =
          CapacityTable(model, shape.cache, WindowsOf(options), options.step_contexts,
                        {info.memory_bytes, options.memory_fraction});
    }
    if (options.grid) {
      entry["decode"] = MeasureGrid(options, model, device, info, context, notes);
    }
    if (options.grid && options.write_tokens > 0) {
      entry["writes"] = MeasureWrites(options, model, device, context);
    }
    if (options.whole_model) {
      entry["steps"] =
          MeasureSteps(model, shape, WindowsOf(options), options.batches, options.step_contexts,
                       {info.memory_bytes, options.memory_fraction}, device, context, notes);
    }
    models.push_back(std::move(entry));
  }
  record["models"] = std::move(models);
  record["notes"] = std::move(notes);
  return record;
}

Value RunBench(const BenchOptions& options, const std::string& device, const RunContext& context) {
  CheckBenchOptions(options);
  return RunBench(options, *OpenBenchDevice(device), context);
}

}  // namespace oscar
