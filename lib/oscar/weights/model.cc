#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/parallel.h"
#include "oscar/weights/config.h"
#include "oscar/weights/gguf.h"
#include "oscar/weights/layout.h"
#include "oscar/weights/message.h"
#include "oscar/weights/model_weights.h"
#include "oscar/weights/safetensors.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Row of the half-split layout -> row of the interleaved one, within heads of `dim` rows: row
// s dim/2 + i is stored as row 2 i + s.
int64_t InterleavedRow(int64_t row, int64_t dim) {
  const int64_t head = row / dim;
  const int64_t in_head = row % dim;
  const int64_t half = dim / 2;
  return head * dim + 2 * (in_head % half) + in_head / half;
}

class MappedModel final : public ModelWeights {
 public:
  MappedModel(fs::path path, std::string id, ParsedConfig parsed, TensorSet tensors,
              std::optional<Value> metadata, NameScheme scheme, std::string prefix)
      : path_(std::move(path)),
        id_(std::move(id)),
        config_(std::move(parsed.config)),
        hash_(HashConfig(config_)),
        tensors_(std::move(tensors)),
        metadata_(std::move(metadata)),
        layout_(*parsed.architecture, config_, scheme, std::move(prefix)) {
    layout_.Check(tensors_, path_.string());
    CheckTiedCopy();
  }

  const ModelConfig& config() const override { return config_; }
  std::string model_id() const override { return id_; }
  std::string config_hash() const override { return hash_; }
  const Value* gguf_metadata() const override { return metadata_ ? &*metadata_ : nullptr; }
  const fs::path& path() const override { return path_; }

  LayerWeights LoadLayer(int64_t layer, int threads) const override;
  std::vector<float> EmbeddingRows(const std::vector<int32_t>& ids) const override;
  std::vector<float> FinalNorm() const override;
  std::vector<float> HeadRowsRange(int64_t begin, int64_t end, int threads) const override;
  int64_t LayerBytes() const override;
  void ReleaseLayer(int64_t layer) const override;

 private:
  // A run of rows of a tensor to convert.
  struct Piece {
    const std::string* name;
    const StoredTensor* tensor;
    int64_t begin, end;
    int64_t interleaved_dim;  // 0: rows are in order
    float* out;               // of row `begin`
  };
  void AddPieces(const std::string& name, int64_t begin, int64_t end, int64_t interleaved_dim,
                 float* out, std::vector<Piece>& pieces) const;
  void Run(const std::vector<Piece>& pieces, int threads) const;
  void CheckTiedCopy() const;

  fs::path path_;
  std::string id_;
  ModelConfig config_;
  std::string hash_;
  TensorSet tensors_;
  std::optional<Value> metadata_;
  Layout layout_;
};

// Some checkpoints of tied models store the head as well. It must be the embedding, or the file
// and its configuration contradict each other: sixteen rows tell.
void MappedModel::CheckTiedCopy() const {
  const std::string name = "lm_head.weight";
  const StoredTensor* copy = tensors_.Find(name);
  if (!config_.tied_embeddings || copy == nullptr) return;
  const StoredTensor& embedding = *tensors_.Find(layout_.outer().embedding);
  bool same = copy->supported && copy->shape == embedding.shape;
  for (int64_t i = 0; same && i < 16; ++i) {
    const int64_t row = i * (config_.vocab - 1) / 15;
    std::vector<float> a(static_cast<size_t>(config_.hidden)), b(a);
    tensors_.ReadRows(layout_.outer().embedding, embedding, row, row + 1, a.data());
    tensors_.ReadRows(name, *copy, row, row + 1, b.data());
    same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  if (!same) {
    throw Error(ErrorCode::kFormat,
                Message(path_.string(), ": the configuration ties the embeddings, but ",
                        Quoted(name), " differs from ", Quoted(layout_.outer().embedding)));
  }
}

void MappedModel::AddPieces(const std::string& name, int64_t begin, int64_t end,
                            int64_t interleaved_dim, float* out, std::vector<Piece>& pieces) const {
  const auto it = tensors_.tensors().find(name);
  const StoredTensor& tensor = it->second;
  const int64_t cols = ElementCount(tensor.shape) / tensor.shape[0];
  // Vectors are converted whole: block types could not be cut anywhere.
  constexpr int64_t kPieceValues = int64_t{1} << 16;
  const int64_t step = std::max<int64_t>(1, kPieceValues / cols);
  for (int64_t row = begin; row < end; row += step) {
    const int64_t stop = std::min(end, row + step);
    pieces.push_back({&it->first, &tensor, row, stop, interleaved_dim, out + (row - begin) * cols});
  }
}

void MappedModel::Run(const std::vector<Piece>& pieces, int threads) const {
  ParallelFor(static_cast<int64_t>(pieces.size()), threads, [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    if (piece.interleaved_dim == 0) {
      tensors_.ReadRows(*piece.name, *piece.tensor, piece.begin, piece.end, piece.out);
      return;
    }
    const int64_t cols = ElementCount(piece.tensor->shape) / piece.tensor->shape[0];
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      const int64_t stored = InterleavedRow(row, piece.interleaved_dim);
      tensors_.ReadRows(*piece.name, *piece.tensor, stored, stored + 1,
                        piece.out + (row - piece.begin) * cols);
    }
  });
}

LayerWeights MappedModel::LoadLayer(int64_t layer, int threads) const {
  OSCAR_CHECK(layer >= 0 && layer < config_.layers);
  LayerWeights weights;
  std::vector<Piece> pieces;
  for (const LayerTensor& tensor : layout_.Layer(layer)) {
    std::vector<float>& target = weights.*tensor.target;
    target.resize(static_cast<size_t>(ElementCount(tensor.shape)));
    AddPieces(tensor.name, 0, tensor.shape[0], tensor.permuted_heads > 0 ? config_.head_dim : 0,
              target.data(), pieces);
  }
  Run(pieces, threads);
  return weights;
}

std::vector<float> MappedModel::EmbeddingRows(const std::vector<int32_t>& ids) const {
  const std::string& name = layout_.outer().embedding;
  const StoredTensor& tensor = *tensors_.Find(name);
  std::vector<float> out(ids.size() * static_cast<size_t>(config_.hidden));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config_.vocab) {
      throw Error(ErrorCode::kData, Message("token id ", ids[i], " at position ", i,
                                            " is outside the vocabulary of ", config_.vocab));
    }
    tensors_.ReadRows(name, tensor, ids[i], ids[i] + 1,
                      out.data() + i * static_cast<size_t>(config_.hidden));
  }
  return out;
}

std::vector<float> MappedModel::FinalNorm() const {
  std::vector<float> out(static_cast<size_t>(config_.hidden));
  std::vector<Piece> pieces;
  AddPieces(layout_.outer().final_norm, 0, config_.hidden, 0, out.data(), pieces);
  Run(pieces, 1);
  return out;
}

std::vector<float> MappedModel::HeadRowsRange(int64_t begin, int64_t end, int threads) const {
  OSCAR_CHECK(0 <= begin && begin <= end && end <= config_.vocab);
  std::vector<float> out(static_cast<size_t>((end - begin) * config_.hidden));
  std::vector<Piece> pieces;
  AddPieces(layout_.outer().head, begin, end, 0, out.data(), pieces);
  Run(pieces, threads);
  return out;
}

int64_t MappedModel::LayerBytes() const {
  int64_t bytes = 0;
  for (const LayerTensor& tensor : layout_.Layer(0)) {
    bytes += ElementCount(tensor.shape) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

void MappedModel::ReleaseLayer(int64_t layer) const {
  for (const LayerTensor& tensor : layout_.Layer(layer)) {
    tensors_.Release(*tensors_.Find(tensor.name));
  }
}

// The folder's name; for a snapshot in the Hugging Face cache, which is named by its commit, the
// name of the repository.
std::string FolderId(const fs::path& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string repository = path.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (path.parent_path().filename() == "snapshots" && repository.starts_with(kPrefix)) {
    std::string name = repository.substr(kPrefix.size());
    const size_t separator = name.find("--");
    return separator == std::string::npos ? name : name.substr(separator + 2);
  }
  return path.filename().string();
}

std::unique_ptr<ModelWeights> OpenFolder(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  if (!fs::exists(config)) {
    throw Error(ErrorCode::kIo, folder.string() + " has no config.json",
                "give a folder as Hugging Face publishes it, or a .gguf file");
  }
  const Value json = Value::FromJson(ReadTextFile(config), config.string());
  ParsedConfig parsed = ParseHfConfig(json, config.string());
  TensorSet tensors = OpenSafetensors(folder);
  std::string prefix = "model.";
  // Checkpoints of the bare decoder have no prefix.
  if (tensors.Find(prefix + "embed_tokens.weight") == nullptr &&
      tensors.Find("embed_tokens.weight") != nullptr) {
    prefix.clear();
  }
  return std::make_unique<MappedModel>(folder, FolderId(folder), std::move(parsed),
                                       std::move(tensors), std::nullopt, NameScheme::kHuggingFace,
                                       std::move(prefix));
}

std::unique_ptr<ModelWeights> OpenGgufModel(const fs::path& path) {
  GgufFile file = OpenGguf(path);
  ParsedConfig parsed = ParseGgufConfig(file.metadata, file.tensors, path.string());
  std::string id = path.stem().string();
  const Value* name = file.metadata.Find("general.name");
  if (name != nullptr && name->is_string() && !name->AsString().empty()) id = name->AsString();
  return std::make_unique<MappedModel>(path, std::move(id), std::move(parsed),
                                       std::move(file.tensors), std::move(file.metadata),
                                       NameScheme::kGguf, "");
}

}  // namespace

std::unique_ptr<ModelWeights> OpenModel(const fs::path& path) {
  if (!fs::exists(path)) {
    throw Error(ErrorCode::kIo, "there is no model at " + path.string(),
                "give a Hugging Face folder or a .gguf file");
  }
  return fs::is_directory(path) ? OpenFolder(path) : OpenGgufModel(path);
}

}  // namespace oscar
