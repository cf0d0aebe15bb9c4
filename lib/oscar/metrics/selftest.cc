#include "oscar/metrics/selftest.h"

#include <array>
#include <cmath>

#include "oscar/core/random.h"
#include "oscar/metrics/attention.h"
#include "oscar/metrics/summary.h"
#include "oscar/quant/scheme.h"

namespace oscar {
namespace {

// Products in float32 over up to 64 channels and 256 keys leave relative errors below 1e-4 in any
// sum used here; most are near 1e-6.
constexpr double kRelative = 1e-4;

// A small layer with random rows.
struct Layer {
  LayerShape shape;
  int64_t tokens = 80;
  std::vector<float> q, k, v, o_proj;
  std::vector<int64_t> queries;
  Windows windows{8, 16};

  explicit Layer(uint64_t seed) {
    shape.q_heads = 4;
    shape.kv_heads = 2;
    shape.k_dim = shape.v_dim = 16;
    shape.hidden = 64;
    shape.softmax_scale = 0.25;
    Random random(seed);
    const auto fill = [&](std::vector<float>& rows, int64_t count) {
      rows.resize(static_cast<size_t>(count));
      for (float& x : rows) x = static_cast<float>(random.Normal());
    };
    fill(q, tokens * 4 * 16);
    fill(k, tokens * 2 * 16);
    fill(v, tokens * 2 * 16);
    fill(o_proj, 64 * 64);
    queries = ChooseQueries(tokens, 16, windows, true);
  }

  HeadRows<const float> Rows(const std::vector<float>& rows) const {
    return {rows.data(), tokens, 2, 16};
  }
  AttentionErrors Errors(const std::vector<float>& k_hat, const std::vector<float>& v_hat,
                         bool use_windows) const {
    const AttentionReference exact(shape, {q.data(), tokens, 4, 16}, Rows(k), Rows(v), queries, 1,
                                   o_proj);
    return exact.Compare({Rows(k_hat), Rows(v_hat), {}, {}}, windows, use_windows, 1);
  }
};

std::vector<float> Scaled(std::vector<float> rows, float factor) {
  for (float& x : rows) x *= factor;
  return rows;
}

void RowTests(std::vector<SelfTestResult>& results) {
  const Layer layer(1);
  for (const bool key : {true, false}) {
    const std::vector<float>& rows = key ? layer.k : layer.v;
    const RowErrors errors =
        CompareRows(layer.Rows(rows), layer.Rows(Scaled(rows, 1.25F)), {}, layer.windows, false);
    results.push_back({key ? "key_error" : "value_error", "all rows times 1.25", 0.25,
                       errors.total.Relative(), 1e-6});
  }
}

void LogitTests(std::vector<SelfTestResult>& results) {
  const Layer layer(2);
  // Keys times 1.5: every logit grows by half, centred or not.
  const AttentionErrors grown = layer.Errors(Scaled(layer.k, 1.5F), layer.v, false);
  results.push_back(
      {"logit_error", "all keys times 1.5", 0.5, grown.logit_error.Relative(), 0.5 * kRelative});
  // The same vector added to every key moves all logits of a query alike: softmax forgets it.
  std::vector<float> shifted = layer.k;
  for (size_t i = 0; i < shifted.size(); ++i) shifted[i] += 0.25F * static_cast<float>(i % 16);
  const AttentionErrors moved = layer.Errors(shifted, layer.v, false);
  results.push_back(
      {"logit_error", "one vector added to all keys", 0, moved.logit_error.Relative(), kRelative});
  results.push_back(
      {"attention_kl", "one vector added to all keys", 0, moved.attention_kl.Mean(), 1e-8});
}

// One query whose logits are chosen: q = e_0, k_j = ln(a_j) e_0, so that p = a.
void KlTest(std::vector<SelfTestResult>& results) {
  const std::array<double, 4> p = {0.5, 0.25, 0.125, 0.125};
  LayerShape shape;
  shape.q_heads = shape.kv_heads = 1;
  shape.k_dim = shape.v_dim = 4;
  shape.softmax_scale = 1;
  std::vector<float> q(16, 0.0F);
  std::vector<float> k(16, 0.0F);
  std::vector<float> k_hat(16, 0.0F);
  const std::vector<float> v(16, 1.0F);
  q[12] = 1;
  double expected = 0;
  for (size_t j = 0; j < 4; ++j) {
    k[j * 4] = static_cast<float>(std::log(p[j]));
    k_hat[j * 4] = static_cast<float>(std::log(p[3 - j]));
    expected += p[j] * std::log(p[j] / p[3 - j]);
  }
  const std::array<int64_t, 1> queries = {3};
  const AttentionReference exact(shape, {q.data(), 4, 1, 4}, {k.data(), 4, 1, 4},
                                 {v.data(), 4, 1, 4}, queries, 1);
  const AttentionErrors errors =
      exact.Compare({{k_hat.data(), 4, 1, 4}, {v.data(), 4, 1, 4}, {}, {}}, {}, false, 1);
  results.push_back({"attention_kl", "probabilities in reverse order", expected,
                     errors.attention_kl.Mean(), 1e-6});
}

void OutputTests(std::vector<SelfTestResult>& results) {
  Layer layer(3);
  const AttentionErrors negated = layer.Errors(layer.k, Scaled(layer.v, -1), false);
  results.push_back(
      {"output_error", "all values negated", 2, negated.output_error.Relative(), 2 * kRelative});
  results.push_back({"projected_output_error", "all values negated", 2,
                     negated.projected_output_error.Relative(), 2 * kRelative});
  // W_O reads the even channels only; errors of the odd ones are lost in it.
  for (size_t i = 0; i < layer.o_proj.size(); ++i) {
    if (i % 2 == 1) layer.o_proj[i] = 0;
  }
  std::vector<float> odd = layer.v;
  for (size_t i = 1; i < odd.size(); i += 2) odd[i] += 3;
  const AttentionErrors hidden = layer.Errors(layer.k, odd, false);
  results.push_back({"projected_output_error", "values changed where W_O is zero", 0,
                     hidden.projected_output_error.Relative(), 1e-12});
}

void RegionTests(std::vector<SelfTestResult>& results) {
  const Layer layer(4);
  // Errors in the windows only: nothing may be seen with windows, something without.
  std::vector<float> k_hat = layer.k;
  std::vector<float> v_hat = layer.v;
  for (size_t i = 0; i < static_cast<size_t>(layer.windows.sink) * 2 * 16; ++i) {
    k_hat[i] *= -2;
    v_hat[i] *= -2;
  }
  const AttentionErrors covered = layer.Errors(k_hat, v_hat, true);
  results.push_back(
      {"attention_kl", "sink keys changed, windows on", 0, covered.attention_kl.Mean(), 0});
  results.push_back(
      {"output_error", "sink values changed, windows on", 0, covered.output_error.Relative(), 0});
  // Without windows the change is seen. Sink logits became -2 times themselves: the error of each
  // is -3 times the exact one, so the ratio of uncentred sums would be 3; centred by the row's
  // means it stays above 1, and the middle, whose logits did not change, keeps an error below it.
  const AttentionErrors open = layer.Errors(k_hat, v_hat, false);
  const double sink = open.region_logit_error[0].Relative();
  const double middle = open.region_logit_error[1].Relative();
  results.push_back({"region_logit_error", "sink keys times -2, windows off: shown in the sink", 1,
                     sink > 1 && sink > 2 * middle ? 1.0 : 0.0, 0});
  double parts = 0;
  for (const MeanSum& part : open.region_kl) parts += part.Mean();
  results.push_back({"region_kl", "sink keys times -2, windows off: regions add up",
                     open.attention_kl.Mean(), parts, 1e-9});
  double mass = 0;
  for (const MeanSum& part : open.region_mass) mass += part.Mean();
  results.push_back({"region_mass", "regions add up", 1, mass, 1e-12});
}

void NoiseTest(std::vector<SelfTestResult>& results) {
  const Layer layer(5);
  std::vector<float> noisy(layer.k.size());
  const std::vector<float> k_hat = Scaled(layer.k, 0.5F);
  MatchedNoise(layer.Rows(layer.k), layer.Rows(k_hat), {noisy.data(), layer.tokens, 2, 16}, 1, 1);
  const RowErrors errors =
      CompareRows(layer.Rows(layer.k), layer.Rows(noisy), {}, layer.windows, false);
  results.push_back({"matched_noise", "rows halved: noise of half their norm", 0.5,
                     errors.total.Relative(), 1e-5});
}

}  // namespace

bool SelfTestResult::passed() const { return std::abs(found - expected) <= tolerance; }

std::vector<SelfTestResult> RunMetricSelfTests() {
  std::vector<SelfTestResult> results;
  RowTests(results);
  LogitTests(results);
  KlTest(results);
  OutputTests(results);
  RegionTests(results);
  NoiseTest(results);
  const std::array<double, 4> samples = {1, 2, 3, 6};
  // Mean 3, squared deviations 4 + 1 + 0 + 9 = 14, se = sqrt(14 / 3 / 4).
  results.push_back({"standard_error", "samples 1, 2, 3, 6", std::sqrt(14.0 / 12),
                     Summarize(samples).se.value_or(0), 1e-12});
  return results;
}

Value ToValue(const std::vector<SelfTestResult>& results) {
  Value::Array rows;
  for (const SelfTestResult& result : results) {
    rows.push_back(Value::Object{{"metric", result.metric},
                                 {"injection", result.injection},
                                 {"expected", result.expected},
                                 {"found", result.found},
                                 {"tolerance", result.tolerance},
                                 {"passed", result.passed()}});
  }
  return rows;
}

}  // namespace oscar
