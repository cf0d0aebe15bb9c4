#include "support/official_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/torchfile/torchfile.h"
#include "support/golden.h"

namespace oscar::test {
namespace {

namespace fs = std::filesystem;

std::vector<int> ToInts(const std::vector<int32_t>& values) {
  return {values.begin(), values.end()};
}

const TorchTensor& TensorOf(const TorchValue& value) { return std::get<TorchTensor>(value.data); }

// Appends a chunk [n, heads, D] to one matrix for each head.
void Append(const fs::path& path, std::vector<Matrix>& heads) {
  const TorchValue value = ReadTorchFile(path);
  const TorchTensor& tensor = TensorOf(value);
  const std::vector<double> data = tensor.ToDoubles();
  const int64_t rows = tensor.shape.at(0), count = tensor.shape.at(1), dim = tensor.shape.at(2);
  heads.resize(static_cast<size_t>(count));
  for (int64_t h = 0; h < count; ++h) {
    Matrix& head = heads[static_cast<size_t>(h)];
    const int64_t before = head.rows();
    head.conservativeResize(before + rows, dim);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        head(before + t, d) = data[static_cast<size_t>((t * count + h) * dim + d)];
      }
    }
  }
}

MomentTensor Stack(const std::vector<Matrix>& sums) {
  MomentTensor tensor;
  tensor.shape = {static_cast<int64_t>(sums.size()), sums[0].rows(), sums[0].cols()};
  for (const Matrix& sum : sums) {
    tensor.data.insert(tensor.data.end(), sum.data(), sum.data() + sum.size());
  }
  return tensor;
}

MomentTensor GramOf(const std::vector<Matrix>& heads) {
  std::vector<Matrix> sums;
  for (const Matrix& rows : heads) sums.push_back(rows.transpose() * rows);
  return Stack(sums);
}

// o = causal softmax(q k^T / sqrt(d)) v inside each sequence.
Matrix AttentionOutput(const Matrix& q, const Matrix& k, const Matrix& v,
                       const std::vector<int64_t>& seq_lens) {
  Matrix out = Matrix::Zero(q.rows(), v.cols());
  int64_t start = 0;
  for (const int64_t length : seq_lens) {
    for (int64_t i = start; i < start + length; ++i) {
      Eigen::VectorXd p = k.middleRows(start, i - start + 1) * q.row(i).transpose() /
                          std::sqrt(static_cast<double>(q.cols()));
      p = (p.array() - p.maxCoeff()).exp();
      out.row(i) = p.transpose() * v.middleRows(start, i - start + 1) / p.sum();
    }
    start += length;
  }
  OSCAR_CHECK(start == q.rows());
  return out;
}

}  // namespace

OfficialCase::OfficialCase(const fs::path& folder)
    : folder_(folder),
      name_(folder.filename().string()),
      expected_(H5File::Open(folder / "expected.h5")),
      layers_(ToInts(expected_.Read<int32_t>("layer_ids"))),
      chunks_(ToInts(expected_.Read<int32_t>("chunk_ids"))),
      dim_(expected_.IntAttribute("head_dim")),
      q_heads_(expected_.IntAttribute("num_q_heads")),
      kv_heads_(expected_.IntAttribute("num_kv_heads")),
      tokens_(expected_.IntAttribute("num_tokens")) {
  std::sort(chunks_.begin(), chunks_.end());
}

DumpLayer OfficialCase::ReadDump(int layer) const {
  DumpLayer dump;
  const fs::path root = folder_ / "dump" / ("layer_" + std::to_string(layer));
  for (const int chunk : chunks_) {
    const std::string file = std::to_string(chunk) + ".pt";
    Append(root / "q" / file, dump.q);
    Append(root / "k" / file, dump.k);
    Append(root / "v" / file, dump.v);
    const TorchValue lengths = ReadTorchFile(root / "seq_lens" / file);
    const std::vector<int64_t> values = TensorOf(lengths).ToInts();
    dump.seq_lens.insert(dump.seq_lens.end(), values.begin(), values.end());
  }
  OSCAR_CHECK(dump.q.at(0).rows() == tokens_);
  return dump;
}

LayerMoments OfficialCase::Moments(int layer) const {
  const DumpLayer dump = ReadDump(layer);
  LayerMoments moments;
  moments.shape.q_heads = q_heads_;
  moments.shape.kv_heads = kv_heads_;
  moments.shape.k_dim = moments.shape.v_dim = dim_;
  moments.shape.softmax_scale = 1 / std::sqrt(static_cast<double>(dim_));
  moments.count = static_cast<uint64_t>(tokens_);
  moments.sums[Moment::kQq] = GramOf(dump.q);
  moments.sums[Moment::kKk] = GramOf(dump.k);
  moments.sums[Moment::kVv] = GramOf(dump.v);

  const int64_t group = q_heads_ / kv_heads_;
  std::vector<Matrix> sst, outputs;
  MomentTensor weights{{kv_heads_}, {}};
  for (int64_t h = 0; h < q_heads_; ++h) {
    const auto kv = static_cast<size_t>(h / group);
    outputs.push_back(
        AttentionOutput(dump.q[static_cast<size_t>(h)], dump.k[kv], dump.v[kv], dump.seq_lens));
  }
  for (int64_t h = 0; h < kv_heads_; ++h) {
    const auto kv = static_cast<size_t>(h);
    Matrix a = Matrix::Zero(dim_, dim_);
    for (int64_t j = h * group; j < (h + 1) * group; ++j) {
      const Matrix& q = dump.q[static_cast<size_t>(j)];
      a += q.transpose() * q / static_cast<double>(tokens_ * group);
    }
    const Eigen::VectorXd w = (dump.k[kv] * a).cwiseProduct(dump.k[kv]).rowwise().sum();
    sst.push_back(dump.v[kv].transpose() * w.asDiagonal() * dump.v[kv]);
    weights.data.push_back(w.sum());
  }
  moments.sums[Moment::kSst] = Stack(sst);
  moments.sums[Moment::kSstWeight] = weights;
  moments.sums[Moment::kOo] = GramOf(outputs);
  return moments;
}

namespace {

std::vector<std::string> FilesOf(const fs::path& folder, bool residual) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".pt") continue;
    const std::string stem = entry.path().stem().string();
    if ((stem.find("uresidual") != std::string::npos) == residual) files.push_back(stem);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> OfficialCase::RotationFiles() const {
  return FilesOf(folder_ / "official", false);
}

std::vector<std::string> OfficialCase::OtherFiles() const {
  return FilesOf(folder_ / "official", true);
}

fs::path OfficialCase::PathOf(const std::string& file) const {
  return folder_ / "official" / (file + ".pt");
}

std::optional<StoredLayer> ReadRotationLayer(const fs::path& file, int layer) {
  const TorchValue value = ReadTorchFile(file);
  const TorchValue* layers = value.Find("layers");
  OSCAR_CHECK(layers != nullptr && layers->is_dict());
  for (const auto& [key, entry] : *std::get<std::shared_ptr<TorchValue::Dict>>(layers->data)) {
    if (std::get<int64_t>(key.data) != layer) continue;
    const TorchTensor& rotation = TensorOf(*entry.Find("rotation"));
    const std::vector<double> data = rotation.ToDoubles();
    StoredLayer stored;
    stored.rotation =
        Eigen::Map<const Matrix>(data.data(), rotation.shape.at(0), rotation.shape.at(1));
    stored.eigenvalues = TensorOf(*entry.Find("eigenvalues")).ToDoubles();
    return stored;
  }
  return std::nullopt;
}

std::vector<fs::path> OfficialCaseFolders() {
  std::vector<fs::path> folders;
  const fs::path root = OfficialVectors() / "calibration";
  if (!fs::is_directory(root)) return folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (fs::exists(entry.path() / "expected.h5")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace oscar::test
