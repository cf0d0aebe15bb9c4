// oscar-zoo env: the exact variables and flags with which an engine serves an entry.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/core/layer.h"
#include "oscar/inspect/commands.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// What the public evaluation scripts set; used where an entry has no manifest.
constexpr double kPublicKeyClip = 0.96;
constexpr double kPublicValueClip = 0.92;
// Pages, and with them both windows, are multiples of 4 * sizeof(bfloat16) tokens.
constexpr int64_t kPageTokens = kServedPageTokens;

struct Serving {
  std::vector<std::pair<std::string, std::string>> variables;
  std::vector<std::string> flags;
  std::vector<std::string> verify;  // options of oscar-verify that measure what is served
  std::vector<std::string> notes;
};

// Settings of an entry with the place they come from.
struct Recipe {
  Windows windows;
  int64_t group_size = 0;
  std::string scale_dtype = "float32";
  double key_clip = kPublicKeyClip;
  double value_clip = kPublicValueClip;
};

[[noreturn]] void Refuse(const ZooEntry& entry, const std::string& what, std::string hint = "") {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", entry.folder.string(), what),
              std::move(hint));
}

std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

const Value* Member(const Value& value, std::initializer_list<const char*> path) {
  const Value* at = &value;
  for (const char* key : path) {
    if (at == nullptr) return nullptr;
    at = at->Find(key);
  }
  return at != nullptr && at->is_null() ? nullptr : at;
}

std::string ScaleName(const ZooEntry& entry, const std::string& name) {
  for (const auto& [ours, theirs] :
       {std::pair{"f32", "float32"}, std::pair{"f16", "float16"}, std::pair{"bf16", "bfloat16"}}) {
    if (name == ours || name == theirs) return theirs;
  }
  Refuse(entry, fmt::format("scale_dtype \"{}\", expected f32, f16 or bf16", name));
}

// The name that oscar-verify takes.
std::string ShortScaleName(const std::string& name) {
  return name == "float16" ? "f16" : name == "bfloat16" ? "bf16" : "f32";
}

// One ratio for all layers: the engine knows no other. 0 switches clipping off.
double SingleClip(const ZooEntry& entry, const char* side, double public_ratio, Serving& out) {
  const Value& manifest = *entry.manifest;
  const Value* mode = Member(manifest, {"clip", "mode"});
  if (mode != nullptr && *mode == Value("off")) return 0;
  const Value* single = Member(manifest, {"clip", "single", side});
  if (single != nullptr) {
    const Value* table = Member(manifest, {"clip", side});
    const bool per_layer = table != nullptr && table->is_object() && !table->AsObject().empty();
    const bool all_equal =
        per_layer && std::all_of(table->AsObject().begin(), table->AsObject().end(),
                                 [&](const auto& item) { return item.second == *single; });
    if (per_layer && !all_equal) {
      out.notes.push_back(fmt::format(
          "{}: the best single clip ratio; the manifest's ratios per layer are better, but this "
          "engine takes one for all layers",
          side));
    }
    return single->AsDouble();
  }
  out.notes.push_back(fmt::format(
      "{}: no single clip ratio in the manifest; the public recipe's {}", side, public_ratio));
  return public_ratio;
}

Recipe RecipeOf(const ZooEntry& entry, Serving& out) {
  Recipe recipe;
  if (!entry.manifest) {
    out.notes.push_back(
        "no manifest.json: windows, clip ratios and scale type are those of the public recipe");
    return recipe;
  }
  const Value& manifest = *entry.manifest;
  if (const Value* sink = Member(manifest, {"windows", "sink"})) {
    recipe.windows.sink = sink->AsInt();
  }
  if (const Value* recent = Member(manifest, {"windows", "recent"})) {
    recipe.windows.recent = recent->AsInt();
  }
  if (const Value* group = Member(manifest, {"group_size"})) recipe.group_size = group->AsInt();
  if (const Value* scale = Member(manifest, {"scale_dtype"})) {
    recipe.scale_dtype = ScaleName(entry, scale->AsString());
  }
  recipe.key_clip = SingleClip(entry, "key", kPublicKeyClip, out);
  recipe.value_clip = SingleClip(entry, "value", kPublicValueClip, out);
  return recipe;
}

// Settings for a broken entry would only hide the fault.
void CheckValid(const ZooEntry& entry) {
  for (const ZooFinding& finding : ValidateEntry(entry)) {
    if (!finding.error) continue;
    throw Error(ErrorCode::kFormat, fmt::format("{}: {}", finding.where, finding.what),
                "oscar-zoo validate lists everything that is wrong");
  }
}

// The loader wants one shape for all layers, K and V alike; returns the head dim.
int64_t CommonDim(const ZooEntry& entry) {
  const int64_t dim = entry.key.layers.begin()->second.dim;
  for (const ZooFile* file : {&entry.key, &entry.value}) {
    for (const auto& [id, layer] : file->layers) {
      if (layer.dim != dim) {
        Refuse(entry, fmt::format("layer {} has head dim {}, others {}: this engine takes one head "
                                  "dim for all layers, K and V",
                                  id, layer.dim, dim));
      }
    }
  }
  return dim;
}

void CheckLayers(const ZooEntry& entry, Serving& out) {
  const auto& key = entry.key.layers;
  const bool same = key.size() == entry.value.layers.size() &&
                    std::equal(key.begin(), key.end(), entry.value.layers.begin(),
                               [](const auto& a, const auto& b) { return a.first == b.first; });
  if (!same) Refuse(entry, "K and V have different layers");
  const bool dense =
      key.begin()->first == 0 && key.rbegin()->first + 1 == static_cast<int64_t>(key.size());
  if (!dense) {
    out.notes.push_back(
        "layer numbers have gaps: only builds for hybrid models (branch hybrid-model) load this; "
        "others stop with a missing layer");
  }
}

void CheckWindows(const ZooEntry& entry, const Windows& windows) {
  for (const auto& [name, tokens] :
       {std::pair{"sink", windows.sink}, std::pair{"recent", windows.recent}}) {
    if (tokens < 0 || tokens % kPageTokens != 0) {
      Refuse(entry,
             fmt::format("window {} of {} tokens, expected a multiple of {}", name, tokens,
                         kPageTokens),
             "calibrate again with --sink and --recent that are");
    }
  }
  if (windows.sink == 0 && windows.recent == 0) {
    Refuse(entry, "both windows are 0: the engine would silently serve without the rotations",
           "choose windows of at least 8 tokens");
  }
}

int64_t CheckedGroup(const ZooEntry& entry, int64_t group, int64_t dim, Serving& out) {
  if (group == 0) group = dim;
  if (group < 0 || dim % group != 0 || !std::has_single_bit(static_cast<uint64_t>(dim / group))) {
    Refuse(entry, fmt::format("group size {} for head dim {}: the number of groups must be a power "
                              "of two",
                              group, dim));
  }
  if (group < dim) {
    out.notes.push_back(
        "groups smaller than the head use another prefill kernel of the engine: compare its "
        "output before trusting it");
  }
  return group;
}

std::string Absolute(const fs::path& path) {
  return fs::absolute(path).lexically_normal().string();
}

Serving ForSglang(const ZooEntry& entry, bool absorb_v) {
  Serving out;
  const Recipe recipe = RecipeOf(entry, out);
  const int64_t dim = CommonDim(entry);
  CheckLayers(entry, out);
  CheckWindows(entry, recipe.windows);
  const int64_t group = CheckedGroup(entry, recipe.group_size, dim, out);
  const bool per_head =
      entry.key.layers.begin()->second.heads > 0 || entry.value.layers.begin()->second.heads > 0;
  if (per_head) {
    out.notes.push_back(
        "one rotation per KV head (format_version 2): the main branch refuses it, a build with "
        "per-head support is needed");
    if (absorb_v) {
      Refuse(entry, "rotations per KV head cannot be absorbed into v_proj", "drop --absorb-v");
    }
  }
  out.notes.push_back(absorb_v
                          ? "V rotation folded into v_proj: right for Qwen3 and GLM-4-MoE only, "
                            "other models are never folded and would give garbage"
                          : "V is rotated while serving, which works for every model; --absorb-v "
                            "saves that product on Qwen3 and GLM-4-MoE");
  out.variables = {
      {"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
      {"SGLANG_MIXED_KV_PREFIX_TOKENS", fmt::format("{}", recipe.windows.sink)},
      {"SGLANG_MIXED_KV_RECENT_TOKENS", fmt::format("{}", recipe.windows.recent)},
      {"SGLANG_MIXED_KV_HP_DTYPE", "bfloat16"},
      {"SGLANG_MIXED_KV_SCALE_DTYPE", recipe.scale_dtype},
      {"SGLANG_MIXED_KV_HP_MAX_SPLITS", "8"},
      {"SGLANG_OSCAR_K_ROTATION_PATH", Absolute(entry.key_path)},
      {"SGLANG_OSCAR_V_ROTATION_PATH", Absolute(entry.value_path)},
      {"SGLANG_OSCAR_K_CLIP_RATIO", fmt::format("{}", recipe.key_clip)},
      {"SGLANG_OSCAR_V_CLIP_RATIO", fmt::format("{}", recipe.value_clip)},
      {"SGLANG_OSCAR_ABSORB_V_ROTATION", absorb_v ? "1" : "0"},
      {"SGLANG_LLOYD_MAX", "0"},
  };
  // The engine takes one clip ratio a side and rounds to bfloat16, whatever the manifest holds.
  out.verify = {"--zoo",         Absolute(entry.folder),
                "--sink",        fmt::format("{}", recipe.windows.sink),
                "--recent",      fmt::format("{}", recipe.windows.recent),
                "--flush",       fmt::format("{}", kPageTokens),
                "--group-size",  fmt::format("{}", group),
                "--scale-dtype", ShortScaleName(recipe.scale_dtype),
                "--clip",        fmt::format("{},{}", recipe.key_clip, recipe.value_clip),
                "--as-served"};
  out.flags = {"--kv-cache-dtype",
               "int2",
               "--kv-cache-quant-group-size",
               fmt::format("{}", group),
               "--prefill-attention-backend",
               "fa3",
               "--decode-attention-backend",
               "triton"};
  return out;
}

[[noreturn]] void RefuseEngine(const ZooEntry& entry, const std::string& engine) {
  if (engine == "vllm") {
    Refuse(
        entry,
        "the ports for vLLM disagree on their variables (PREFIX_TOKENS or SINK_TOKENS) and serve "
        "missing layers without a rotation, so no settings can be given that are certain",
        "read the variables from the source of the port that you run");
  }
  Refuse(entry,
         "the llama.cpp ports read rotations from tensors of the model's GGUF file "
         "(blk.<i>.attn_k_rot.weight), not from this folder, so there is nothing to set",
         "an exporter has to write the rotations into the GGUF file first");
}

// As a word of a shell.
std::string Word(const std::string& text) {
  const bool plain = text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789./_-,") == std::string::npos;
  return plain ? text : Quoted(text);
}

std::string TextOf(const ZooEntry& entry, const std::string& engine, const Serving& serving) {
  std::string text = fmt::format("# {} for {}\n", entry.folder.string(), engine);
  for (const std::string& note : serving.notes) text += fmt::format("# note: {}\n", note);
  for (const auto& [name, value] : serving.variables) {
    text += fmt::format("export {}={}\n", name, Word(value));
  }
  text += fmt::format("# server flags:\n#   {}\n", fmt::join(serving.flags, " "));
  text +=
      "# what these settings cost on held-out traces (a prompt is clipped with --clip-mode sort, "
      "what decoding flushes with bisect):\n#   oscar-verify";
  for (const std::string& word : serving.verify) text += " " + Word(word);
  return text + " --traces FILE\n";
}

}  // namespace

InspectReport EnvironmentOf(const fs::path& folder, const std::string& engine, bool absorb_v) {
  const ZooEntry entry = ReadZooEntry(folder);
  CheckValid(entry);
  if (engine != "sglang") RefuseEngine(entry, engine);
  const Serving serving = ForSglang(entry, absorb_v);
  InspectReport report;
  report.record = NewRecord("env");
  report.record["entry"] = folder.string();
  report.record["engine"] = engine;
  report.record["variables"] = Value::Object();
  for (const auto& [name, value] : serving.variables) report.record["variables"][name] = value;
  report.record["flags"] = Value::Array(serving.flags.begin(), serving.flags.end());
  report.record["verify_options"] = Value::Array(serving.verify.begin(), serving.verify.end());
  report.record["notes"] = Value::Array(serving.notes.begin(), serving.notes.end());
  report.text = TextOf(entry, engine, serving);
  return report;
}

}  // namespace oscar
