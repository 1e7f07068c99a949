// Saves and loads states in memory: writing that stops at every byte, bytes that change, and files of the host.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pocketune_model.h"

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

alignas(16) uint8_t arena[4096];
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

}  // namespace

// states cuts STRIDE | states load FILE | states save FILE
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
