#include "calibrate/synthetic_trace.h"

#include <algorithm>
#include <cmath>

#include "linalg/random_matrix.h"
#include "oscar/core/hash.h"
#include "oscar/core/parallel.h"
#include "oscar/core/random.h"
#include "oscar/stats/sst.h"

namespace oscar::test {
namespace {

// [tokens, heads, dim] with one covariance for each group of heads.
class Rows {
 public:
  Rows(int64_t tokens, int64_t heads, int64_t dim) : tokens_(tokens), heads_(heads), dim_(dim) {
    data_.resize(static_cast<size_t>(tokens * heads * dim));
  }

  void Fill(int64_t head, const std::vector<double>& spectrum, uint64_t basis_seed,
            Random& random) {
    const Matrix basis = RandomOrthogonal(dim_, basis_seed);
    Matrix normal(tokens_, dim_);
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t d = 0; d < dim_; ++d) {
        normal(t, d) = random.Normal() * std::sqrt(spectrum[static_cast<size_t>(d)]);
      }
    }
    const Matrix rows = normal * basis.transpose();
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t d = 0; d < dim_; ++d) {
        data_[Index(t, head, d)] = ToBFloat16(static_cast<float>(rows(t, d)));
      }
    }
  }

  // Adds `offset` to a channel of all tokens.
  void Shift(int64_t head, int64_t channel, double offset) {
    for (int64_t t = 0; t < tokens_; ++t) {
      BFloat16& x = data_[Index(t, head, channel)];
      x = ToBFloat16(ToFloat(x) + static_cast<float>(offset));
    }
  }

  MomentTensor Products() const {
    MomentTensor sums{{heads_, dim_, dim_}, {}};
    for (int64_t h = 0; h < heads_; ++h) {
      Matrix head(tokens_, dim_);
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int64_t d = 0; d < dim_; ++d) {
          head(t, d) = static_cast<double>(ToFloat(data_[Index(t, h, d)]));
        }
      }
      const Matrix product = head.transpose() * head;
      sums.data.insert(sums.data.end(), product.data(), product.data() + product.size());
    }
    return sums;
  }

  // Tokens [begin, end).
  std::vector<BFloat16> Slice(int64_t begin, int64_t end) const {
    const int64_t width = heads_ * dim_;
    return {data_.begin() + begin * width, data_.begin() + end * width};
  }

  std::vector<float> Floats() const {
    std::vector<float> floats;
    for (const BFloat16 x : data_) floats.push_back(ToFloat(x));
    return floats;
  }

 private:
  size_t Index(int64_t t, int64_t h, int64_t d) const {
    return static_cast<size_t>((t * heads_ + h) * dim_ + d);
  }

  int64_t tokens_, heads_, dim_;
  std::vector<BFloat16> data_;
};

int64_t At(const std::vector<int64_t>& values, size_t i) {
  return values[std::min(i, values.size() - 1)];
}

TraceHeader MakeHeader(const SyntheticTrace& spec) {
  TraceHeader header;
  header.manifest["model_id"] = spec.model_id;
  header.manifest["config_hash"] = "c0ffee";
  header.manifest["capture_point"] = "post_rope";
  header.layers = spec.layers;
  Random random(DeriveSeed(spec.seed, "ids"));
  int64_t start = 0;
  for (const int64_t length : spec.lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(50000));
    const std::vector<uint64_t> grams = SampledNgrams(ids);
    header.ngram_hashes.insert(header.ngram_hashes.end(), grams.begin(), grams.end());
    header.sequences.push_back({start, length, true,
                                header.sequences.size() < spec.sequences_with_rows,
                                Sha256Hex(ids.data(), ids.size() * sizeof(int32_t))});
    start += length;
  }
  return header;
}

// Tokens of the sequences that keep rows, which come first.
int64_t RowTokens(const SyntheticTrace& spec) {
  int64_t tokens = 0;
  for (size_t i = 0; i < std::min(spec.sequences_with_rows, spec.lengths.size()); ++i) {
    tokens += spec.lengths[i];
  }
  return tokens;
}

LayerCapture MakeLayer(const SyntheticTrace& spec, size_t index, int64_t tokens) {
  const int64_t k_dim = At(spec.k_dims, index), v_dim = At(spec.v_dims, index);
  const auto layer = static_cast<uint64_t>(spec.layers[index]);
  Random random(DeriveSeed(spec.seed, "rows" + std::to_string(layer)));
  Rows q(tokens, spec.q_heads, k_dim), k(tokens, spec.kv_heads, k_dim);
  Rows v(tokens, spec.kv_heads, v_dim), o(tokens, spec.q_heads, v_dim);
  const int64_t group = spec.q_heads / spec.kv_heads;
  // Logits with a standard deviation near 2, whatever the spectrum.
  std::vector<double> k_spectrum = GeometricSpectrum(k_dim, spec.spectrum_range);
  double energy = 0;
  for (const double x : k_spectrum) energy += x * x;
  for (double& x : k_spectrum) x *= 2 * std::sqrt(static_cast<double>(k_dim) / energy);
  const std::vector<double> v_spectrum = GeometricSpectrum(v_dim, spec.spectrum_range);
  for (int64_t h = 0; h < spec.kv_heads; ++h) {
    const uint64_t head = spec.heads_alike ? 0 : static_cast<uint64_t>(h);
    const uint64_t basis = 1000 * layer + 10 * head;
    k.Fill(h, k_spectrum, basis, random);
    v.Fill(h, v_spectrum, basis + 1, random);
    if (spec.key_outlier != 0) {
      k.Shift(h, (5 + 7 * h) % k_dim, spec.key_outlier);
      k.Shift(h, (5 + 7 * h + k_dim / 2) % k_dim, -spec.key_outlier);
    }
    for (int64_t j = h * group; j < (h + 1) * group; ++j) {
      q.Fill(j, k_spectrum, basis, random);
      o.Fill(j, v_spectrum, basis + 1, random);  // stands for attention outputs
    }
  }
  LayerCapture capture;
  capture.layer = spec.layers[index];
  LayerMoments& moments = capture.moments;
  moments.shape.q_heads = spec.q_heads;
  moments.shape.kv_heads = spec.kv_heads;
  moments.shape.k_dim = k_dim;
  moments.shape.v_dim = v_dim;
  moments.shape.softmax_scale = 1 / std::sqrt(static_cast<double>(k_dim));
  moments.shape.window = At(spec.sliding_windows, index);
  moments.count = static_cast<uint64_t>(tokens);
  moments.sums[Moment::kQq] = q.Products();
  moments.sums[Moment::kKk] = k.Products();
  moments.sums[Moment::kVv] = v.Products();
  moments.sums[Moment::kOo] = o.Products();
  moments.sums[Moment::kSst] = {
      {spec.kv_heads, v_dim, v_dim},
      std::vector<double>(static_cast<size_t>(spec.kv_heads * v_dim * v_dim))};
  moments.sums[Moment::kSstWeight] = {{spec.kv_heads},
                                      std::vector<double>(static_cast<size_t>(spec.kv_heads))};
  const std::vector<float> k_rows = k.Floats(), v_rows = v.Floats();
  AddSst(ScoreMatrices(moments), {k_rows.data(), tokens, spec.kv_heads, k_dim},
         {v_rows.data(), tokens, spec.kv_heads, v_dim}, moments.sums[Moment::kSst],
         moments.sums[Moment::kSstWeight]);
  moments.sst_qq_hash = HashOf(moments.At(Moment::kQq));
  const int64_t kept = RowTokens(spec);
  capture.q = q.Slice(0, kept);
  capture.k = k.Slice(0, kept);
  capture.v = v.Slice(0, kept);
  return capture;
}

}  // namespace

void WriteSynthetic(const SyntheticTrace& spec, const std::filesystem::path& path) {
  int64_t tokens = 0;
  for (const int64_t length : spec.lengths) tokens += length;
  TraceWriter writer(path, MakeHeader(spec), /*resume=*/false, /*force=*/true);
  const auto threads = static_cast<size_t>(spec.threads);
  for (size_t first = 0; first < spec.layers.size(); first += threads) {
    std::vector<LayerCapture> made(std::min(threads, spec.layers.size() - first));
    ParallelFor(static_cast<int64_t>(made.size()), spec.threads, [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      made[at] = MakeLayer(spec, first + at, tokens);
    });
    for (const LayerCapture& layer : made) writer.WriteLayer(layer);
  }
  writer.Finish();
}

}  // namespace oscar::test
