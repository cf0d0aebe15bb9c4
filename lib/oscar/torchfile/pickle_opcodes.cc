#include "oscar/torchfile/pickle_opcodes.h"

#include <array>
#include <utility>

namespace oscar {

std::string_view OpcodeName(uint8_t opcode) {
  static constexpr std::array<std::pair<uint8_t, std::string_view>, 29> kNames = {{
      {'2', "DUP"},
      {'F', "FLOAT"},
      {'I', "INT"},
      {'L', "LONG"},
      {'S', "STRING"},
      {'T', "BINSTRING"},
      {'U', "SHORT_BINSTRING"},
      {'V', "UNICODE"},
      {'B', "BINBYTES"},
      {'C', "SHORT_BINBYTES"},
      {'P', "PERSID"},
      {'d', "DICT"},
      {'g', "GET"},
      {'i', "INST"},
      {'l', "LIST"},
      {'o', "OBJ"},
      {'p', "PUT"},
      {0x81, "NEWOBJ"},
      {0x82, "EXT1"},
      {0x83, "EXT2"},
      {0x84, "EXT4"},
      {0x8e, "BINBYTES8"},
      {0x8f, "EMPTY_SET"},
      {0x90, "ADDITEMS"},
      {0x91, "FROZENSET"},
      {0x92, "NEWOBJ_EX"},
      {0x96, "BYTEARRAY8"},
      {0x97, "NEXT_BUFFER"},
      {0x98, "READONLY_BUFFER"},
  }};
  for (const auto& [code, name] : kNames) {
    if (code == opcode) return name;
  }
  return {};
}

}  // namespace oscar
