// Data files: one JSON object a line, checked whole before anything is made of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/text.h"

namespace trunkline {

// What is wrong with a file's rows. It names places and kinds, never what a row says: data is private.
class Faults {
 public:
  explicit Faults(std::string file) : file_(std::move(file)) {}

  // `what`: "field: what is wrong"; column from 1, 0: none.
  void add(int64_t line, const std::string& what, int64_t column = 0);
  // Throws Error(input) with the first faults ("FILE:LINE: field: what is wrong", one a line) and the number of the
  // others, if there are any.
  void throw_if_any() const;

 private:
  std::string file_;
  std::vector<std::string> first_;
  int64_t count_ = 0;
};

enum class RowKind { text, completion, chat };

struct DataRow {
  int64_t line;           // from 1
  std::string_view json;  // the line, without its end
  RowKind kind;
};

struct DataRows {
  std::vector<DataRow> rows;
  int64_t blank = 0;  // lines with nothing but spaces
};

// The rows of a file whose bytes are `bytes` (which must outlive them). Kinds may be mixed; keys that are none of the
// fields are ignored. Line ends may be CRLF, a byte order mark may come first, the last line may lack its end.
// Throws as Faults do.
DataRows check_rows(const std::string& file, std::string_view bytes, const RowFields& fields);

}  // namespace trunkline
