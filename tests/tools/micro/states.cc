// Saves and loads states in memory: writing that stops at every byte, bytes that change, and files of the host.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pocketune_model.h"
#include "pocketune_sha256.h"

namespace {

using pocketune::Status;

constexpr uint32_t kRoom = pocketune::kStateFileBytes;
struct Places {
  uint8_t bytes[2][kRoom];
  uint32_t size[2];
  uint32_t left;  // bytes until the power fails
};
Places places;

bool read_place(void*, int place, uint32_t offset, void* to, uint32_t count) {
  if (offset + count > places.size[place]) return false;
  std::memcpy(to, places.bytes[place] + offset, count);
  return true;
}
bool begin_place(void*, int place, uint32_t size) {
  std::memset(places.bytes[place], 0xff, kRoom);  // as erased flash
  places.size[place] = kRoom;
  return size <= kRoom && places.left-- > 0;
}
bool write_place(void*, int place, uint32_t offset, const void* from, uint32_t count) {
  const uint32_t some = count < places.left ? count : places.left;
  std::memcpy(places.bytes[place] + offset, from, some);
  places.left -= some;
  return some == count;
}
bool end_place(void*, int) { return true; }
const pocketune::Storage storage = {nullptr, read_place, begin_place, write_place, end_place};

alignas(16) uint8_t arena[pocketune::kArenaBytes];
pocketune::Model model, other;

// The first byte of the state tells which generation it was saved with.
void mark(uint8_t with) { *const_cast<uint8_t*>(static_cast<const uint8_t*>(model.tensor(0))) = with; }
uint8_t marked(const pocketune::Model& of) { return *static_cast<const uint8_t*>(of.tensor(0)); }

int cuts(uint32_t stride) {
  for (uint32_t at = 0;; at += stride) {
    places = {};
    places.left = 1u << 30;
    for (uint8_t k = 1; k <= 2; ++k) {
      mark(k);
      if (model.save(storage) != Status::kOk) return -1;
    }
    mark(3);
    places.left = at;
    const Status said = model.save(storage);
    const Status loaded = other.load(storage);
    if (loaded != Status::kOk) return -2;
    const bool whole = said == Status::kOk;
    if (other.generation() != (whole ? 3u : 2u) || marked(other) != (whole ? 3 : 2)) return -3;
    // And the next save goes over what is damaged.
    places.left = 1u << 30;
    mark(4);
    if (model.save(storage) != Status::kOk || other.load(storage) != Status::kOk || marked(other) != 4) return -4;
    if (whole) return static_cast<int>(at);
  }
}

int changes(uint32_t size) {
  for (uint32_t at = 0; at < size; ++at) {
    for (int bit = 1; bit < 256; bit *= 128) {
      places.bytes[0][at] = static_cast<uint8_t>(places.bytes[0][at] ^ bit);
      mark(9);
      if (model.load(storage) == Status::kOk || marked(model) != 9) return static_cast<int>(at);
      places.bytes[0][at] = static_cast<uint8_t>(places.bytes[0][at] ^ bit);
    }
  }
  return -1;
}

uint32_t drawn() {
  static uint64_t seed = 88172645463325252u;
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return static_cast<uint32_t>(seed >> 16);
}

// Makes the digest of the header, as it is now, right.
void mend(uint8_t* file, uint32_t size) {
  uint32_t length;
  std::memcpy(&length, file + 12, sizeof length);
  if (size < 48 || length > size - 48) return;
  pocketune::Sha256 sha;
  sha.add(file, 16);
  sha.add(file + 48, length);
  sha.finish(file + 16);
}

// Loads damaged files whose headers' digests were made right. What is taken has the tensors of the file; else none changes.
int damaged(uint32_t count) {
  static uint8_t whole[kRoom], held[kRoom];
  const uint32_t size = places.size[0];
  std::memcpy(whole, places.bytes[0], size);
  if (model.load(storage) != Status::kOk) return -1;
  std::memcpy(held, model.tensor(0), pocketune::kProgram.state_bytes);
  int refused = 0;
  for (uint32_t k = 0; k < count; ++k) {
    std::memcpy(places.bytes[0], whole, size);
    places.size[0] = drawn() % 8 == 0 ? drawn() % (size + 1) : size;
    for (uint32_t n = 1 + drawn() % 4; n > 0; --n) {
      const uint32_t at = drawn() % 3 == 0 ? drawn() % 64 : drawn() % size;
      const uint32_t kinds[] = {0, 1, 48, 64, size, 4u << 20, (4u << 20) + 1, 0x7fffffff, 0xffffffff, drawn()};
      const uint32_t number = kinds[drawn() % 10];
      switch (drawn() % 3) {
        case 0: places.bytes[0][at] = static_cast<uint8_t>(drawn()); break;
        case 1: std::memcpy(places.bytes[0] + 8 + 4 * (drawn() % 2), &number, 4); break;
        default: std::memcpy(places.bytes[0] + at, whole + drawn() % (size - 80), size - at < 80 ? 0 : drawn() % 80);
      }
    }
    mend(places.bytes[0], places.size[0]);
    refused += model.load(storage) != Status::kOk;
    if (std::memcmp(held, model.tensor(0), pocketune::kProgram.state_bytes) != 0) return -2;
  }
  return refused;
}

}  // namespace

// states cuts STRIDE | states load FILE | states save FILE | states damaged FILE
int main(int count, char** arguments) {
  if (model.begin(arena, sizeof arena) != Status::kOk || other.begin(arena, sizeof arena) != Status::kOk) return 2;
  if (count < 3) return 2;
  if (std::strcmp(arguments[1], "cuts") == 0) {
    std::printf("%d\n", cuts(static_cast<uint32_t>(std::atoi(arguments[2]))));
    return 0;
  }
  if (std::strcmp(arguments[1], "save") == 0) {
    places.left = 1u << 30;
    if (model.save(storage) != Status::kOk) return 3;
    std::FILE* file = std::fopen(arguments[2], "wb");
    uint32_t end = kRoom;
    while (end > 0 && places.bytes[0][end - 1] == 0xff) --end;
    std::fwrite(places.bytes[0], 1, end + (64 - end % 64) % 64, file);
    return std::fclose(file);
  }
  std::FILE* file = std::fopen(arguments[2], "rb");
  places.size[0] = static_cast<uint32_t>(std::fread(places.bytes[0], 1, kRoom, file));
  std::fclose(file);
  if (std::strcmp(arguments[1], "damaged") == 0) {
    std::printf("%d\n", damaged(20000));
    return 0;
  }
  const Status said = model.load(storage);
  std::printf("%s; generation %d;", message(said), static_cast<int>(model.generation()));
  for (uint8_t i = 0; i < pocketune::kProgram.tensor_count; ++i) {
    for (uint32_t at = 0; at < pocketune::kProgram.tensors[i].bytes; ++at) {
      std::printf(" %02x", static_cast<const uint8_t*>(model.tensor(i))[at]);
    }
  }
  std::printf("; changed %d\n", said == Status::kOk ? changes(places.size[0]) : -2);
  return 0;
}
