// Saved states: the bytes of Pocketune's state file (docs/state-file.md), in two places of a storage.
//
// The header of a file is constant text but for the generation and the digests of the tensors, so it is written and compared
// piece by piece and nothing is parsed. A state whose header says anything else belongs to another program.
#include <cmath>
#include <cstring>

#include "pocketune.h"
#include "pocketune_sha256.h"

namespace pocketune {
namespace {

constexpr uint8_t kMagic[8] = {'P', 'T', 'S', 'T', 'A', 'T', 'E', '\n'};
constexpr uint32_t kVersion = 2, kFixed = 16, kBody = kFixed + Sha256::kBytes, kHex = 2 * Sha256::kBytes;
constexpr uint32_t kAlignment = 64, kLargestHeader = 4u << 20;
constexpr uint64_t kLargestGeneration = (uint64_t{1} << 53) - 1;
constexpr int kMostDigits = 16;

void put(uint8_t* to, uint32_t number) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(number >> (8 * i));
}

uint32_t got(const uint8_t* from) {
  return from[0] | uint32_t{from[1]} << 8 | uint32_t{from[2]} << 16 | uint32_t{from[3]} << 24;
}

uint32_t padding(uint32_t end) { return (kAlignment - end % kAlignment) % kAlignment; }

// Decimal digits of a generation; returns how many.
int digits(uint64_t number, char* to) {
  char turned[kMostDigits + 1];
  int count = 0;
  for (; number != 0 && count < kMostDigits; number /= 10) turned[count++] = static_cast<char>('0' + number % 10);
  for (int i = 0; i < count; ++i) to[i] = turned[count - 1 - i];
  return count;
}

void hex(const uint8_t* digest, char* to) {
  for (uint32_t i = 0; i < Sha256::kBytes; ++i) {
    to[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    to[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
}

void digest_of(const StateTensor& tensor, const uint8_t* data, char* to) {
  Sha256 sha;
  uint8_t digest[Sha256::kBytes];
  sha.add(data, tensor.bytes);
  sha.finish(digest);
  hex(digest, to);
}

bool all_finite(const uint8_t* data, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += 4) {
    float number;
    std::memcpy(&number, data + at, sizeof number);
    if (!std::isfinite(number)) return false;
  }
  return true;
}

enum class Found : uint8_t { kNothing, kDamaged, kForeign, kGood };

// A place of a storage, read from front to back.
class Reader {
 public:
  Reader(const Program& program, const Storage& storage, int place)
      : program_(program), storage_(storage), place_(place) {}

  // Looks at all bytes. `generation` is that of a good state.
  Found look(uint64_t* generation) {
    uint8_t front[kBody];
    if (!read(front, sizeof front)) return Found::kNothing;
    if (std::memcmp(front, kMagic, sizeof kMagic) != 0) return is_erased(front) ? Found::kNothing : Found::kForeign;
    const uint32_t version = got(front + 8), length = got(front + 12);
    if (length > kLargestHeader || !is_whole(front, length)) return Found::kDamaged;
    if (version != kVersion || !is_ours(length, generation)) return Found::kForeign;
    return tensors(nullptr) ? Found::kGood : Found::kDamaged;
  }

  // Reads the tensors of a good state, which look() has seen, into memory.
  bool load(uint8_t* state) {
    at_ = data_;
    return tensors(state);
  }

 private:
  bool read(void* to, uint32_t count) {
    if (!storage_.read(storage_.context, place_, at_, to, count)) return false;
    at_ += count;
    return true;
  }

  // Whether the first bytes are those of a place that was erased, or where writing had begun when the power failed.
  static bool is_erased(const uint8_t* front) {
    for (uint32_t i = 0; i < sizeof kMagic; ++i) {
      if (front[i] != kMagic[i] && front[i] != 0x00 && front[i] != 0xff) return false;
    }
    return true;
  }

  bool is_whole(const uint8_t* front, uint32_t length) {
    Sha256 sha;
    uint8_t part[kAlignment], digest[Sha256::kBytes];
    sha.add(front, kFixed);
    for (uint32_t left = length; left > 0;) {
      const uint32_t count = left < sizeof part ? left : sizeof part;
      if (!read(part, count)) return false;
      sha.add(part, count);
      left -= count;
    }
    sha.finish(digest);
    return std::memcmp(digest, front + kFixed, sizeof digest) == 0;
  }

  bool is_text(const char* text) {
    char part[kAlignment];
    for (uint32_t left = std::strlen(text); left > 0;) {
      const uint32_t count = left < sizeof part ? left : sizeof part;
      if (!read(part, count) || std::memcmp(part, text, count) != 0) return false;
      text += count;
      left -= count;
    }
    return true;
  }

  bool is_ours(uint32_t length, uint64_t* generation) {
    const uint32_t rest = program_.header_bytes + kHex * program_.tensor_count;
    if (length <= rest || length > rest + kMostDigits) return false;
    at_ = kBody;
    if (!is_text(program_.header[0])) return false;
    *generation = 0;
    for (uint32_t i = rest; i < length; ++i) {
      char digit;
      if (!read(&digit, 1) || digit < '0' || digit > '9') return false;
      *generation = 10 * *generation + static_cast<uint64_t>(digit - '0');
    }
    for (uint8_t i = 0; i < program_.tensor_count; ++i) {
      if (!is_text(program_.header[i + 1])) return false;
      at_ += kHex;
    }
    if (!is_text(program_.header[program_.tensor_count + 1])) return false;
    data_ = at_;
    return *generation >= 1 && *generation <= kLargestGeneration;
  }

  // Reads the tensors; without memory for them it compares them with their digests.
  bool tensors(uint8_t* state) {
    if (!zeros(padding(at_))) return false;
    uint32_t entry = kBody + std::strlen(program_.header[0]) + (data_ - kBody - program_.header_bytes - kHex * program_.tensor_count);
    for (uint8_t i = 0; i < program_.tensor_count; ++i) {
      const StateTensor& tensor = program_.tensors[i];
      entry += std::strlen(program_.header[i + 1]);
      if (!zeros(tensor.padding)) return false;
      if (state != nullptr ? !read(state + tensor.offset, tensor.bytes) : !is_good(tensor, entry)) return false;
      entry += kHex;
    }
    return true;
  }

  bool zeros(uint32_t count) {
    uint8_t part[kAlignment];
    if (count != 0 && !read(part, count)) return false;
    for (uint32_t i = 0; i < count; ++i) {
      if (part[i] != 0) return false;
    }
    return true;
  }

  // `entry`: where its digest stands.
  bool is_good(const StateTensor& tensor, uint32_t entry) {
    Sha256 sha;
    uint8_t part[kAlignment], digest[Sha256::kBytes];
    char said[kHex], found[kHex];
    for (uint32_t left = tensor.bytes; left > 0;) {
      const uint32_t count = left < sizeof part ? left : sizeof part;
      const uint32_t place = at_;
      if (!read(part, count)) return false;
      if (tensor.type == Type::kFloat32 && !all_finite(part, count)) return false;
      if (tensor.channels != 0 && !are_channels(tensor, part, count, place - (tensor.bytes - left))) return false;
      sha.add(part, count);
      left -= count;
    }
    sha.finish(digest);
    hex(digest, found);
    return storage_.read(storage_.context, place_, entry, said, sizeof said) && std::memcmp(said, found, sizeof said) == 0;
  }

  // Whether some numbers of a tensor, which begins at `start`, are channels, and none before them is the same.
  bool are_channels(const StateTensor& tensor, const uint8_t* part, uint32_t count, uint32_t start) {
    for (uint32_t i = 0; i < count; i += 4) {
      if (got(part + i) >= static_cast<uint32_t>(tensor.channels)) return false;
      for (uint32_t other = start; other < at_ - count + i; other += 4) {
        uint8_t number[4];
        if (!storage_.read(storage_.context, place_, other, number, 4) || got(number) == got(part + i)) return false;
      }
    }
    return true;
  }

  const Program& program_;
  const Storage& storage_;
  int place_;
  uint32_t at_ = 0, data_ = 0;
};

// Writes a place from front to back.
class Writer {
 public:
  Writer(const Storage& storage, int place) : storage_(storage), place_(place) {}

  void write(const void* from, uint32_t count) {
    good_ = good_ && storage_.write(storage_.context, place_, at_, from, count);
    at_ += count;
  }
  void zeros(uint32_t count) {
    static const uint8_t kZeros[kAlignment] = {};
    if (count != 0) write(kZeros, count);
  }
  uint32_t at() const { return at_; }
  bool good() const { return good_; }

 private:
  const Storage& storage_;
  int place_;
  uint32_t at_ = 0;
  bool good_ = true;
};

// Gives the text of a header, piece by piece, to whatever takes it.
template <typename Take>
void header(const Program& program, const uint8_t* state, uint64_t generation, Take take) {
  char text[kHex];
  take(program.header[0], std::strlen(program.header[0]));
  take(text, static_cast<uint32_t>(digits(generation, text)));
  for (uint8_t i = 0; i < program.tensor_count; ++i) {
    take(program.header[i + 1], std::strlen(program.header[i + 1]));
    digest_of(program.tensors[i], state + program.tensors[i].offset, text);
    take(text, kHex);
  }
  const char* last = program.header[program.tensor_count + 1];
  take(last, std::strlen(last));
}

bool write_state(const Program& program, const uint8_t* state, uint64_t generation, const Storage& storage, int place) {
  char counted[kMostDigits + 1];
  const uint32_t length =
      program.header_bytes + kHex * program.tensor_count + static_cast<uint32_t>(digits(generation, counted));
  const uint32_t start = kBody + length + padding(kBody + length);
  uint32_t size = start;
  for (uint8_t i = 0; i < program.tensor_count; ++i) size += program.tensors[i].padding + program.tensors[i].bytes;

  uint8_t front[kBody];
  std::memcpy(front, kMagic, sizeof kMagic);
  put(front + 8, kVersion);
  put(front + 12, length);
  Sha256 sha;
  sha.add(front, kFixed);
  header(program, state, generation, [&](const char* text, uint32_t count) { sha.add(text, count); });
  sha.finish(front + kFixed);

  if (!storage.begin(storage.context, place, size)) return false;
  Writer writer(storage, place);
  writer.write(front, sizeof front);
  header(program, state, generation, [&](const char* text, uint32_t count) { writer.write(text, count); });
  writer.zeros(padding(writer.at()));
  for (uint8_t i = 0; i < program.tensor_count; ++i) {
    writer.zeros(program.tensors[i].padding);
    writer.write(state + program.tensors[i].offset, program.tensors[i].bytes);
  }
  return writer.good() && storage.end(storage.context, place);
}

}  // namespace

Status Session::save(const Storage& storage) {
  for (uint8_t i = 0; i < program_.tensor_count; ++i) {
    const StateTensor& tensor = program_.tensors[i];
    if (tensor.type == Type::kFloat32 && !all_finite(state_ + tensor.offset, tensor.bytes)) return Status::kNotFinite;
  }
  uint64_t newest = 0;
  int place = 0;
  for (int i = 0; i < 2; ++i) {
    uint64_t generation = 0;
    const Found found = Reader(program_, storage, i).look(&generation);
    if (found == Found::kForeign) return Status::kForeign;
    if (found == Found::kGood && generation > newest) {
      newest = generation;
      place = 1 - i;
    }
  }
  uint64_t written = 0;
  if (!write_state(program_, state_, newest + 1, storage, place)) return Status::kStorage;
  if (Reader(program_, storage, place).look(&written) != Found::kGood || written != newest + 1) return Status::kStorage;
  generation_ = written;
  return Status::kOk;
}

Status Session::load(const Storage& storage) {
  uint64_t newest = 0;
  int place = -1;
  bool foreign = false;
  for (int i = 0; i < 2; ++i) {
    uint64_t generation = 0;
    const Found found = Reader(program_, storage, i).look(&generation);
    foreign = foreign || found == Found::kForeign;
    if (found == Found::kGood && generation > newest) {
      newest = generation;
      place = i;
    }
  }
  if (place < 0) return foreign ? Status::kForeign : Status::kNoState;
  Reader reader(program_, storage, place);
  uint64_t generation = 0;
  if (reader.look(&generation) != Found::kGood || !reader.load(state_)) return Status::kStorage;
  pending_ = 0;
  generation_ = generation;
  return Status::kOk;
}

}  // namespace pocketune
