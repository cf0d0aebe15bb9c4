#include "oscar/dump/tokens.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/dump/sequences.h"
#include "oscar/h5/file.h"
#include "oscar/text/dataset.h"
#include "oscar/text/load_text.h"

namespace oscar {
namespace {

TokenData FromText(const DumpOptions& options, const ModelWeights& model) {
  TokenData data;
  const int64_t wanted = options.tokens > 0 ? options.tokens : kDefaultTextTokens;
  LoadedText text = LoadText({.files = options.text,
                              .chat_template = options.chat_template,
                              .seed = options.seed,
                              .tokens = wanted,
                              .window = options.window},
                             model);
  Value::Array files;
  for (const std::filesystem::path& file : options.text) files.push_back(DescribeFile(file));
  data.sequences = std::move(text.packed.sequences);
  int64_t tokens = 0;
  for (const auto& sequence : data.sequences) tokens += static_cast<int64_t>(sequence.size());
  if (text.packed.tokens_available < wanted) {
    data.notes.push_back(fmt::format("the text has {} tokens, {} were asked for: using {}",
                                     text.packed.tokens_available, wanted, tokens));
  }
  data.complete.assign(data.sequences.size(), true);
  data.manifest["source"] = "text";
  data.manifest["files"] = std::move(files);
  data.manifest["tokenizer_hash"] = text.tokenizer_hash;
  data.manifest["template"] = ChatTemplateName(text.chat_template);
  data.manifest["documents"] = text.packed.documents;
  data.manifest["window"] = text.window;
  return data;
}

void RequireVocabulary(const std::vector<std::vector<int32_t>>& sequences, int64_t vocab,
                       const std::filesystem::path& file) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto bad = std::find_if(sequences[s].begin(), sequences[s].end(),
                                  [&](int32_t id) { return id < 0 || id >= vocab; });
    if (bad == sequences[s].end()) continue;
    throw Error(
        ErrorCode::kData,
        fmt::format("{}: sequence {}, position {}: token id {} is outside the vocabulary of {}",
                    file.string(), s, bad - sequences[s].begin(), *bad, vocab));
  }
}

TokenData FromIds(const DumpOptions& options, const ModelWeights& model) {
  TokenData data;
  const std::filesystem::path& file = options.token_ids;
  std::vector<std::vector<int32_t>> all =
      IsH5File(file) ? ReadTokenIdsH5(file) : ReadTokenIds(file);
  std::erase_if(all, [](const auto& ids) { return ids.empty(); });
  RequireVocabulary(all, model.config().vocab, file);
  std::vector<TraceSequence> lengths;
  for (const auto& ids : all) {
    TraceSequence s;
    s.length = static_cast<int64_t>(ids.size());
    lengths.push_back(s);
  }
  ApplyTokenBudget(lengths, options.tokens);
  for (size_t i = 0; i < lengths.size(); ++i) {
    all[i].resize(static_cast<size_t>(lengths[i].length));
    data.sequences.push_back(std::move(all[i]));
    data.complete.push_back(lengths[i].complete);
  }
  data.manifest["source"] = "token_ids";
  data.manifest["files"] = Value::Array{DescribeFile(file)};
  data.manifest["tokenizer_hash"] = "";
  data.manifest["template"] = "none";
  data.manifest["window"] = 0;
  return data;
}

std::vector<std::vector<int32_t>> RowsOfIds(const H5Dataset& dataset) {
  const std::vector<int64_t>& shape = dataset.shape();
  if (shape.size() != 1 && shape.size() != 2) {
    throw Error(ErrorCode::kFormat, fmt::format("{}: expected one or two dimensions, found {}",
                                                dataset.where(), shape));
  }
  const std::vector<int64_t> ids = dataset.Read<int64_t>();
  const size_t length = static_cast<size_t>(shape.back());
  std::vector<std::vector<int32_t>> rows;
  for (size_t begin = 0; length > 0 && begin < ids.size(); begin += length) {
    std::vector<int32_t>& row = rows.emplace_back();
    for (size_t i = begin; i < begin + length; ++i) {
      if (ids[i] < 0 || ids[i] > std::numeric_limits<int32_t>::max()) {
        throw Error(ErrorCode::kFormat, fmt::format("{}: element {} is {}, which is no token id",
                                                    dataset.where(), i, ids[i]));
      }
      row.push_back(static_cast<int32_t>(ids[i]));
    }
  }
  return rows;
}

}  // namespace

std::vector<std::vector<int32_t>> ReadTokenIdsH5(const std::filesystem::path& file) {
  const H5File h5 = H5File::Open(file);
  std::vector<std::string> places = {""};
  for (const std::string& group : h5.GroupNames()) places.push_back(group + "/");
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& place : places) {
    for (const char* name : {"token_ids", "input_ids"}) {
      if (!h5.HasDataset(place + name)) continue;
      auto rows = RowsOfIds(h5.Dataset(place + name));
      std::move(rows.begin(), rows.end(), std::back_inserter(sequences));
      break;
    }
  }
  if (sequences.empty()) {
    throw Error(ErrorCode::kFormat,
                fmt::format("{}: no dataset token_ids or input_ids with ids in it", file.string()));
  }
  return sequences;
}

Value DescribeFile(const std::filesystem::path& file) {
  Value value;
  value["name"] = file.filename().string();
  value["bytes"] = static_cast<int64_t>(std::filesystem::file_size(file));
  value["sha256"] = Sha256File(file.string());
  return value;
}

TokenData LoadTokens(const DumpOptions& options, const ModelWeights& model) {
  TokenData data = options.token_ids.empty() ? FromText(options, model) : FromIds(options, model);
  if (data.sequences.empty()) {
    const std::filesystem::path& file =
        options.token_ids.empty() ? options.text.front() : options.token_ids;
    throw Error(ErrorCode::kData, fmt::format("{} holds no tokens", file.string()));
  }
  return data;
}

}  // namespace oscar
