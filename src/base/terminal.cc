#include "base/terminal.h"

#include <unistd.h>

namespace trunkline {

bool is_terminal(std::FILE* stream) { return ::isatty(::fileno(stream)) == 1; }

}  // namespace trunkline
