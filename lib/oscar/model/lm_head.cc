// The final norm and the LM head, over the vocabulary in blocks.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/model/layer_kernels.h"
#include "oscar/model/runner_impl.h"
#include "oscar/model/torch_support.h"

namespace oscar {
namespace {

// Rows of the head dequantised at a time, and tokens multiplied with them at a time: logits of one
// step take 4 kTokens kRows bytes (8 MiB).
constexpr int64_t kRows = 8192;
constexpr int64_t kTokens = 256;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Running log-sum-exp of a row of logits, and its largest entry.
struct Softmax {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;  // sum of exp(x - max)
  float top = -std::numeric_limits<float>::infinity();
  int32_t top_id = -1;
  float next = 0;  // logit of the token that follows

  double LogSumExp() const { return max + std::log(sum); }
  double Nll() const { return LogSumExp() - static_cast<double>(next); }

  // Takes one block of logits into the maximum; returns the factor for sums relative to the old
  // one.
  double Raise(const float* x, int64_t count, int64_t first_id) {
    const float best = Largest(x, count);
    if (best > top) {
      top = best;
      top_id = static_cast<int32_t>(first_id + (std::find(x, x + count, best) - x));
    }
    const double raised = std::max(max, static_cast<double>(best));
    const double factor = std::exp(max - raised);
    max = raised;
    return factor;
  }
};

// State of one token in all streams: index 0 is the exact run.
struct TokenState {
  std::vector<Softmax> softmax;
  std::vector<double> difference;  // sum of exp(x - max) (x - y) for each stream y
};

// Takes one block of logits of one token. x: exact; ys: the streams; exps: scratch [count].
void AddBlock(const float* x, const std::vector<const float*>& ys, int64_t count, int64_t first_id,
              int32_t next, double* exps, TokenState& state) {
  const auto pick = [&](const float* logits, Softmax& s) {
    if (next >= first_id && next < first_id + count) s.next = logits[next - first_id];
  };
  Softmax& exact = state.softmax[0];
  const double factor = exact.Raise(x, count, first_id);
  exact.sum = exact.sum * factor + SumOfExps(x, count, exact.max, exps);
  pick(x, exact);
  for (size_t s = 0; s < ys.size(); ++s) {
    const float* y = ys[s];
    state.difference[s] = state.difference[s] * factor + WeightedDifference(exps, x, y, count);
  }
  for (size_t s = 0; s < ys.size(); ++s) {
    const float* y = ys[s];
    Softmax& other = state.softmax[s + 1];
    const double other_factor = other.Raise(y, count, first_id);
    other.sum = other.sum * other_factor + SumOfExps(y, count, other.max, exps);
    pick(y, other);
  }
}

// Calls body(head rows [count, hidden] on the device, first id) for the whole vocabulary.
void OverVocabulary(const ModelWeights& weights, int threads, at::Device device,
                    const std::function<void(const at::Tensor&, int64_t)>& body) {
  const ModelConfig& config = weights.config();
  for (int64_t begin = 0; begin < config.vocab; begin += kRows) {
    const int64_t end = std::min(begin + kRows, config.vocab);
    const std::vector<float> rows = weights.HeadRowsRange(begin, end, threads);
    body(Wrap(rows, {end - begin, config.hidden}, device), begin);
  }
}

LogitComparison Summarise(const std::vector<TokenState>& states, size_t stream,
                          const std::vector<int32_t>& next) {
  LogitComparison out;
  for (size_t t = 0; t < states.size(); ++t) {
    const Softmax& exact = states[t].softmax[0];
    const Softmax& other = states[t].softmax[stream];
    // sum p (x - y) - log sum exp(x) + log sum exp(y); at least 0 but for rounding.
    const double kl =
        states[t].difference[stream - 1] / exact.sum - (exact.LogSumExp() - other.LogSumExp());
    out.kl.push_back(std::max(kl, 0.0));
    out.top1.push_back(exact.top_id == other.top_id ? 1 : 0);
    out.nll_exact.push_back(next[t] < 0 ? kNan : exact.Nll());
    out.nll_stream.push_back(next[t] < 0 ? kNan : other.Nll());
  }
  return out;
}

}  // namespace

at::Tensor RunnerData::FinalNorm(const at::Tensor& hidden) const {
  OSCAR_CHECK(next_layer == config.layers);
  const std::vector<float> norm = weights.FinalNorm();
  at::Tensor out = at::empty_like(hidden);
  RmsNorm(hidden, Wrap(norm, {config.hidden}, device), static_cast<float>(config.rms_eps),
          options.fused_loops && device.is_cpu(), out);
  return out;
}

std::vector<int32_t> RunnerData::NextTokens() const {
  std::vector<int32_t> next;
  for (const std::vector<int32_t>& ids : sequences) {
    next.insert(next.end(), ids.begin() + 1, ids.end());
    next.push_back(-1);
  }
  return next;
}

namespace {

// Log-softmax statistics of every token, of the exact run and of `streams`.
std::vector<TokenState> Compare(const RunnerData& runner, const std::vector<int>& streams,
                                const std::vector<int32_t>& next) {
  std::vector<at::Tensor> normed = {runner.FinalNorm(runner.streams[0].hidden)};
  for (const int s : streams) {
    normed.push_back(runner.FinalNorm(runner.streams.at(static_cast<size_t>(s)).hidden));
  }
  std::vector<TokenState> states(
      static_cast<size_t>(runner.tokens()),
      {std::vector<Softmax>(normed.size()), std::vector<double>(streams.size())});
  const auto step = [&](const at::Tensor& head, int64_t first_id, int64_t begin, int64_t end) {
    std::vector<at::Tensor> logits;
    for (const at::Tensor& x : normed) {
      logits.push_back(at::mm(x.narrow(0, begin, end - begin), head.t()).cpu());
    }
    const int64_t count = head.size(0);
    ParallelRange(end - begin, 1, [&](int64_t first, int64_t last) {
      std::vector<double> exps(static_cast<size_t>(count));
      std::vector<const float*> ys(streams.size());
      for (int64_t t = first; t < last; ++t) {
        for (size_t s = 0; s < ys.size(); ++s) {
          ys[s] = logits[s + 1].const_data_ptr<float>() + t * count;
        }
        const auto token = static_cast<size_t>(begin + t);
        AddBlock(logits[0].const_data_ptr<float>() + t * count, ys, count, first_id, next[token],
                 exps.data(), states[token]);
      }
    });
  };
  OverVocabulary(runner.weights, runner.context.threads, runner.device,
                 [&](const at::Tensor& head, int64_t first_id) {
                   for (int64_t begin = 0; begin < runner.tokens(); begin += kTokens) {
                     if (runner.context.cancel != nullptr) {
                       runner.context.cancel->ThrowIfCancelled("");
                     }
                     step(head, first_id, begin, std::min(begin + kTokens, runner.tokens()));
                   }
                 });
  return states;
}

}  // namespace

std::vector<LogitComparison> ModelRunner::CompareLogits(const std::vector<int>& streams) const {
  std::vector<LogitComparison> out;
  GuardTorch("comparison of logits", [&] {
    const std::vector<int32_t> next = impl_->NextTokens();
    const std::vector<TokenState> states = Compare(*impl_, streams, next);
    for (size_t s = 0; s < streams.size(); ++s) out.push_back(Summarise(states, s + 1, next));
  });
  return out;
}

LogitComparison ModelRunner::CompareLogits(int stream) const {
  return std::move(CompareLogits(std::vector<int>{stream})[0]);
}

std::vector<double> ModelRunner::TokenNll() const {
  std::vector<double> out;
  GuardTorch("token log-likelihoods", [&] {
    const std::vector<int32_t> next = impl_->NextTokens();
    const std::vector<TokenState> states = Compare(*impl_, {}, next);
    for (size_t t = 0; t < states.size(); ++t) {
      out.push_back(next[t] < 0 ? kNan : states[t].softmax[0].Nll());
    }
  });
  return out;
}

namespace {

at::Tensor SelectRows(const at::Tensor& x, const std::vector<int64_t>& rows) {
  return x.index_select(0, at::tensor(rows, at::kLong).to(x.device()));
}

// Keeps the `count` largest of the logits so far and of a block.
void MergeTop(const float* x, int64_t size, int64_t first_id, int count,
              ModelRunner::TopLogits& top) {
  std::vector<int32_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  const auto keep = std::min<int64_t>(count, size);
  std::partial_sort(order.begin(), order.begin() + keep, order.end(),
                    [&](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  ModelRunner::TopLogits merged;
  size_t old = 0;
  int64_t fresh = 0;
  while (static_cast<int64_t>(merged.ids.size()) < count &&
         (old < top.ids.size() || fresh < keep)) {
    const bool take_old =
        fresh == keep ||
        (old < top.ids.size() && top.logits[old] >= x[order[static_cast<size_t>(fresh)]]);
    if (take_old) {
      merged.ids.push_back(top.ids[old]);
      merged.logits.push_back(top.logits[old++]);
    } else {
      const int32_t id = order[static_cast<size_t>(fresh++)];
      merged.ids.push_back(static_cast<int32_t>(first_id) + id);
      merged.logits.push_back(x[id]);
    }
  }
  top = std::move(merged);
}

}  // namespace

std::vector<ModelRunner::TopLogits> ModelRunner::Top(const std::vector<int64_t>& tokens,
                                                     int count) const {
  OSCAR_CHECK(count > 0);
  std::vector<TopLogits> out(tokens.size());
  GuardTorch("largest logits", [&] {
    const at::Tensor x = impl_->FinalNorm(SelectRows(impl_->streams[0].hidden, tokens));
    OverVocabulary(impl_->weights, impl_->context.threads, impl_->device,
                   [&](const at::Tensor& head, int64_t first_id) {
                     const at::Tensor logits = at::mm(x, head.t()).cpu();
                     for (size_t t = 0; t < tokens.size(); ++t) {
                       const float* row =
                           logits.const_data_ptr<float>() + static_cast<int64_t>(t) * head.size(0);
                       MergeTop(row, head.size(0), first_id, count, out[t]);
                     }
                   });
  });
  return out;
}

std::vector<float> ModelRunner::FinalHidden(const std::vector<int64_t>& tokens) const {
  std::vector<float> out;
  GuardTorch("final norm", [&] {
    const at::Tensor x =
        impl_->FinalNorm(SelectRows(impl_->streams[0].hidden, tokens)).cpu().contiguous();
    out.assign(x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel());
  });
  return out;
}

}  // namespace oscar
